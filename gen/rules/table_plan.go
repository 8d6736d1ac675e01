package rules

import (
	"fmt"
	"sync"
)

// tables resolves the tables of the package, and takes their Go names.
func (r *resolver) tables() {
	if contains(r.pkg.Tables, "post_send") {
		errata, err := DefaultPostSendErrata()
		if err == nil {
			r.plan.PostSend, err = ResolvePostSend(r.in.Release, errata)
		}
		if err != nil {
			r.errs = append(r.errs, err)
			return
		}
		r.plan.Grids = r.plan.PostSend.Grids()
	}
	if contains(r.pkg.Tables, "grids") {
		r.grids()
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

// grids resolves the files of gen/rules/tables, and what follows from them.
func (r *resolver) grids() {
	files, err := DefaultGridFiles()
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	grids, err := ResolveGrids(r.in.Release, r.pkg.Name, files)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	r.plan.Grids = append(r.plan.Grids, grids...)
	for _, wr := range grids {
		if wr.Name != "wr_post" || r.plan.PostSend == nil {
			continue
		}
		g, err := wrFlags(r.in.Release, r.plan.PostSend, wr)
		if err != nil {
			r.errs = append(r.errs, err)
			return
		}
		r.plan.Grids = append(r.plan.Grids, g)
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
