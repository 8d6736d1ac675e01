package rules

import (
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/goverbs/gen/model"
)

// tables resolves the tables of the package, and takes their Go names.
func (r *resolver) tables() {
	var err error
	if r.plan.PostSend, r.plan.Grids, err = planTables(r.in.Release, r.pkg); err != nil {
		r.errs = append(r.errs, err)
		return
	}
	if contains(r.pkg.Tables, "post_send") {
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
				r.errs = append(r.errs, fmt.Errorf("tables %s and %s both have the Go name %s", owner[name], g.Name, name))
			}
			owner[name] = g.Name
		}
	}
}

// planTables resolves the tables of a package for a release. With an error it gives what there is without the rows that the error
// names.
func planTables(r *model.Release, p Package) (post *PostSend, grids []*Grid, err error) {
	var errs []error
	if contains(p.Tables, "post_send") {
		errata, err := DefaultPostSendErrata()
		if err != nil {
			return nil, nil, err
		}
		post, err = ResolvePostSend(r, errata)
		if post == nil {
			err = unplannedError{"post_send", err}
		} else {
			grids = post.Grids()
		}
		errs = append(errs, err)
	}
	if contains(p.Tables, "grids") {
		files, err := DefaultGridFiles()
		if err != nil {
			return nil, nil, err
		}
		filed, err := ResolveGrids(r, p.Name, files)
		errs = append(errs, err)
		grids = append(grids, filed...)
		for _, wr := range filed {
			if wr.Name == "wr_post" && post != nil {
				g, err := wrFlags(r, post, wr)
				if g == nil {
					err = unplannedError{"wr_flags", err}
				} else {
					grids = append(grids, g)
				}
				errs = append(errs, err)
			}
		}
	}
	return post, grids, errors.Join(errs...)
}

// GridsOf are the tables of a release for comparison. The rows are written for the primary release: what a row names and this
// release does not have is left out, and a table that this release has nothing for is not there. unplanned are the tables that it has
// something for which they could not be made of, and why.
func GridsOf(r *model.Release) (all []*Grid, unplanned map[string]error) {
	unplanned = map[string]error{}
	for _, p := range Packages {
		_, grids, err := planTables(r, p) // its other errors are about rows that are left out
		all = append(all, grids...)
		whyUnplanned(err, unplanned)
	}
	for _, made := range [][2]string{{"send_flags", "post_send"}, {"wr_flags", "post_send"}, {"wr_flags", "wr_post"}} {
		if why := unplanned[made[1]]; why != nil {
			unplanned[made[0]] = why
		}
	}
	return all, unplanned
}

// unplannedError tells that a table could not be made of what a release says.
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

// tableNames are the exported names of all tables: no header may take one.
var tableNames = sync.OnceValue(func() []string {
	all := []string{"Answer", "AnswerUnspecified", "AnswerYes", "AnswerNo", "AnswerNotInVerb", "AnswerNeedsCapability", "Validity"}
	for _, g := range (&PostSend{}).Grids() {
		all = append(all, g.goNames()...)
	}
	all = append(all, wrFlagsFunc)
	files, _ := DefaultGridFiles() // its errors are told where the tables are resolved
	for _, f := range files {
		all = append(all, f.goNames()...)
	}
	return all
})

// goNames are the exported names that the table adds to its package.
func (g *Grid) goNames() []string {
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
