// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/rules"
)

type tablesCmd struct {
	Format string   `help:"Form of the output." enum:"text,json,html" default:"text"`
	Table  []string `help:"Only these tables." placeholder:"NAME"`
	Out    string   `help:"File to write; otherwise standard output." placeholder:"FILE"`
}

// Run prints the tables of what is valid.
func (c *tablesCmd) Run(t tree) error {
	res, err := t.result()
	if err != nil {
		return err
	}
	var grids []*rules.Grid
	var names []string
	for _, plan := range res.Plans {
		for _, g := range plan.Grids {
			names = append(names, g.Name)
			if len(c.Table) == 0 || contains(c.Table, g.Name) {
				grids = append(grids, g)
			}
		}
	}
	for _, name := range c.Table {
		if !contains(names, name) {
			return fmt.Errorf("no table %s; there are %s", name, strings.Join(names, ", "))
		}
	}
	write := map[string]func(io.Writer, []*rules.Grid) error{"text": emit.TablesText, "json": emit.TablesJSON,
		"html": emit.TablesHTML}[c.Format]
	if c.Out == "" {
		return write(os.Stdout, grids)
	}
	var b strings.Builder
	if err := write(&b, grids); err != nil {
		return err
	}
	return replaceFile(c.Out, []byte(b.String()))
}
