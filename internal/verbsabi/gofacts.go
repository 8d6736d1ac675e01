// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// compareModel lists the differences between a Go package and its model. There are none unless generated files were
// edited or the generator is wrong.
func compareModel(g *GoFacts, r *model.Release, target string) []Difference {
	x := newIndex(r, target)
	var all []Difference
	differ := func(item Item, want, have string) {
		if want != have {
			item.Want = have
			all = append(all, Difference{Item: item, Headers: want,
				Why: "the generated package differs from its model; run make generate"})
		}
	}
	have := map[string]bool{}
	for _, rec := range g.Records {
		name := model.Record{Kind: model.RecordKind(rec.Kind), Tag: rec.C}
		have[name.CName()] = true
		m := x.records[name.CName()]
		item := Item{Kind: RecordItem, Name: rec.C}
		if m == nil {
			item.Fact = "declaration"
			differ(item, "", rec.Kind)
			continue
		}
		item.Fact = "size"
		differ(item, fmt.Sprint(m.size), fmt.Sprint(rec.Size))
		item.Fact = "alignment"
		differ(item, fmt.Sprint(m.align), fmt.Sprint(rec.Align))
		for _, f := range rec.Fields {
			item := Item{Kind: FieldItem, Name: rec.C, Path: f.Path, Fact: "offset, size"}
			have[rec.C+"."+f.Path] = true
			want := ""
			if o, ok := m.byPath[f.Path]; ok {
				want = fmt.Sprintf("%d, %d", o.offset, o.size)
			}
			differ(item, want, fmt.Sprintf("%d, %d", f.Offset, f.Size))
		}
		for _, f := range m.members {
			if start, ok := rec.Trailing[rules.FieldName(f.field.Name)]; ok && f.size == 0 {
				have[rec.C+"."+f.path] = true
				differ(Item{Kind: FieldItem, Name: rec.C, Path: f.path, Fact: "offset"}, fmt.Sprint(f.offset),
					fmt.Sprint(start))
			}
		}
	}
	for _, c := range g.Constants {
		have[c.Name] = true
		want := ""
		if v, ok := x.values[c.Name]; ok {
			want = v.enum + "," + string(v.value)
		}
		value := c.Value
		if v := x.values[c.Name]; v.pointer {
			value = model.IntOf(int64(c.Value.Uint64()))
			want = v.enum + "," + string(model.IntOf(int64(v.value.Uint64())))
		}
		differ(Item{Kind: ConstantItem, Name: c.Enum, Path: c.Name, Fact: "value"}, want, c.Enum+","+string(value))
	}
	for _, name := range x.order {
		if rec := x.records[name]; rec != nil && rec.rec.Kind != model.Incomplete {
			if !have[name] {
				differ(Item{Kind: RecordItem, Name: rec.rec.Tag, Fact: "declaration"}, string(rec.rec.Kind), "")
				continue
			}
			for _, m := range rec.members {
				if m.field.Bits == nil && !have[rec.rec.Tag+"."+m.path] { // a bitfield has no address
					differ(Item{Kind: FieldItem, Name: rec.rec.Tag, Path: m.path, Fact: "offset, size"},
						fmt.Sprintf("%d, %d", m.offset, m.size), "")
				}
			}
		}
		if v, ok := x.values[name]; ok && !have[name] {
			differ(Item{Kind: ConstantItem, Name: v.enum, Path: name, Fact: "value"}, v.enum+","+string(v.value), "")
		}
	}
	return all
}
