package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

type function struct {
	*model.Func
	header string
}

func functions(r *model.Release) (all []function, by map[string]function) {
	by = map[string]function{}
	for i := range r.Headers {
		for k := range r.Headers[i].Funcs {
			f := function{&r.Headers[i].Funcs[k], r.Headers[i].Name}
			all = append(all, f)
			by[f.Name] = f
		}
	}
	return all, by
}

func (c *comparison) functions() {
	was, before := functions(c.old.Release)
	is, now := functions(c.new.Release)
	macro := map[string]bool{}
	for _, h := range c.new.Headers {
		for _, m := range h.Macros {
			macro[m.Name] = true
		}
	}
	for _, n := range is {
		o, had := before[n.Name]
		if !had {
			c.add(Entry{n.header, Function, n.Name, Added, "", linkage(n) + n.Declare(n.Name), Additive, "new"})
			continue
		}
		c.function(o, n)
	}
	for _, o := range was {
		if _, has := now[o.Name]; has {
			continue
		}
		why := "gone"
		if macro[o.Name] {
			why = "a macro of that name stands for something else now; the function is no longer declared"
		}
		c.add(Entry{o.header, Function, o.Name, Removed, linkage(o) + o.Declare(o.Name), "", Breaking, why})
	}
}

func linkage(f function) string {
	if f.Inline != nil {
		return "inline "
	}
	return ""
}

func (c *comparison) function(o, n function) {
	if o.header != n.header {
		c.add(Entry{n.header, Function, n.Name, Moved, o.header, n.header, None, "declared in another header"})
	}
	if was, is := o.Declare(o.Name), n.Declare(n.Name); was != is {
		v, why := protoVerdict(&o.Proto, &n.Proto)
		change := Retyped
		if v == None {
			change = Renamed
		}
		c.add(Entry{n.header, Function, n.Name, change, was, is, v, why})
	}
	switch {
	case o.Inline == nil && n.Inline != nil:
		c.add(Entry{n.header, Dispatch, n.Name, Changed, "extern", describe(n.Inline), Breaking, "programs built before link against a symbol that the headers no longer promise"})
	case o.Inline != nil && n.Inline == nil:
		c.add(Entry{n.header, Dispatch, n.Name, Changed, describe(o.Inline), "extern", Additive, "programs built from now on need a library that exports it"})
	case o.Inline != nil:
		c.dispatch(o, n)
	}
}

// dispatch compares how an inline function gets to what it calls. Programs built before go on calling what they did.
func (c *comparison) dispatch(o, n function) {
	was, is := describe(o.Inline), describe(n.Inline)
	if was == is {
		return
	}
	v, why := Additive, "programs built before call the old way, which stays unless another entry says that its slot is gone"
	switch {
	case o.Inline.Absent != n.Inline.Absent || o.Inline.Errors != n.Inline.Errors:
		v, why = Breaking, "callers are told of a missing slot in another way"
	case o.Inline.Guard != "" && n.Inline.Guard == "":
		v, why = Breaking, "the slot is no longer guarded: it may lie behind the end of an older library's structure"
	}
	c.add(Entry{n.header, Dispatch, n.Name, Changed, was, is, v, why})
}

// describe puts an inline function's way into words.
func describe(in *model.Inline) string {
	parts := []string{string(in.Kind)}
	slot := in.Slot
	if in.Struct != "" {
		slot = in.Struct + "." + slot
	}
	for _, p := range []struct{ name, text string }{
		{"object", in.Object}, {"slot", slot}, {"guard", in.Guard}, {"absent", in.Absent}, {"errors", string(in.Errors)},
		{"calls", strings.Join(in.Calls, " ")}, {"arguments", strings.Join(in.Args, ", ")},
	} {
		if p.text != "" {
			parts = append(parts, p.name+" "+p.text)
		}
	}
	return strings.Join(parts, "; ")
}

// protoVerdict judges two types of a function that are spelled differently.
func protoVerdict(o, n *model.Proto) (Verdict, string) {
	if o.Variadic != n.Variadic || len(o.Params) != len(n.Params) {
		return Breaking, "other parameters"
	}
	v, why := None, "names of parameters bear no meaning"
	if o.Result != n.Result {
		v, why = Breaking, "another result"
		if n.Result == withoutConst(o.Result) {
			v, why = Additive, "what it returns may be written to"
		}
	}
	for i, p := range o.Params {
		q := n.Params[i]
		pv, pwhy := None, ""
		switch {
		case (p.Func == nil) != (q.Func == nil):
			pv = Breaking
		case p.Func != nil:
			if pv, _ = protoVerdict(p.Func, q.Func); pv == Additive {
				pv = Breaking // a caller's function has the old type
			}
		case p.Type == q.Type:
			continue
		case withoutConst(q.Type) == p.Type:
			pv, pwhy = Additive, "it promises not to write"
		default:
			pv = Breaking
		}
		if pv == Breaking {
			pwhy = fmt.Sprintf("another type of parameter %d", i+1)
		}
		if pv > v {
			v, why = pv, pwhy
		}
	}
	return v, why
}

// tables compares what man pages say. A release read without its pages says nothing.
func (c *comparison) tables() {
	for _, r := range []*model.Release{c.old.Release, c.new.Release} {
		if len(r.Tables) == 0 && len(r.Flags) == 0 {
			c.note("%s was read without man pages: tables are not compared", r.Name)
			return
		}
	}
	by := map[string]*model.Table{}
	for i := range c.old.Tables {
		by[c.old.Tables[i].Name] = &c.old.Tables[i]
	}
	for i := range c.new.Tables {
		n := &c.new.Tables[i]
		if o := by[n.Name]; o != nil {
			c.table(o, n)
		} else {
			c.add(Entry{n.Page, Row, n.Name, Added, "", fmt.Sprintf("table of %d rows", len(n.Rows)), Additive, "new"})
		}
		delete(by, n.Name)
	}
	for i := range c.old.Tables {
		if o := &c.old.Tables[i]; by[o.Name] != nil {
			c.add(Entry{o.Page, Row, o.Name, Removed, fmt.Sprintf("table of %d rows", len(o.Rows)), "", Breaking, "gone"})
		}
	}
	c.flags()
}

func (c *comparison) table(o, n *model.Table) {
	for _, col := range n.Columns {
		if !slices.Contains(o.Columns, col) {
			c.add(Entry{n.Page, Column, n.Name + ": " + col, Added, "", "", Additive, "new"})
		}
	}
	for _, col := range o.Columns {
		if !slices.Contains(n.Columns, col) {
			c.add(Entry{n.Page, Column, n.Name + ": " + col, Removed, "", "", Breaking, "gone"})
		}
	}
	before, after := rowsOf(o), rowsOf(n)
	for _, row := range after.order {
		was, had := before.cells[row]
		name := n.Name + ": " + row
		if !had {
			c.add(Entry{n.Page, Row, name, Added, "", strings.Join(after.words(row), ", "), Additive, "new"})
			continue
		}
		for _, col := range n.Columns {
			old, shared := was[col]
			is := after.cells[row][col]
			if !shared || old == is {
				continue
			}
			v, why := Breaking, "the page says something else"
			if old == "no" || old == "" {
				v, why = Additive, "was not valid"
			} else if is == "no" || is == "" {
				why = "was valid"
			}
			c.add(Entry{n.Page, Cell, name + ", " + col, Changed, old, is, v, why})
		}
	}
	for _, row := range before.order {
		if _, has := after.cells[row]; !has {
			c.add(Entry{n.Page, Row, n.Name + ": " + row, Removed, strings.Join(before.words(row), ", "), "", Breaking, "gone"})
		}
	}
}

// rows are a table's rows by name; of rows with one name the second is "name (2)".
type rows struct {
	columns []string
	order   []string
	cells   map[string]map[string]string
}

func rowsOf(t *model.Table) rows {
	r := rows{columns: t.Columns, cells: map[string]map[string]string{}}
	for _, row := range t.Rows {
		name := row.Name
		for i := 2; r.cells[name] != nil; i++ {
			name = fmt.Sprintf("%s (%d)", row.Name, i)
		}
		r.order = append(r.order, name)
		r.cells[name] = map[string]string{}
		for i, cell := range row.Cells {
			r.cells[name][t.Columns[i]] = cell
		}
	}
	return r
}

// words are the cells of a row that say something other than no.
func (r rows) words(row string) []string {
	var all []string
	for _, col := range r.columns {
		if cell := r.cells[row][col]; cell != "no" && cell != "" {
			all = append(all, col+" "+cell)
		}
	}
	return all
}

// flags compares the rules that pages state for single flags.
func (c *comparison) flags() {
	before := map[string]model.Flag{}
	for _, f := range c.old.Flags {
		before[f.Name] = f
	}
	for _, n := range c.new.Flags {
		o, had := before[n.Name]
		delete(before, n.Name)
		if !had {
			c.add(Entry{n.Page, FlagRule, n.Name, Added, "", rule(n), Additive, "new"})
			continue
		}
		if rule(o) == rule(n) {
			continue
		}
		v, why := Breaking, "valid in fewer cases, or in others"
		if wider(o.QPTypes, n.QPTypes) && wider(o.Opcodes, n.Opcodes) && o.SigAll == n.SigAll && (o.Capability == n.Capability || n.Capability == "") {
			v, why = Additive, "valid in more cases"
		}
		c.add(Entry{n.Page, FlagRule, n.Name, Changed, rule(o), rule(n), v, why})
	}
	for _, o := range c.old.Flags {
		if _, gone := before[o.Name]; gone {
			c.add(Entry{o.Page, FlagRule, o.Name, Removed, rule(o), "", Breaking, "gone"})
		}
	}
}

// wider reports whether a list allows all that another did; an empty one sets no limit.
func wider(old, new []string) bool {
	return len(new) == 0 || len(old) > 0 && !slices.ContainsFunc(old, func(s string) bool { return !slices.Contains(new, s) })
}

func rule(f model.Flag) string {
	var parts []string
	for _, l := range []struct {
		name string
		list []string
	}{{"on", f.QPTypes}, {"with", f.Opcodes}} {
		if len(l.list) > 0 {
			parts = append(parts, l.name+" "+strings.Join(l.list, " "))
		}
	}
	if f.Capability != "" {
		parts = append(parts, "needs "+f.Capability)
	}
	if f.SigAll {
		parts = append(parts, "without sq_sig_all")
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, "; ")
}
