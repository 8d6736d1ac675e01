// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/gen/diff"
	"github.com/goverbs/goverbs/gen/model"
)

// Compare lists the differences between installed headers (theirs) and the release that the Go package was generated
// from (ours), and determines whether each is compatible. recorded contains the known releases, which show when
// declarations appeared and which records may grow. theirs.Name is the release of the installed headers, or "" if
// unknown.
func Compare(ours, theirs *model.Release, recorded []*model.Release, target string) []Difference {
	return compareAs(ours, theirs, recorded, target, theseHeaders)
}

// Names of the two kinds of layouts in messages.
const (
	theseHeaders = "these headers"
	theseTypes   = "this debug information"
)

// compareAs is Compare for other kinds of layouts. where is their name in messages.
func compareAs(ours, theirs *model.Release, recorded []*model.Release, target, where string) []Difference {
	c := &comparer{ours: newIndex(ours, target), theirs: newIndex(theirs, target), where: where}
	for _, side := range []*model.Release{ours, theirs} {
		c.arrays = append(c.arrays, sync.OnceValues(func() (map[string][]string, error) { return diff.Arrays(side) }))
	}
	for _, r := range slices.SortedFunc(slices.Values(recorded),
		func(a, b *model.Release) int { return compareReleases(a.Name, b.Name) }) {
		c.past = append(c.past, newIndex(r, target))
	}
	for _, key := range c.ours.order {
		if _, i := c.past.since(key); c.theirs.known[key] {
			c.floor = max(c.floor, i)
		}
	}
	for _, key := range c.ours.order {
		if c.theirs.known[key] {
			c.both(key)
		} else {
			c.missing(c.item(c.ours, key), key)
		}
	}
	for _, key := range c.theirs.order {
		if !c.ours.known[key] {
			c.added(c.item(c.theirs, key), key)
		}
	}
	return c.all
}

// Identify returns the recorded release that equals the headers, or "". If several releases have the same headers, it
// prefers the stated one.
func Identify(headers *model.Release, recorded []*model.Release, target, stated string) string {
	found := ""
	for _, r := range recorded {
		if (found == "" || r.Name == stated) && len(Compare(r, headers, []*model.Release{r}, target)) == 0 {
			found = r.Name
		}
	}
	return found
}

type comparer struct {
	ours, theirs *index
	past         history
	// index of the newest recorded release with a declaration that the installed headers have and older releases lack
	floor int
	// for each side: where programs and the library share arrays of a record
	arrays []func() (map[string][]string, error)
	where  string // name of theirs in messages
	all    []Difference
}

// are returns text such as "these headers are older".
func (c *comparer) are(what string) string {
	if c.where == theseHeaders {
		return c.where + " are " + what
	}
	return c.where + " is " + what
}

func (c *comparer) add(item Item, theirs, since string, compatible bool, why string) {
	c.all = append(c.all, Difference{Item: item, Headers: theirs, Since: since, Compatible: compatible, Why: why,
		where: c.where})
}

// item names a declaration of one side.
func (c *comparer) item(x *index, key string) Item {
	item := Item{Fact: "declaration", Want: "declared"}
	switch {
	case x.records[key] != nil:
		item.Kind, item.Name = RecordItem, x.records[key].rec.Tag
	case x.enums[key] != nil:
		item.Kind, item.Name = EnumItem, x.enums[key].Tag
	case x.funcs[key] != nil:
		item.Kind, item.Name = FuncItem, key
	case x.macros[key] != nil && x.values[key].macro:
		item.Kind, item.Name, item.Path = ConstantItem, "-", key
	case x.macros[key] != nil:
		item.Kind, item.Name, item.Path = MacroItem, "-", key
	default:
		item.Kind, item.Name, item.Path = EnumeratorItem, x.values[key].enum, key
	}
	return item
}

// missing adds a declaration that the installed headers lack, because they are older or because it was removed.
func (c *comparer) missing(item Item, key string) {
	since, i := c.past.since(key)
	if c.older(i) {
		c.add(item, "", since, true, c.are("older"))
		return
	}
	why := "removed from " + c.where
	if c.theirs.release == "" && i == 0 {
		they := "they are"
		if c.where != theseHeaders {
			they = "it is"
		}
		why += ", unless " + they + " older than every recorded release; state it with -release"
	}
	c.add(item, "", since, false, why)
}

// older reports whether the installed headers may be older than a recorded release. They are not if they have a newer
// declaration, even if the stated release is older.
func (c *comparer) older(i int) bool {
	if i < 0 || i < c.floor {
		return false
	}
	if c.theirs.release != "" {
		return compareReleases(c.theirs.release, c.past[i].release) < 0
	}
	return i > 0
}

func (c *comparer) added(item Item, key string) {
	since, i := c.past.since(key)
	why := c.are("newer")
	if i >= 0 {
		why = "of another release than the Go package"
	}
	item.Want = ""
	c.add(item, "declared", since, true, why)
}

// both compares a declaration that exists on both sides.
func (c *comparer) both(key string) {
	if o, t := c.ours.records[key], c.theirs.records[key]; o != nil && t != nil {
		c.record(key, o, t)
	}
	if o, t := c.ours.enums[key], c.theirs.enums[key]; o != nil && t != nil && o.Size != t.Size {
		item := c.item(c.ours, key)
		item.Fact, item.Want = "size", fmt.Sprint(o.Size)
		c.add(item, fmt.Sprint(t.Size), "", false, "the size differs")
	}
	if o, t := c.ours.funcs[key], c.theirs.funcs[key]; o != nil && t != nil {
		c.function(o, t)
	}
	o, ours := c.ours.values[key]
	t, theirs := c.theirs.values[key]
	switch {
	case ours && theirs:
		c.value(key, o, t)
	case ours:
		c.missing(c.item(c.ours, key), key)
	}
	c.macro(key)
}

func (c *comparer) value(key string, o, t value) {
	item := c.item(c.ours, key)
	item.Fact = "value"
	if o.value.Uint64() != t.value.Uint64() || (!o.pointer && o.value.Negative() != t.value.Negative()) {
		item.Want = string(o.value)
		if o.bound && t.bound {
			c.add(item, string(t.value), "", true, "it ends its enumeration, which has more or fewer values")
			return
		}
		c.add(item, string(t.value), "", false, "the value differs")
		return
	}
	if o.enum != t.enum {
		item.Fact, item.Want = "enum", o.enum
		c.add(item, t.enum, "", true, "declared elsewhere, with the same value")
	}
}

func (c *comparer) macro(key string) {
	o, t := c.ours.macros[key], c.theirs.macros[key]
	if o == nil {
		return
	}
	item := Item{Kind: AliasItem, Name: "-", Path: key}
	switch {
	case t == nil && o.Kind == model.FuncLike:
		item.Kind, item.Fact, item.Want = MacroItem, "declaration", "macro"
		c.add(item, "function", c.hiddenSince(key), true, "one of them hides the function behind a macro")
	case t != nil && o.Kind == model.Alias && t.Kind == model.Alias && o.Target != t.Target:
		item.Fact, item.Want = "target", o.Target
		c.add(item, t.Target, "", false, "the target differs")
	case t != nil && o.Kind != t.Kind:
		item.Fact, item.Want = "kind", string(o.Kind)
		_, value := c.theirs.values[key] // its value has been compared
		c.add(item, string(t.Kind), "", value, "the kind of macro differs")
	}
}

// hiddenSince returns the first recorded release in which a macro hides a function.
func (c *comparer) hiddenSince(key string) string {
	for _, x := range c.past {
		if x.macros[key] != nil {
			return x.release
		}
	}
	return ""
}

func (c *comparer) function(o, t *model.Func) {
	item := Item{Kind: FuncItem, Name: o.Name, Fact: "prototype"}
	item.Want = spellProto(&o.Proto)
	if theirs := spellProto(&t.Proto); theirs != item.Want {
		c.add(item, theirs, "", false, "the type differs")
		return
	}
	if (o.Inline == nil) == (t.Inline == nil) {
		return
	}
	item.Fact, item.Want = "linkage", linkage(o)
	if t.Inline == nil { // Go implements it
		c.add(item, linkage(t), "", true, "now a symbol of the library")
		return
	}
	known := slices.ContainsFunc(c.past,
		func(x *index) bool { f := x.funcs[o.Name]; return f != nil && f.Inline != nil })
	c.add(item, linkage(t), "", known, "the library may have no symbol of that name")
}

func linkage(f *model.Func) string {
	if f.Inline != nil {
		return "inline"
	}
	return "extern"
}

// spellProto formats a prototype without parameter names, which do not affect callers.
func spellProto(p *model.Proto) string {
	s, err := protoType(p, "(*)")
	if err != nil {
		return err.Error()
	}
	return s
}
