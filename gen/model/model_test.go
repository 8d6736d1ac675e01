// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample has one entry of every kind.
func sample() *Release {
	high := UintOf(1<<64 - 1)
	return &Release{
		Project: "rdma-core", Name: "1.0", Targets: []string{"amd64", "arm64"},
		Headers: []Header{{
			Name: "infiniband/a.h",
			Records: []Record{{Kind: Struct, Tag: "a", Size: Per{Default: 8, Only: map[string]int64{"arm64": 16}},
				Align: Same(8), Fields: []Field{
					{Name: "x", Type: "uint64_t", Offset: Same(0), Size: Same(8)},
				}}},
			Enums: []Enum{{Tag: "e", Size: 4, Signed: true,
				Enumerators: []Enumerator{{Name: "E_A", Value: IntOf(-1)}, {Name: "E_B", Value: "2", Shift: true}}}},
			Macros: []Macro{{Name: "ALL", Kind: Constant, Value: &high, Type: "unsigned long"}},
			Funcs: []Func{{Name: "f",
				Proto: Proto{Result: "const char *",
					Params: []Param{{Name: "a", Type: "struct a *"}}}, Inline: &Inline{Kind: Compute}}},
		}},
		Libraries: []Library{{Name: "liba.so.1",
			Versions: []Version{{Name: "A_1.0"}, {Name: "A_1.10", After: []string{"A_1.0"}}, {Name: "A_1.9"}},
			Symbols: []Symbol{
				{Name: "f", Version: "A_1.0", Old: true}, {Name: "f", Version: "A_1.10"}, {Name: "g"},
				{Name: "x", Version: "A_1.9", Object: true, Size: 4},
			}}},
		Tables: []Table{{Name: "t", Page: "p.3", Columns: []string{"C"},
			Rows: []TableRow{{Name: "R", Cells: []string{"yes"}}}}},
	}
}

func TestEncodeDecode(t *testing.T) {
	r := sample()
	text, err := r.Encode()
	require.NoError(t, err)
	back, err := Decode("m", text)
	require.NoError(t, err)
	assert.Equal(t, r, back)
	again, err := back.Encode()
	require.NoError(t, err)
	assert.Equal(t, string(text), string(again))
	assert.Contains(t, string(text), `{"name":"E_B","value":2,"shift":true}`)
	assert.Contains(t, string(text), "\t\t\t\t{\"name\":\"f\",\"version\":\"A_1.0\",\"old\":true},\n")
	for line := range strings.Lines(string(text)) {
		assert.Less(t, len(line), lineWidth+20, line)
	}
}

// TestDecodeRejects covers each check of a model and its error.
func TestDecodeRejects(t *testing.T) {
	text, err := sample().Encode()
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{`"release": "1.0"`, `"release": ""`, `release ("")`},
		{`"release"`, `"relaese"`, `m:3: not a model: json: unknown field "relaese"`},
		{`"value":2`, `"value":1.5`, "1.5"},
		{`"value":2`, `"value":99999999999999999999`, "is not an integer of 64 bits"},
		{`"size":8`, `"size":80`, "extend past the record's 8"},
		{`"align":8`, `"align":3`, "invalid size"},
		{`"type":"uint64_t"`, `"type":"uint64_t*"`, "no space before *"},
		{`"type":"uint64_t"`, `"type":"uint64_t[x]"`, "is not a number up to"},
		{`"type":"uint64_t"`, `"type":""`, "exactly one type"},
		{`"kind":"struct"`, `"kind":"class"`, "unknown kind"},
		{`"default":8`, `"other":8`, `has no "default"`},
		{`"cells":["yes"]`, `"cells":[]`, "0 cells for 1 columns"},
		{`"name":"f"`, `"name":"f()"`, "has no C name"},
		{`"kind":"constant"`, `"kind":"alias"`, "is inconsistent"},
		{`"liba.so.1"`, `"liba.so"`, `library "liba.so": invalid library name "liba.so"`},
		{`"after":["A_1.0"]`, `"after":["A_1.1"]`, `version A_1.10 inherits from "A_1.1", which is not another version`},
		{`"after":["A_1.0"]`, `"after":["A_1.10"]`, `inherits from "A_1.10", which is not another version`},
		{`{"name":"A_1.9"}`, `{"name":"A_1.0"}`, `duplicate or invalid version "A_1.0"`},
		{`"version":"A_1.9"`, `"version":"A_1.8"`, `symbol "x@@A_1.8" has a version that the library does not define`},
		{`{"name":"g"}`, `{"name":"g","old":true}`, `symbol "g" has a version that`},
		{`{"name":"g"}`, `{"name":"e"}`, `symbol "e" is duplicate or out of order`},
		{`{"name":"g"}`, `{"name":"g","size":4}`, `symbol "g" cannot have 4 bytes`},
		{`"version":"A_1.0","old":true`, `"version":"A_1.0"`, `symbol "f" has two default versions`},
		{`"version":"A_1.10"}`, `"version":"A_1.0"}`, `symbol "f@@A_1.0" is duplicate`},
	} {
		bad := strings.Replace(string(text), c.old, c.new, 1)
		if bad == string(text) { // in the JSON, a space follows the colon
			bad = strings.Replace(string(text), strings.Replace(c.old, `":`, `": `, 1),
				strings.Replace(c.new, `":`, `": `, 1), 1)
		}
		require.NotEqual(t, string(text), bad, c.old)
		_, err := Decode("m", []byte(bad))
		if assert.Error(t, err, c.new) {
			assert.Contains(t, err.Error(), c.want)
			assert.Contains(t, err.Error(), "make record")
		}
	}
	_, err = Decode("m", []byte(strings.Replace(string(text), `"kind":"compute"`, `"kind":"wormhole"`, 1)))
	assert.ErrorContains(t, err, "unknown kind of inline function")
	_, err = Decode("m", []byte(`{"project":"p","release":"1","targets":["amd64"],"headers":[null]}`))
	assert.ErrorContains(t, err, `header 0: "" is not a header name`)
	_, err = Decode("m", append(text, "x"...))
	assert.ErrorContains(t, err, "text after the model")
	_, err = Decode("m", text[:len(text)/2])
	assert.ErrorContains(t, err, "not a model")
}

func TestTypes(t *testing.T) {
	for spelled, declared := range map[string]string{
		"int":                    "int x",
		"const struct ibv_sge *": "const struct ibv_sge *x",
		"struct ibv_send_wr **":  "struct ibv_send_wr **x",
		"uint8_t[16]":            "uint8_t x[16]",
		"char *[2][3]":           "char *x[2][3]",
		"unsigned long long":     "unsigned long long x",
		"struct item[]":          "struct item x[]",
	} {
		typ, err := ParseType(spelled)
		require.NoError(t, err)
		assert.Equal(t, spelled, typ.String())
		assert.Equal(t, declared, typ.Declare("x"))
	}
	for _, bad := range []string{"", "*", "int*", "int]", "int[-2]", "9x", "struct  x", "const "} {
		_, err := ParseType(bad)
		assert.Error(t, err, bad)
	}
	p := Proto{Result: "void *",
		Params: []Param{{Name: "n", Type: "size_t"}, {Name: "done", Func: &Proto{Result: "void"}}}, Variadic: true}
	assert.Equal(t, "void *f(size_t n, void (*done)(void), ...)", p.Declare("f"))
	assert.Equal(t, "void *(*)(size_t n, void (*done)(void), ...)", p.Declare("(*)"))
}

func TestPer(t *testing.T) {
	p := Same(40)
	p.Set("arm64", 48)
	p.Set("s390x", 40)
	assert.Equal(t, "40 (arm64: 48)", p.String())
	assert.Equal(t, int64(48), p.On("arm64"))
	assert.Equal(t, int64(40), p.On("s390x"))
	p.Set("arm64", 40)
	assert.True(t, p.Equal(Same(40)))
}

func FuzzDecode(f *testing.F) {
	text, err := sample().Encode()
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"project":"p","release":"1","targets":["amd64"],"headers":[{"name":"h","records":[{"kind":"union","tag":"u","size":8,"align":8,"fields":[{"name":"a","func":{"result":"void","params":[]},"offset":0,"size":8}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode("m", data)
		if err != nil {
			return
		}
		out, err := r.Encode()
		require.NoError(t, err)
		back, err := Decode("m", out)
		require.NoError(t, err, "%s", out)
		again, err := back.Encode()
		require.NoError(t, err)
		require.Equal(t, string(out), string(again))
	})
}

func FuzzParseType(f *testing.F) {
	f.Add("const struct ibv_qp *[4][]")
	f.Fuzz(func(t *testing.T, s string) {
		typ, err := ParseType(s)
		if err != nil {
			return
		}
		back, err := ParseType(typ.String())
		require.NoError(t, err)
		require.Equal(t, typ, back)
	})
}

func TestSymbols(t *testing.T) {
	lib := sample().Library("liba.so.1")
	var all []string
	for _, s := range lib.Symbols {
		all = append(all, s.String())
	}
	assert.Equal(t, []string{"f@A_1.0", "f@@A_1.10", "g", "x@@A_1.9"}, all)
	assert.True(t, lib.Defines("A_1.9"))
	assert.False(t, lib.Defines("A_1.8"))
	assert.Nil(t, sample().Library("libb.so.1"))
}
