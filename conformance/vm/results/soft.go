// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

//go:embed soft.txt
var softRows string

//go:embed native.txt
var nativeRows string

// deviation is a row of soft.txt or native.txt: cells in which a device differs from libibverbs on Soft-RoCE, and the
// reason.
type deviation struct {
	table   string
	kernels []string
	keys    [][]string  // names that the row covers, for each key column
	cells   [][2]string // column, and the result of the device
	at      string
}

// Unexplained compares the software device's results with those of Soft-RoCE on each kernel, for one table. It lists
// differing cells without a row in soft.txt, and rows for the table whose cells do not differ or differ otherwise.
func Unexplained(table string, now Table) ([]string, error) {
	return compare("soft.txt", softRows, table, now, Kernels)
}

// UnexplainedNative is Unexplained for Soft-RoCE without rdma-core, on one kernel, and for native.txt.
func UnexplainedNative(table, kernel string, now Table) ([]string, error) {
	return compare("native.txt", nativeRows, table, now, []string{kernel})
}

func compare(file, text, table string, now Table, kernels []string) ([]string, error) {
	rows, err := parseDeviations(file, text)
	if err != nil {
		return nil, err
	}
	recorded := map[string]Table{}
	for _, kernel := range kernels {
		name := table + "-" + kernel + ".csv"
		t, ok, err := Read(name, now.Keys)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%s was never recorded", name)
		}
		recorded[kernel] = t
	}
	return unexplained(file, table, now, recorded, rows), nil
}

func unexplained(file, table string, now Table, recorded map[string]Table, rows []deviation) (all []string) {
	differs := map[string]string{} // cell → result of the device
	for kernel, was := range recorded {
		for _, d := range deviations(was, now) {
			if d.at == "" {
				all = append(all, fmt.Sprintf("%s: %s: %s", table, kernel, d.answer))
				continue
			}
			differs[kernel+": "+d.at] = d.answer
		}
	}
	explained := map[string]bool{}
	for _, row := range rows {
		if row.table != table {
			continue
		}
		if len(row.keys) != now.Keys {
			all = append(all, fmt.Sprintf("%s: a row of %s has %d keys", row.at, table, now.Keys))
			continue
		}
		row.kernels = slices.DeleteFunc(slices.Clone(row.kernels), func(kernel string) bool {
			_, ok := recorded[kernel]
			return !ok
		})
		for _, cell := range row.all() {
			name, ok := differs[cell.at]
			switch {
			case !ok:
				all = append(all, fmt.Sprintf("%s: %s: %s does not differ; delete it", row.at, table, cell.at))
			case name != cell.answer:
				all = append(all, fmt.Sprintf("%s: %s: %s: the device has %s, the row has %s", row.at,
					table, cell.at, name, cell.answer))
			case explained[cell.at]:
				all = append(all, fmt.Sprintf("%s: %s: another row explains %s", row.at, table, cell.at))
			}
			explained[cell.at] = true
		}
	}
	for cell, desc := range differs {
		if !explained[cell] {
			all = append(all,
				fmt.Sprintf("%s: %s: the device has %s, unlike libibverbs on Soft-RoCE; %s has no row for it",
					table, cell, desc, file))
		}
	}
	slices.Sort(all)
	return all
}

// place is a cell of a table, by keys and column, with the device's result. If the tables differ as a whole, it has no
// cell.
type place struct{ at, answer string }

// deviations lists the cells in which two tables differ.
func deviations(recorded, now Table) (all []place) {
	if !slices.Equal(recorded.Columns, now.Columns) {
		return []place{{"", "other columns"}}
	}
	key := func(row []string) string { return strings.Join(row[:now.Keys], ", ") }
	byKey := map[string][]string{}
	for _, row := range recorded.Rows {
		byKey[key(row)] = row
	}
	for _, row := range now.Rows {
		was, ok := byKey[key(row)]
		if !ok {
			all = append(all, place{"", key(row) + ": it was not measured on Soft-RoCE"})
			continue
		}
		delete(byKey, key(row))
		for i := now.Keys; i < len(row); i++ {
			if row[i] != was[i] {
				all = append(all, place{key(row) + ": " + now.Columns[i], row[i]})
			}
		}
	}
	for missing := range byKey {
		all = append(all, place{"", missing + ": the device was not measured"})
	}
	return all
}

// all lists every cell that the row covers.
func (d *deviation) all() (cells []place) {
	prefixes := d.kernels
	for i, names := range d.keys {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		var longer []string
		for _, prefix := range prefixes {
			for _, name := range names {
				longer = append(longer, prefix+separator+name)
			}
		}
		prefixes = longer
	}
	for _, prefix := range prefixes {
		for _, c := range d.cells {
			cells = append(cells, place{prefix + ": " + c[0], c[1]})
		}
	}
	return cells
}

// parseDeviations parses rows. The start of soft.txt describes the format.
func parseDeviations(name, text string) (rows []deviation, err error) {
	used := map[string]bool{} // labels
	var errs []error
	at := ""
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(at+": "+format, args...)) }
	n := 0
	for line := range strings.Lines(text) {
		n++
		at = fmt.Sprintf("%s:%d", name, n)
		line = strings.TrimSpace(line)
		definition, isLabel := strings.CutPrefix(line, "= ")
		fields := strings.Split(definition, " | ")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		last := len(fields) - 1
		switch {
		case line == "" || line[0] == '#':
		case isLabel:
			if len(fields) != 3 || slices.Contains(fields, "") {
				problem("want = label | kind | reason")
			} else if !slices.Contains([]string{"specification", "rxe limit", "kernel version", "limit of soft",
				"library version", "limit of native"},
				fields[1]) {
				problem("unknown kind of reason %q", fields[1])
			} else if _, twice := used[fields[0]]; twice {
				problem("label %q is defined twice", fields[0])
			} else {
				used[fields[0]] = false
			}
		case last < 4 || slices.Contains(fields, ""):
			problem("want table | kernels | keys | ... | column=answer; ... | label")
		default:
			if _, ok := used[fields[last]]; !ok {
				problem("no label %q above", fields[last])
			}
			used[fields[last]] = true
			if _, known, _ := Read(fields[0]+"-"+Kernels[0]+".csv", 0); !known {
				problem("nothing was measured in a table %q", fields[0])
			}
			d := deviation{table: fields[0], kernels: strings.Split(fields[1], "; "), at: at}
			for _, kernel := range d.kernels {
				if !slices.Contains(Kernels, kernel) {
					problem("nothing was measured on %q", kernel)
				}
			}
			for _, names := range fields[2 : last-1] {
				d.keys = append(d.keys, strings.Split(names, "; "))
			}
			for _, c := range strings.Split(fields[last-1], "; ") {
				column, answer, ok := strings.Cut(c, "=")
				if !ok {
					problem("%q is not column=answer", c)
				}
				d.cells = append(d.cells, [2]string{column, answer})
			}
			rows = append(rows, d)
		}
	}
	for label, ok := range used {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: no row uses label %q; delete it", name, label))
		}
	}
	return rows, errors.Join(errs...)
}
