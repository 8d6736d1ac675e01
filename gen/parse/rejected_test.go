// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/processors"
)

// TestRejected checks that declarations that the C parser would ignore or misread are rejected, with their line.
func TestRejected(t *testing.T) {
	for text, want := range map[string]string{
		"enum e { A = 1 } __attribute__((packed));": "a.h:2: A: attribute " +
			"packed is supported only on",
		"enum e : unsigned char { A = 1 };": "a.h:2: enum e with an " +
			"explicit type is not supported",
		"struct s { int a __attribute__((packed)); };": "a.h:2: a: attribute " +
			"packed is supported only on",
		"struct s { int b __attribute__((aligned(4))); };": "",
		"struct s { int b __attribute__((aligned(8))); };": "",
		"struct s { int __attribute__((aligned(8))) b; };": "a.h:2: struct s: the " +
			"C parser computes 8 bytes aligned to 8",
		"struct s { char b __attribute__((aligned(8))); int c : 3; };": "a.h:2: an aligned " +
			"member of a structure that is packed or has bitfields",
		"struct s { char c; int b __attribute__((aligned(4))); } __attribute__((packed));": "a.h:2: an aligned " +
			"member of a",
		"enum e { A = 1 } __attribute__((aligned(8)));": "a.h:2: A: attribute " +
			"aligned is supported only on",
		"int f(int a) __attribute__((deprecated));": "",
		"struct s { int a __attribute__((__mode__(DI))); };": "a.h:2: a: attribute " +
			"mode is supported only on",
		"_Pragma(\"pack(1)\") struct s { char a; int b; };": "#pragma pack ( 1 ) " +
			"is not supported",
		"#pragma scalar_storage_order big-endian\n": "a.h:2:9: #pragma " +
			"scalar_storage_order big - endian is not",
		"#pragma GCC diagnostic push\nint f(int a);": "",
		"#line 1 \"other.h\"\nstruct s { int a; };": "a.h:2: #line, possibly " +
			"hidden",
		"# 1 \"other.h\"\nstruct s { int a; };": "a.h:2: #line, possibly " +
			"hidden",
		"#li\\\nne 1 \"other.h\"\nstruct s { int a; };": "a.h:2: #line, possibly " +
			"hidden",
		"%:line 1 \"other.h\"\nstruct s { int a; };": "a.h:2: #line, possibly " +
			"hidden",
		"#define X_\u00e9 1": "infiniband/a.h: macro " +
			"\"X_\u00e9\" has no C name",
		"struct s { int $a; };": `infiniband/a.h: struct s: field 0 ("$a") needs a name`,
		"int f();": "a.h:2: f: a function " +
			"without parameter types; write (void)",
		"int f(a) int a; { return a; }": "a.h:2: f: a function " +
			"without parameter types",
		"int f(int n, int a[n]);": "",
		"enum e { A = A + 1 };": "a.h:2:16: A: invalid " +
			"operands",
		"enum e { A, A };": "a.h:2:13: A: " +
			"incompatible redeclaration",
		"struct s { int n; int : 0; };": "",
		"struct s { char n; int : 0; };": "a.h:2: struct s: " +
			"member 2 (): an unnamed bitfield whose type",
		"struct s { int n; int : 0; } __attribute__((packed));": "member 2 (): a bitfield of 0 bits in a packed",
	} {
		err := readText("\n" + text + "\n")
		if want == "" {
			assert.NoError(t, err, text)
			continue
		}
		assert.ErrorContains(t, err, want, text)
		if err != nil {
			assert.NotContains(t, err.Error(), "TODO")
			assert.NotContains(t, err.Error(), ".go:")
		}
	}
}

// TestLine checks that a macro whose value depends on where it is expanded is not recorded as a constant.
func TestLine(t *testing.T) {
	text := "#define HERE __LINE__\n#define X (HERE + 1)\n#define N __COUNTER__\n#define FIVE 5\n"
	h := read(t, text, "amd64").Headers[0]
	assert.Len(t, h.Macros, 4)
	for _, m := range h.Macros {
		assert.Equal(t, m.Name == "FIVE", m.Value != nil, m.Name)
	}
}

// TestOmittedOperand checks that GCC's a ?: b, which the C parser cannot type, is not a constant and does not affect
// other macros.
func TestOmittedOperand(t *testing.T) {
	h := read(t, "#define X (1 ?: 2)\n#define FIVE 5\n", "amd64").Headers[0]
	assert.Len(t, h.Macros, 2)
	for _, m := range h.Macros {
		assert.Equal(t, m.Name == "FIVE", m.Value != nil, m.Name)
	}
}

// TestIncludes checks that headers that include themselves or each other are rejected quickly.
func TestIncludes(t *testing.T) {
	guard := func(name, text string) string {
		return "/* about */\n#ifndef " + name + "\n#define " + name + " /* once */\n" + text + "#if 0\n#else\n" +
			"#endif\n#endif\n"
	}
	const a, b = "#include <infiniband/a.h>\n", "  #  include \"infiniband/b.h\"\n"
	for name, c := range map[string]struct{ a, b, want string }{
		"leaf":       {b, "struct s { int a; };\n", ""},
		"guards":     {guard("A", b), guard("B", a), ""},
		"defined":    {guard("A", b), "#if !defined (B)\n#define B 1\n" + a + "#endif\n", ""},
		"itself":     {a, "", "include/infiniband/a.h: included by infiniband/a.h, but has no include guard"},
		"each other": {b, a, "include/infiniband/b.h: included by infiniband/a.h, but has no include guard"},
		"late": {b, a + guard("B", ""), "include/infiniband/b.h: included by infiniband/a.h, but has no " +
			"include guard"},
		"forgotten": {b, guard("B", "#undef B\n"+a), "include/infiniband/b.h: included by infiniband/a.h, but has no"},
		"otherwise": {b, guard("B", "#else\n"+a), "include/infiniband/b.h: included by infiniband/a.h, but has no"},
		"cut":       {"#inc\\\nlude <infiniband/a.h>\n", "", "include/infiniband/a.h"},
		"computed":  {"#define H <infiniband/a.h>\n#include H\n", "", "a.h: #include H is not supported"},
		"next":      {"#include_next <infiniband/a.h>\n", "", "a.h: #include_next <infiniband/a.h> is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			start := processors.Time()
			_, err := Read(Source{Release: "1.0", Name: "include", Targets: []string{"amd64"},
				Headers: []string{"infiniband/a.h", "infiniband/b.h"}, Include: fstest.MapFS{
					"infiniband/a.h": {Data: []byte(c.a)}, "infiniband/b.h": {Data: []byte(c.b)}}})
			if c.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.want)
			}
			assert.Less(t, processors.Time()-start, 10*time.Second)
		})
	}
}
