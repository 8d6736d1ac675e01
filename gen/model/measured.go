// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// Measured holds what a provider on a kernel accepted when it was measured: a file
// headers/measured/PROVIDER-KERNEL-TABLE.csv. Names are C names without IBV_QPT_, IBV_WR_, IBV_SEND_ and IBV_WC_.
type Measured struct {
	Provider string // "rxe"
	Kernel   string // "6.1"
	Table    string // a key of MeasuredColumns
	Source   string // "Soft-RoCE, Linux 6.1.176, rdma-core 44.0"
	Rows     [][]string
}

// MeasuredColumns maps tables to their columns. In a table with opcodes, every operation has two rows, without flags
// and signaled, and optional rows with more flags.
var MeasuredColumns = map[string][]string{
	"create_qp": {"qp_type", "create"},
	"post_send": {"qp_type", "opcode", "flags", "post", "wc_status", "qp_state", "data"},
	"wr_post":   {"qp_type", "opcode", "flags", "create", "post", "wc_status", "qp_state", "data"},
}

// MeasuredFlags lists the flags of the two required rows of an operation, in order.
var MeasuredFlags = []string{"none", "SIGNALED"}

// MeasuredMoreFlags lists the flags of the optional rows.
var MeasuredMoreFlags = []string{"SIGNALED|INLINE", "SIGNALED|FENCE", "SIGNALED|SOLICITED", "SIGNALED|IP_CSUM"}

var (
	measuredName = regexp.MustCompile(`^([a-z][a-z0-9_]*)-([0-9]+(?:\.[0-9]+)*)-([a-z_]+)\.csv$`)
	measuredCell = regexp.MustCompile(`^([A-Z][A-Z0-9_]*(\|[A-Z_]+)*|0|-|none|ok|wrong)$`)
)

// File returns the name of the file.
func (m *Measured) File() string { return m.Provider + "-" + m.Kernel + "-" + m.Table + ".csv" }

// Name returns the provider and the kernel: "rxe 6.1".
func (m *Measured) Name() string { return m.Provider + " " + m.Kernel }

// At returns a column of a row, or "" if the table has no such column.
func (m *Measured) At(row []string, column string) string {
	if i := slices.Index(MeasuredColumns[m.Table], column); i >= 0 {
		return row[i]
	}
	return ""
}

// Check rejects data that could not be written and parsed again.
func (m *Measured) Check() error {
	if !measuredName.MatchString(m.File()) {
		return fmt.Errorf("%q is not PROVIDER-KERNEL-TABLE.csv, such as rxe-6.1-post_send.csv", m.File())
	}
	columns := MeasuredColumns[m.Table]
	if columns == nil {
		return fmt.Errorf("unknown table %q", m.Table)
	}
	if m.Source == "" || m.Source != strings.TrimSpace(m.Source) || strings.Contains(m.Source, "\n") {
		return fmt.Errorf("%q does not name the measured system, such as Soft-RoCE, Linux 6.1.176, "+
			"rdma-core 44.0", m.Source)
	}
	if len(m.Rows) == 0 {
		return errors.New("no rows")
	}
	var errs []error
	keys := slices.Index(columns, "flags") + 1
	if keys == 0 {
		keys = 1
	}
	stands := map[string]bool{}
	for _, row := range m.Rows {
		if len(row) != len(columns) {
			return fmt.Errorf("%q: want %d columns: %s", strings.Join(row, ","), len(columns),
				strings.Join(columns, ","))
		}
		for i, cell := range row {
			if !measuredCell.MatchString(cell) {
				errs = append(errs, fmt.Errorf("%q: %s cannot be %q", strings.Join(row, ","), columns[i], cell))
			}
		}
		key := strings.Join(row[:keys], ",")
		if stands[key] {
			errs = append(errs, fmt.Errorf("duplicate %s", key))
		}
		stands[key] = true
		if keys > 1 && !slices.Contains(MeasuredFlags, row[keys-1]) &&
			!slices.Contains(MeasuredMoreFlags, row[keys-1]) {
			errs = append(errs, fmt.Errorf("%s: want the flags %s, and at most %s", key,
				strings.Join(MeasuredFlags, " and "), strings.Join(MeasuredMoreFlags, ", ")))
		}
	}
	for _, row := range m.Rows {
		for _, flags := range MeasuredFlags {
			if key := strings.Join(append(slices.Clone(row[:keys-1]), flags), ","); keys > 1 && !stands[key] {
				errs = append(errs, fmt.Errorf("%s is missing", key))
				stands[key] = true
			}
		}
	}
	return errors.Join(errs...)
}

// Encode returns the contents of the file.
func (m *Measured) Encode() []byte {
	var b strings.Builder
	b.WriteString("# " + m.Source + "\n")
	w := csv.NewWriter(&b)
	w.Write(MeasuredColumns[m.Table])
	w.WriteAll(m.Rows) // writing to a strings.Builder does not fail
	return []byte(b.String())
}

// ReadMeasured reads all files of a directory.
func ReadMeasured(dir fs.FS) ([]*Measured, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var all []*Measured
	var errs []error
	for _, e := range entries {
		text, err := fs.ReadFile(dir, e.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m, err := ParseMeasured(e.Name(), text)
		all, errs = append(all, m), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// ParseMeasured parses the file with this name.
func ParseMeasured(name string, text []byte) (*Measured, error) {
	parts := measuredName.FindStringSubmatch(name)
	if parts == nil {
		return nil, fmt.Errorf("%s: want a name PROVIDER-KERNEL-TABLE.csv, such as rxe-6.1-post_send.csv", name)
	}
	m := &Measured{Provider: parts[1], Kernel: parts[2], Table: parts[3]}
	first, rest, _ := strings.Cut(string(text), "\n")
	var ok bool
	if m.Source, ok = strings.CutPrefix(first, "# "); !ok {
		return nil, fmt.Errorf("%s: the first line must name the measured system: # Soft-RoCE, Linux 6.1.176, "+
			"rdma-core 44.0", name)
	}
	r := csv.NewReader(strings.NewReader(rest))
	r.FieldsPerRecord = -1
	all, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(all) == 0 || !slices.Equal(all[0], MeasuredColumns[m.Table]) {
		return nil, fmt.Errorf("%s: want the columns %s", name, strings.Join(MeasuredColumns[m.Table], ","))
	}
	m.Rows = all[1:]
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if string(m.Encode()) != string(text) {
		return nil, fmt.Errorf("%s: not in the format of gen measured; promote the results again", name)
	}
	return m, nil
}
