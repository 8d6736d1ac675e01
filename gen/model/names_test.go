// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// full returns a model that contains a string in every place that can have one.
func full() *Release {
	one := IntOf(1)
	proto := Proto{Result: "int",
		Params: []Param{{Name: "param", Type: "size_t"}, {Name: "callback", Func: &Proto{Result: "void"}}}}
	return &Release{
		Project: "rdma-core", Name: "1.0", Targets: []string{"amd64"}, Unread: []string{"infiniband/b.h"},
		StandIns: map[string]string{"a.3": "0.9", "liba.so.1": "0.8"},
		Headers: []Header{{
			Name: "infiniband/a.h",
			Records: []Record{{Kind: Struct, Tag: "record", Size: Same(8), Align: Same(8), Man: "a.3", Fields: []Field{
				{Name: "field", Type: "uint32_t", Size: Same(4)}, {Name: "slot", Func: &proto, Size: Same(4),
					Offset: Same(4)},
			}}},
			Enums: []Enum{{Tag: "enumeration", Size: 4, Man: "a.3",
				Enumerators: []Enumerator{{Name: "enumerator", Value: one}}}},
			Macros: []Macro{{Name: "macro", Kind: Constant, Value: &one, Type: "int"},
				{Name: "alias", Kind: Alias, Target: "macro"}, {Name: "function", Kind: FuncLike,
					Params: []string{"x"}}},
			Funcs: []Func{{Name: "called", Man: "a.3", Proto: proto, Inline: &Inline{
				Kind: Slot, Object: "a->b", Struct: "record", Slot: "slot", Guard: "record.sz", Absent: "ENOSYS",
				Errors: ReturnsErrno, Calls: []string{"other"}, Args: []string{"param"},
			}}},
		}},
		Tables: []Table{{Name: "table", Page: "a.3", Columns: []string{"column"},
			Rows: []TableRow{{Name: "row", Cells: []string{"yes"}}}}},
		Libraries: []Library{{Name: "liba.so.1", Versions: []Version{{Name: "A_1.0"},
			{Name: "A_1.1", After: []string{"A_1.0"}}},
			Symbols: []Symbol{{Name: "exported", Version: "A_1.0", Object: true, Size: 4}}}},
		Flags: []Flag{{Name: "flag", Page: "a.3", QPTypes: []string{"qpt"}, Opcodes: []string{"opcode"},
			Capability: "capability"}},
	}
}

// TestHostileNames puts Go code and paths that leave the directory in place of each string of a model. Each is rejected
// with an error that quotes it.
func TestHostileNames(t *testing.T) {
	text, err := json.Marshal(full())
	require.NoError(t, err)
	_, err = Decode("1.0.json", text)
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal(text, &tree))
	places := 0
	for _, hostile := range []string{"x\nfunc init() { panic(1) }\n//", "../../x\n", "x\r*/ y", "\u2028x"} {
		mutate(tree, "", hostile, func(place string) {
			places++
			bad, err := json.Marshal(tree)
			require.NoError(t, err)
			_, err = Decode("1.0.json", bad)
			if assert.Error(t, err, "%s accepts %q", place, hostile) {
				assert.Contains(t, err.Error(), "1.0.json")
				assert.Contains(t, err.Error(), "record it again")
				assert.NotContains(t, err.Error(), hostile, "it is quoted")
			}
		})
	}
	assert.Greater(t, places, 150)
}

// mutate replaces each string of a tree in turn and calls use after each replacement.
func mutate(tree any, at, other string, use func(place string)) {
	change := func(place string, value any, set func(any)) {
		if _, isText := value.(string); !isText {
			mutate(value, place, other, use)
			return
		}
		set(other)
		use(place)
		set(value)
	}
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			change(at+"."+key, value, func(v any) { tree[key] = v })
		}
	case []any:
		for i, value := range tree {
			change(fmt.Sprintf("%s[%d]", at, i), value, func(v any) { tree[i] = v })
		}
	}
}

// TestLimits checks that sizes beyond any address space and types that are nested too deep are rejected.
func TestLimits(t *testing.T) {
	deep := func(n int) *Record {
		rec := &Record{Kind: Struct, Size: Same(1), Align: Same(1)}
		for range n {
			rec = &Record{Kind: Struct, Size: Same(1), Align: Same(1),
				Fields: []Field{{Name: "in", Record: rec, Size: Same(1)}}}
		}
		return rec
	}
	handed := Proto{Result: "void"}
	for range 300 {
		inner := handed
		handed = Proto{Result: "void", Params: []Param{{Name: "f", Func: &inner}}}
	}
	enumerator := func(r *Release) *Int { return &r.Headers[0].Enums[0].Enumerators[0].Value }
	record := func(r *Release) *Record { return &r.Headers[0].Records[0] }
	for want, change := range map[string]func(r *Release){
		"enumerator is 4294967296, beyond the enum's 4 bytes": func(r *Release) { *enumerator(r) = "4294967296" },
		"enumerator is -1, beyond the enum's 4 bytes":         func(r *Release) { *enumerator(r) = "-1" },
		"follows field, which is or ends with a flexible array": func(r *Release) {
			record(r).Fields[0].Type = "uint32_t[]"
		},
		`array length "99999999999" is not a number up to`: func(r *Release) {
			record(r).Fields[0].Type = "uint32_t[99999999999]"
		},
		"field slot: invalid array length [99999999999]": func(r *Release) {
			record(r).Fields[1].Dims = []int64{99999999999}
		},
		"records nested more than 200 deep": func(r *Release) {
			record(r).Fields[0] = Field{Name: "in", Record: deep(300), Size: Same(1)}
		},
		"function types nested more than 200 deep": func(r *Release) { r.Headers[0].Funcs[0].Proto = handed },
		"pointers and arrays nested more than 200 deep": func(r *Release) {
			record(r).Fields[0].Type = "int " + strings.Repeat("*", 300)
		},
		"size 4611686018427387904 exceeds the limit of 2147483647": func(r *Release) { record(r).Size = Same(1 << 62) },
		"4 bytes at 9223372036854775807 extend past the record's": func(r *Release) {
			record(r).Fields[1].Offset = Same(1<<63 - 1)
		},
		"field slot: amd64: offset 0 overlaps field field, which ends at 4": func(r *Release) {
			record(r).Fields[1].Offset = Same(0)
		},
		"field slot: amd64: union member at offset 4": func(r *Release) { record(r).Kind = Union },
		`enumerator "void" has no C name`: func(r *Release) {
			r.Headers[0].Enums[0].Enumerators[0].Name = "void"
		},
		`function "return" has no C name`:    func(r *Release) { r.Headers[0].Funcs[0].Name = "return" },
		`"vax" is not a target of the model`: func(r *Release) { record(r).Size.Set("vax", 16) },
	} {
		r := full()
		change(r)
		text, err := r.Encode()
		require.NoError(t, err)
		_, err = Decode("1.0.json", text)
		assert.ErrorContains(t, err, want)
	}
}

// TestFlexible checks that no member or array element may follow a type that ends with a flexible array.
func TestFlexible(t *testing.T) {
	records := map[string]*Record{
		"struct tail":   {Kind: Struct, Fields: []Field{{Name: "n", Type: "int"}, {Name: "d", Type: "char[]"}}},
		"union any":     {Kind: Union, Fields: []Field{{Name: "t", Type: "struct tail"}, {Name: "n", Type: "int"}}},
		"struct round":  {Kind: Struct, Fields: []Field{{Name: "r", Type: "struct round"}}},
		"struct plain":  {Kind: Struct, Fields: []Field{{Name: "n", Type: "int"}}},
		"struct old":    {Kind: Struct, Fields: []Field{{Name: "n", Type: "int"}, {Name: "d", Type: "char[0]"}}},
		"struct within": {Kind: Struct, Fields: []Field{{Name: "any", Type: "union any"}}},
	}
	find := func(name string) *Record { return records[name] }
	for typ, want := range map[string]string{
		"struct plain": "", "struct plain[4]": "", "struct tail *[4]": "", "struct tail *": "", "struct round": "",
		"struct tail": "last follows first",
		"struct old":  "", "struct old[4]": "",
		"struct within": "last follows first",
		"union any":     "last follows first",
		"int[0]":        "last follows first",
		"struct tail[4]": "first: the elements of this array end with a flexible array, so they have no fixed size; " +
			"use pointers to them",
		"struct within[4]": "first: the elements of this array end with a flexible array",
	} {
		rec := Record{Kind: Struct, Fields: []Field{{Name: "first", Type: typ}, {Name: "last", Type: "int"}}}
		err := NewFlexibles(find).Check(&rec)
		if want == "" {
			assert.NoError(t, err, typ)
		} else {
			assert.ErrorContains(t, err, want, typ)
		}
	}
	inPlace := Record{Kind: Struct, Fields: []Field{{Name: "first", Record: records["struct tail"], Dims: []int64{2}}}}
	assert.ErrorContains(t, NewFlexibles(find).Check(&inPlace),
		"first: the elements of this array end with a flexible array")
}
