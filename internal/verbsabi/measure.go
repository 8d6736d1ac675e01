// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/generated/witness"
)

// GoFacts contains the facts of generated Go packages, under C names, on the target for which this program was
// compiled.
type GoFacts struct {
	Records   []GoRecord
	Constants []GoConstant
}

// GoRecord is a Go type that represents a C structure, union or opaque type.
type GoRecord struct {
	C, Kind, Go string
	Size, Align int64
	Fields      []GoField
	Trailing    map[string]int64 // offsets of flexible arrays, by the Go method that returns them
}

// GoField is the Go layout of a member.
type GoField struct {
	Path         string // "wr.rdma.rkey"
	Offset, Size int64
}

// GoConstant is a Go constant that represents an enumerator or a macro.
type GoConstant struct {
	Enum, Name string // Enum is "-" for an untagged enum and for a macro
	Value      model.Int
}

// Measure creates a value of every type and takes the addresses of its members. Union members have accessors.
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
			return fmt.Errorf("%s: New returns %T, not a pointer; run make generate", rec.Go, r)
		}
		m := GoRecord{C: rec.C, Kind: rec.Kind, Go: rec.Go, Size: int64(v.Type().Elem().Size()),
			Align: int64(rec.Align)}
		var members []any
		if rec.Members != nil {
			members = rec.Members(r)
		}
		if len(members) != len(rec.Paths) {
			return fmt.Errorf("%s: %d members have %d names; run make generate", rec.Go, len(members),
				len(rec.Paths))
		}
		for i, path := range rec.Paths {
			at := reflect.ValueOf(members[i])
			if at.Kind() != reflect.Pointer {
				return fmt.Errorf("%s: %s is accessed through %s, not a pointer; run make generate", rec.Go,
					path, at.Kind())
			}
			offset, size := int64(at.Pointer()-v.Pointer()), int64(at.Type().Elem().Size())
			if offset < 0 || offset+size > m.Size {
				return fmt.Errorf("%s: %s lies outside the %d bytes of its type; run make generate", rec.Go,
					path, m.Size)
			}
			m.Fields = append(m.Fields, GoField{Path: path, Offset: offset, Size: size})
		}
		m.Trailing = trailing(v.Type().Elem())
		facts.Records = append(facts.Records, m)
	}
	for _, c := range p.Constants {
		value, ok := integer(c.Value)
		if !ok {
			return fmt.Errorf("%s is a %T, not an integer; run make generate", c.Name, c.Value)
		}
		facts.Constants = append(facts.Constants, GoConstant{Enum: c.Enum, Name: c.Name, Value: value})
	}
	return nil
}

// trailing returns the offsets of flexible arrays. It calls every method that returns n elements after the record, with
// n = 0. The record is the first of two, because a pointer past the end of an allocation is invalid.
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

// Dump writes the facts as CSV with the names of C: "ibv_send_wr,wr.rdma.rkey,48,4" (structure, path, offset, size; the
// path of the structure itself is empty) and "ibv_wr_opcode,IBV_WR_SEND,2" (enum or -, name, value).
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
