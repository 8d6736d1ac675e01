// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/gen/model"
)

// tables resolves the tables of the package and claims their Go names.
func (r *resolver) tables() {
	all, err := planTables(r.in.Release, r.pkg)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	for _, g := range all {
		if g.Part == nil {
			r.plan.Grids = append(r.plan.Grids, g)
		} else {
			r.plan.Parts = append(r.plan.Parts, g)
		}
	}
	if slices.ContainsFunc(r.plan.Grids, func(g *Grid) bool { return isMeasured(g.Name) }) {
		rows, err := DefaultDisagreements()
		if err == nil {
			var measured []*Grid
			measured, err = MeasuredGrids(r.in.Measured, rows, r.plan.Grids)
			r.plan.Grids = append(r.plan.Grids, measured...)
		}
		if err != nil {
			r.errs = append(r.errs, err)
		}
	}
	owner := map[string]string{}
	for _, g := range r.plan.Grids {
		for _, name := range g.goNames() {
			if owner[name] != "" {
				r.errs = append(r.errs, fmt.Errorf("tables %s and %s both have the Go name %s", owner[name], g.Name,
					name))
			}
			owner[name] = g.Name
		}
	}
}

// planTables resolves the tables of a package for a release. If some rows are invalid, it returns an error that names
// them, and the tables without them.
func planTables(r *model.Release, p Package) ([]*Grid, error) {
	files, err := DefaultGridFiles()
	if err != nil {
		return nil, err
	}
	return ResolveGrids(r, p.Name, files)
}

// GridsOf returns the tables of a release for comparison. Rows are written for the primary release: names that this
// release lacks are left out, and so are tables that do not apply to it. unplanned holds the errors of tables that
// apply but cannot be built.
func GridsOf(r *model.Release) (all []*Grid, unplanned map[string]error) {
	unplanned = map[string]error{}
	var parts []string
	for _, p := range Packages {
		grids, err := planTables(r, p) // other errors are about rows that are left out
		all = append(all, slices.DeleteFunc(grids, func(g *Grid) bool { return g.Part != nil })...)
		whyUnplanned(err, unplanned)
	}
	for name, base := range gridBases {
		for _, need := range base.needs {
			if why := unplanned[need]; why != nil && unplanned[name] == nil {
				unplanned[name] = why
			}
		}
	}
	files, _ := DefaultGridFiles()
	for _, f := range files {
		if f.Part != nil {
			parts = append(parts, f.Name)
		}
	}
	for _, name := range parts {
		delete(unplanned, name)
	}
	return all, unplanned
}

// unplannedError means that a table cannot be built for a release.
type unplannedError struct {
	table string
	error
}

func (e unplannedError) Unwrap() error { return e.error }

func whyUnplanned(err error, by map[string]error) {
	switch e := err.(type) {
	case unplannedError:
		by[e.table] = e.error
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			whyUnplanned(one, by)
		}
	}
}

// tableNames returns the exported names of all tables, which must not occur in headers.
var tableNames = sync.OnceValue(func() []string {
	all := []string{"Answer", "AnswerUnspecified", "AnswerYes", "AnswerNo", "AnswerNotInVerb", "AnswerNeedsCapability",
		"Validity"}
	files, _ := DefaultGridFiles() // errors are reported when the tables are resolved
	for _, f := range files {
		all = append(all, f.goNames()...)
	}
	return all
})

// goNames returns the exported names that the table adds to its package.
func (g *Grid) goNames() []string {
	if g.Part != nil {
		return nil
	}
	all := []string{g.Func}
	if len(g.Values) > 0 {
		all = append(all, g.Result)
	}
	if g.All.Func != "" {
		all = append(all, g.All.Func)
	}
	for _, l := range g.Items {
		all = append(all, l.Func)
	}
	if g.Check.Func != "" {
		all = append(all, g.Check.Func)
	}
	for _, t := range g.Types {
		all = append(all, t.Name)
		for _, item := range t.Items {
			all = append(all, item.Go)
		}
	}
	return all
}
