package rules

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
	if len(r.pkg.Tables) > 0 {
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
	}
	if len(r.plan.Grids) > 0 {
		for _, name := range []string{"Answer", "AnswerUnspecified", "AnswerYes", "AnswerNo", "AnswerNotInVerb", "AnswerNeedsCapability", "Validity"} {
			r.claim(name, "the tables")
		}
	}
	for _, g := range r.plan.Grids {
		for _, name := range g.goNames() {
			r.claim(name, "table "+g.Name)
		}
	}
}

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
	for _, t := range g.Types {
		all = append(all, t.Name)
		for _, item := range t.Items {
			all = append(all, item.Go)
		}
	}
	return all
}
