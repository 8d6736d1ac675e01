// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"strings"

	"github.com/goverbs/goverbs/gen/grids"
	"github.com/goverbs/goverbs/gen/rules"
)

type tablesCmd struct {
	Format string   `help:"Output format." enum:"text,json,html" default:"text"`
	Table  []string `help:"Only these tables." placeholder:"NAME"`
	Out    string   `help:"Output file (default: standard output)." placeholder:"FILE"`
}

// Run prints the validity tables.
func (c *tablesCmd) Run(t tree) error {
	res, err := t.result()
	if err != nil {
		return err
	}
	all, err := rules.Tables(res.Plans, c.Table...)
	if err != nil {
		return err
	}
	if c.Out == "" {
		return grids.Write(os.Stdout, c.Format, all)
	}
	var b strings.Builder
	if err := grids.Write(&b, c.Format, all); err != nil {
		return err
	}
	return replaceFile(c.Out, []byte(b.String()))
}
