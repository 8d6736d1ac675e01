// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/model"
)

type measuredCmd struct {
	Provider string   `help:"Measured provider." required:"" placeholder:"rxe"`
	Kernel   string   `help:"${measured_kernel}" required:"" placeholder:"6.1"`
	Source   string   `help:"${measured_source}" placeholder:"TEXT"`
	Files    []string `arg:"" help:"Measurement results: TABLE-KERNEL.csv." type:"existingfile" placeholder:"FILE"`
}

// Help is printed by --help.
func (c *measuredCmd) Help() string {
	return "Extract from each file the rows that headers/measured keeps, and write " +
		"headers/measured/PROVIDER-KERNEL-TABLE.csv. " +
		"If a file is rejected, nothing is written. Then run make generate: answers that disagree with a man page " +
		"need a row in " +
		"gen/rules/measured.txt."
}

// Run adds measurements to headers/measured.
func (c *measuredCmd) Run(t tree) error {
	var all []*model.Measured
	var errs []error
	for _, path := range c.Files {
		m, err := c.promote(t, path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		all = append(all, m)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.MkdirAll(t.measured(), 0o755); err != nil {
		return err
	}
	for _, m := range all {
		if err := replaceFile(filepath.Join(t.measured(), m.File()), m.Encode()); err != nil {
			return err
		}
		fmt.Printf("%s: %d answers in headers/measured/%s\n", m.Source, len(m.Rows), m.File())
	}
	return nil
}

// promote extracts the rows to keep from a file of results.
func (c *measuredCmd) promote(t tree, path string) (*model.Measured, error) {
	table, ok := strings.CutSuffix(filepath.Base(path), "-"+c.Kernel+".csv")
	if !ok || model.MeasuredColumns[table] == nil {
		return nil, fmt.Errorf("unexpected name for kernel %s: want create_qp, "+
			"post_send or wr_post-%[1]s.csv", c.Kernel)
	}
	text, err := bounded.Read(path)
	if err != nil {
		return nil, err
	}
	m := &model.Measured{Provider: c.Provider, Kernel: c.Kernel, Table: table, Source: c.Source}
	if m.Rows, err = keptRows(table, string(text)); err != nil {
		return nil, err
	}
	if c.Source == "" {
		old, err := bounded.Read(filepath.Join(t.measured(), m.File()))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("new measurement; describe the measured system with --source")
		} else if err != nil {
			return nil, err
		}
		before, err := model.ParseMeasured(m.File(), old)
		if err != nil {
			return nil, err
		}
		if !reflect.DeepEqual(before.Rows, m.Rows) {
			return nil, errors.New("answers differ from headers/measured; describe the measured system " +
				"with --source")
		}
		m.Source = before.Source
	}
	return m, m.Check()
}

// keptRows returns the rows whose opcode has a name and whose flags are kept. Inline data is kept only with its flag.
func keptRows(table, text string) ([][]string, error) {
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("empty file")
	}
	at := map[string]int{}
	for i, column := range all[0] {
		at[column] = i
	}
	columns := model.MeasuredColumns[table]
	for _, column := range columns {
		if _, ok := at[column]; !ok {
			return nil, fmt.Errorf("no column %s", column)
		}
	}
	var kept [][]string
	for _, row := range all[1:] {
		if flags, ok := at["flags"]; ok && !slices.Contains(model.MeasuredFlags, row[flags]) &&
			!slices.Contains(model.MeasuredMoreFlags, row[flags]) {
			continue
		}
		if setter, ok := at["setter"]; ok && row[setter] == "inline" && !strings.Contains(row[at["flags"]], "INLINE") {
			continue
		}
		if opcode, ok := at["opcode"]; ok && row[opcode] != "" && row[opcode][0] >= '0' && row[opcode][0] <= '9' {
			continue
		}
		var out []string
		for _, column := range columns {
			out = append(out, row[at[column]])
		}
		kept = append(kept, out)
	}
	return kept, nil
}
