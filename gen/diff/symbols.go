// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// libraries compares the symbols that libraries export. If only one release has recorded symbols, it adds a note
// instead.
func (c *comparison) libraries() {
	for _, r := range []*model.Release{c.old.Release, c.new.Release} {
		if len(r.Libraries) == 0 && len(c.old.Libraries)+len(c.new.Libraries) > 0 {
			c.note("%s was read without libraries: symbols are not compared", r.Name)
			return
		}
	}
	for i := range c.new.Libraries {
		n := &c.new.Libraries[i]
		if o := c.old.Release.Library(n.Name); o != nil {
			c.versions(o, n)
			c.symbols(o, n)
		} else {
			c.add(Entry{n.Name, Library, n.Name, Added, "", symbolCount(n), Additive, "new"})
		}
	}
	for i := range c.old.Libraries {
		if o := &c.old.Libraries[i]; c.new.Release.Library(o.Name) == nil {
			c.add(Entry{o.Name, Library, o.Name, Removed, symbolCount(o), "", Breaking,
				"programs linked with it do not start"})
		}
	}
}

func symbolCount(l *model.Library) string { return counted(len(l.Symbols), "symbol") }

// inner explains why a change to a private symbol does not affect programs.
const inner = "used only by libraries of the same release"

func (c *comparison) private(version string) bool {
	return version != "" && c.j.matches("private", version)
}

func (c *comparison) versions(o, n *model.Library) {
	for _, v := range n.Versions {
		switch {
		case o.Defines(v.Name):
		case c.private(v.Name):
			c.add(Entry{n.Name, SymbolVersion, v.Name, Added, "", "", None, inner})
		default:
			c.add(Entry{n.Name, SymbolVersion, v.Name, Added, "", "", Additive,
				"programs that use its symbols do not start with an older library"})
		}
	}
	for _, v := range o.Versions {
		switch {
		case n.Defines(v.Name):
		case c.private(v.Name):
			c.add(Entry{o.Name, SymbolVersion, v.Name, Removed, "", "", None, inner})
		default:
			c.add(Entry{o.Name, SymbolVersion, v.Name, Removed, "", "", Breaking,
				"programs that use its symbols do not start"})
		}
	}
}

// symbols compares the symbols of a library. Private symbols match by name alone, since their versions change between
// releases. A symbol that a header declares is not private, whatever its version, since programs use it.
func (c *comparison) symbols(o, n *model.Library) {
	_, was := functions(c.old.Release)
	_, is := functions(c.new.Release)
	private := func(s model.Symbol) bool {
		_, had := was[s.Name]
		_, has := is[s.Name]
		return !had && !has && c.private(s.Version)
	}
	find := func(l *model.Library, s model.Symbol) *model.Symbol {
		i := slices.IndexFunc(l.Symbols, func(t model.Symbol) bool {
			return t.Name == s.Name && (t.Version == s.Version || private(t) && private(s))
		})
		if i < 0 {
			return nil
		}
		return &l.Symbols[i]
	}
	add := func(s model.Symbol, change Change, old, new string, v Verdict, why string) {
		if private(s) {
			v, why = None, inner
		}
		c.add(Entry{n.Name, Symbol, s.String(), change, old, new, v, why})
	}
	for _, s := range n.Symbols {
		before := find(o, s)
		if before == nil {
			add(s, Added, "", content(s), Additive, "new")
			continue
		}
		if before.Old != s.Old {
			add(s, Changed, role(*before), role(s), Additive,
				"existing programs keep their symbol; newly linked programs get another")
		}
		if old, new := content(*before), content(s); old != new {
			add(s, Retyped, old, new, Breaking, "existing programs expect the old type")
		}
	}
	for _, s := range o.Symbols {
		if find(n, s) == nil {
			add(s, Removed, content(s), "", Breaking, "programs that use it do not start, or fail when they call it")
		}
	}
}

// content returns the type of a symbol and, for an object, its size.
func content(s model.Symbol) string {
	if s.Object {
		return "object of " + counted(int(s.Size), "byte")
	}
	return "function"
}

func role(s model.Symbol) string {
	if s.Old {
		return "old version"
	}
	return "default version"
}
