// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/processors"
)

// readText parses one header for one target.
func readText(text string) error {
	_, err := Read(Source{
		Release: "1.0", Name: "include", Headers: []string{"infiniband/a.h"}, Targets: []string{"amd64"},
		Include: fstest.MapFS{"infiniband/a.h": {Data: []byte(text)}},
	})
	return err
}

// TestNesting checks that input nested too deeply for the C parser is rejected quickly, before the stack overflows,
// with an error that has the line number.
func TestNesting(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	const deep = 300_000
	r := strings.Repeat
	for name, text := range map[string]string{
		"macro":                 "\n#define T_X " + r("(", deep) + "1" + r(")", deep) + "\n",
		"enumerator":            "\nenum e { A = " + r("(", deep) + "1" + r(")", deep) + " };\n",
		"declarator":            "\nint " + r("(", deep) + "f" + r(")", deep) + "(void);\n",
		"pointers to functions": "\nstruct s { int " + r("(*", deep) + "f" + r(")(void)", deep) + "; };\n",
		"pointers":              "\nint " + r("*", deep) + "f(void);\n",
		"structures":            "\nstruct s " + r("{ struct ", deep) + "{ int a; }" + r(" x; }", deep) + ";\n",
		"blocks":                "\nstatic inline void f(void) {" + r("{", deep) + r("}", deep) + "}\n",
		"digraphs":              "\nstatic inline void f(void) {" + r("<%", deep) + r("%>", deep) + "}\n",
		"dimensions":            "\nstruct s { int a" + r("[1]", deep) + "; };\n",
		"unary operators":       "\nenum e { A = " + r("~", deep) + "1 };\n",
		"sums":                  "\nenum e { A = " + r("1+", deep) + "1 };\n",
		"conditional operators": "\nenum e { A = " + r("1?1:", deep) + "1 };\n",
		"qualifiers":            "\n" + r("const ", deep) + "int f(void);\n",
		"else":                  "\nstatic inline void f(int a) {" + r("if (a) {} else ", deep/4) + ";}\n",
		"else in macros":        "\n#define I if (a) {} else\nstatic inline void f(int a) {" + r("I ", deep) + ";}\n",
		"labels":                "\nstatic inline void f(int a) {" + r("a: ", deep) + ";}\n",
		"#if":                   r("#if 1\n", deep) + r("#endif\n", deep),
	} {
		t.Run(name, func(t *testing.T) {
			start := processors.Time()
			err := readText(text)
			require.ErrorContains(t, err,
				"nested too deeply; split it, or raise the limit in gen/parse/nesting.go")
			assert.Regexp(t, `include/infiniband/a\.h:(2|3|201): more than`, err.Error())
			assert.Less(t, processors.Time()-start, 10*time.Second)
		})
	}
}

// TestNestingOfMacros checks that macros with exponential expansion exceed the C parser's limit of expansions.
func TestNestingOfMacros(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	start := processors.Time()
	text := "#define A(x) ((((((((x))))))))\n"
	for c := 'B'; c < 'H'; c++ {
		in := string(c - 1)
		text += "#define " + string(c) + "(x) " + strings.Repeat(in+"(", 8) + "x" + strings.Repeat(")", 8) + "\n"
	}
	assert.ErrorContains(t, readText(text+"enum e { Q = G(1) };\n"), "macro expansion limit exceeded")
	assert.Less(t, processors.Time()-start, 10*time.Second)
}

// TestNestingCounts checks that brackets in comments and literals do not count, and that a directive does not end the
// nesting around it.
func TestNestingCounts(t *testing.T) {
	lines := strings.Repeat("/* ((( */ // {{{\n#define T_S \"(((\"\n#undef T_S\nstruct t_s;\n", 300)
	assert.NoError(t, checkNesting("a.h", lines))
	assert.NoError(t, checkNesting("a.h", strings.Repeat("#define T_OPEN (\n", 300)))
	open := strings.Repeat("(\n#define T_X 1\n", 150)
	assert.NoError(t, checkNesting("a.h", open))
	assert.ErrorContains(t, checkNesting("a.h", open+open), "a.h:401: more than 200 nested brackets")
	assert.ErrorContains(t, checkNesting("a.h", strings.Repeat(" ", maxText+1)),
		"a.h: 8388609 bytes; a header has at most 8388608")
}
