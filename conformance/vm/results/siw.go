// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	"fmt"
	"slices"
	"strings"
)

// unreported replaces the state of a queue pair where the kernel does not return it: Soft-iWARP of Linux 6.1 returns
// RESET for every queue pair.
const unreported = "-"

// ReportSIW returns a page of Markdown with the behavior of Soft-iWARP, and that of Soft-RoCE and the software device
// for the same calls.
func ReportSIW() (string, error) {
	var b strings.Builder
	b.WriteString("# Behavior of Soft-iWARP\n\nMeasured on Linux " + strings.Join(Kernels, ", ") + " with libsiw, and " +
		"equal without rdma-core. Generated from the CSV files here by " +
		"`go test ./conformance/vm/results -update`.\nA failure is the completion's status, or the call that failed and " +
		"its error. Other types of queue pair and extended queue pairs cannot be created. For opcodes after " +
		"DRIVER1, the answers of libsiw depend on its release: they are not recorded.\n")
	if err := reportSIWSends(&b); err != nil {
		return "", err
	}
	for _, one := range []struct {
		title, file string
		keys        int
	}{
		{"Queue pairs that can be created", "siw-create_qp", 1},
		{"Connections: failed calls, events of both ends, and completions", "siw-connection", 1},
		{"ibv_modify_qp, with the state only and with the attributes that InfiniBand requires, and the state that " +
			"ibv_query_qp returns", "siw-modify_qp", 3},
	} {
		if err := reportRows(&b, one.title, one.file, one.keys); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// reportSIWSends compares the devices, for each opcode on RC and the flags with which it behaves differently.
func reportSIWSends(b *strings.Builder) error {
	fmt.Fprintf(b, "\n## ibv_post_send on RC\n\n| opcode | flags | documented | Soft-iWARP | Soft-RoCE | soft0 |\n"+
		"%s|\n", strings.Repeat("|---", 6))
	v := verbs[0]
	var order []string
	devices := [3]map[string]*line{{}, {}, {}}
	for _, kernel := range Kernels {
		iwarp, ok, err := Read("siw-"+v.file+"-"+kernel+".csv", v.keys)
		if err != nil || !ok {
			return fmt.Errorf("siw-%s-%s.csv was never recorded: %w", v.file, kernel, err)
		}
		roce, _, err := Read(v.file+"-"+kernel+".csv", v.keys)
		if err != nil {
			return err
		}
		soft, err := answersOfSoft(v.file, kernel, roce)
		if err != nil {
			return err
		}
		for n, table := range []Table{withoutStates(iwarp), roce, soft} {
			for _, c := range v.of(table) {
				if c.qp != "RC" {
					continue
				}
				key := c.opcode + "|" + c.flags
				if devices[n][key] == nil {
					devices[n][key] = &line{cell: c}
					if n == 0 {
						order = append(order, key)
					}
				}
				devices[n][key].add(kernel, c)
			}
		}
	}
	for _, key := range order {
		var all, signaled []string
		opcode, flags, _ := strings.Cut(key, "|")
		for _, device := range devices {
			all = append(all, device[key].all())
			signaled = append(signaled, device[opcode+"|SIGNALED"].all())
		}
		if flags != "SIGNALED" && slices.Equal(all, signaled) {
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", opcode, strings.ReplaceAll(flags, "|", ", "),
			devices[0][key].documented.Answer, strings.Join(all, " | "))
	}
	return nil
}

// withoutStates returns the table of a kernel that returns no states with none, and other tables as they are.
func withoutStates(t Table) Table {
	at := slices.Index(t.Columns, "qp_state")
	if slices.ContainsFunc(t.Rows, func(row []string) bool { return row[at] != "RESET" }) {
		return t
	}
	rows := make([][]string, len(t.Rows))
	for i, row := range t.Rows {
		rows[i] = slices.Clone(row)
		rows[i][at] = unreported
	}
	t.Rows = rows
	return t
}

// answersOfSoft returns the answers of the software device: those of Soft-RoCE on a kernel, changed by soft.txt.
func answersOfSoft(name, kernel string, recorded Table) (Table, error) {
	rows, err := parseDeviations("soft.txt", softRows)
	if err != nil {
		return Table{}, err
	}
	answers := map[string]string{}
	for _, row := range rows {
		if row.table == name {
			for _, cell := range row.all() {
				answers[cell.at] = cell.answer
			}
		}
	}
	now := recorded
	now.Rows = make([][]string, len(recorded.Rows))
	for i, row := range recorded.Rows {
		now.Rows[i] = slices.Clone(row)
		for at := recorded.Keys; at < len(row); at++ {
			cell := kernel + ": " + strings.Join(row[:recorded.Keys], ", ") + ": " + recorded.Columns[at]
			if answer, ok := answers[cell]; ok {
				now.Rows[i][at] = answer
			}
		}
	}
	return now, nil
}
