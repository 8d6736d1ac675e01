// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// GoFacts is what generated Go packages have on the target that this program was compiled for, under the names of C.
type GoFacts struct {
	Records   []GoRecord
	Constants []GoConstant
}

// GoRecord is a Go type that stands for a C structure, union or opaque type.
type GoRecord struct {
	C, Kind, Go string
	Size, Align int64
	Fields      []GoField
	Trailing    map[string]int64 // where the arrays without a length start, by the Go methods that give them
}

// GoField is a member as Go lays it out.
type GoField struct {
	Path         string // "wr.rdma.rkey"
	Offset, Size int64
}

// GoConstant is a Go constant that stands for an enumerator or a macro.
type GoConstant struct {
	Enum, Name string // Enum is "-" for an untagged enum and for a macro
	Value      model.Int
}

// Measure makes one value of every type and takes the addresses of its members, through the accessors of union arms
// where C has a union.
func Measure(packages ...witness.Package) (*GoFacts, error) {
	facts := &GoFacts{}
	for _, p := range packages {
		if err := facts.measure(p); err != nil {
			return nil, err
		}
	}
	return facts, nil
}

func (facts *GoFacts) measure(p witness.Package) error {
	for _, rec := range p.Records {
		r := rec.New()
		v := reflect.ValueOf(r)
		if v.Kind() != reflect.Pointer || v.IsNil() {
			return fmt.Errorf("%s: New gives %T, not a pointer; regenerate with make generate", rec.Go, r)
		}
		m := GoRecord{C: rec.C, Kind: rec.Kind, Go: rec.Go, Size: int64(v.Type().Elem().Size()),
			Align: int64(rec.Align)}
		for _, f := range rec.Fields {
			at := reflect.ValueOf(f.Of(r))
			if at.Kind() != reflect.Pointer {
				return fmt.Errorf("%s: %s is seen through %s, not a pointer; regenerate with make generate", rec.Go,
					f.Path, at.Kind())
			}
			offset, size := int64(at.Pointer()-v.Pointer()), int64(at.Type().Elem().Size())
			if offset < 0 || offset+size > m.Size {
				return fmt.Errorf("%s: %s lies outside the %d bytes of its type; regenerate with make generate", rec.Go,
					f.Path, m.Size)
			}
			m.Fields = append(m.Fields, GoField{Path: f.Path, Offset: offset, Size: size})
		}
		m.Trailing = trailing(v.Type().Elem())
		facts.Records = append(facts.Records, m)
	}
	for _, c := range p.Constants {
		value, ok := integer(c.Value)
		if !ok {
			return fmt.Errorf("%s is a %T, not an integer; regenerate with make generate", c.Name, c.Value)
		}
		facts.Constants = append(facts.Constants, GoConstant{Enum: c.Enum, Name: c.Name, Value: value})
	}
	return nil
}

// trailing asks every method of a record that gives n elements behind it for none, which tells where they would start.
// The record is the first of two, since a pointer behind the last byte of an allocation must not exist.
func trailing(t reflect.Type) map[string]int64 {
	starts := map[string]int64{}
	record := reflect.New(reflect.ArrayOf(2, t)).Elem().Index(0).Addr()
	for i := range record.NumMethod() {
		m := record.Method(i).Type()
		if m.NumIn() == 1 && m.In(0).Kind() == reflect.Int && m.NumOut() == 1 && m.Out(0).Kind() == reflect.Slice {
			elements := record.Method(i).Call([]reflect.Value{reflect.ValueOf(0)})[0]
			starts[record.Type().Method(i).Name] = int64(elements.Pointer() - record.Pointer())
		}
	}
	return starts
}

func integer(v any) (model.Int, bool) {
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return model.Int(strconv.FormatInt(r.Int(), 10)), true
	case r.CanUint():
		return model.Int(strconv.FormatUint(r.Uint(), 10)), true
	}
	return "", false
}

// Dump writes the facts as CSV with the names of C: "ibv_send_wr,wr.rdma.rkey,48,4" (structure, path, offset, size; an
// empty path for the whole) and "ibv_wr_opcode,IBV_WR_SEND,2" (enum or -, name, value).
func (g *GoFacts) Dump(w io.Writer) error {
	for _, r := range g.Records {
		if _, err := fmt.Fprintf(w, "%s,,0,%d\n", r.C, r.Size); err != nil {
			return err
		}
		for _, f := range r.Fields {
			if _, err := fmt.Fprintf(w, "%s,%s,%d,%d\n", r.C, f.Path, f.Offset, f.Size); err != nil {
				return err
			}
		}
	}
	for _, c := range g.Constants {
		if _, err := fmt.Fprintf(w, "%s,%s,%s\n", c.Enum, c.Name, c.Value); err != nil {
			return err
		}
	}
	return nil
}

// CompareModel lists where a Go package differs from the model that it was generated from. There is nothing to list
// unless the generated files were changed or the generator is wrong.
func (g *GoFacts) CompareModel(r *model.Release, target string) []Difference {
	x := newIndex(r, target)
	var all []Difference
	differ := func(item Item, want, have string) {
		if want != have {
			item.Want = have
			all = append(all, Difference{Item: item, Headers: want,
				Why: "the generated package is not what its model says; run make generate"})
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
				if !have[rec.rec.Tag+"."+m.path] {
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
