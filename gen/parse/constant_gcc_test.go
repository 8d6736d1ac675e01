// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gccErrors compiles lines of C with gcc and returns its errors by line, numbered from 0.
func gccErrors(t *testing.T, lines []string) map[int]string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	name := filepath.Join(t.TempDir(), "constants.c")
	before := constantsBefore + "#pragma GCC diagnostic error \"-Wshift-overflow=1\"\n"
	require.NoError(t, os.WriteFile(name, []byte(before+strings.Join(lines, "\n")+"\n"), 0o600))
	out, err := exec.Command(gcc, "-std=gnu17", "-fsyntax-only", "-Werror=overflow", "-Werror=shift-count-overflow",
		"-Werror=shift-count-negative", "-Werror=div-by-zero", "-Wno-sign-compare", "-fno-diagnostics-show-caret",
		"-ftrack-macro-expansion=0", "-fmax-errors=0", name).CombinedOutput()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError), "%s", out)
	}
	errors := map[int]string{}
	errorLine := regexp.MustCompile(`(?:constants\.c:(\d+):\d+|cc1): error: (.*)`)
	for _, m := range errorLine.FindAllStringSubmatch(string(out), -1) {
		if m[1] == "" {
			errors[noLine] += m[2] + "\n"
			continue
		}
		line, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		errors[line-1-strings.Count(before, "\n")] += m[2] + "\n"
	}
	return errors
}

// noLine is the key of errors that gcc reports without a position, for example for a shift by a conditional expression
// with a converted operand.
const noLine = -1

// assertion returns a C assertion that an expression has a value and a type.
func assertion(expression, value string, size uint, unsigned bool) string {
	literal := value + "ull"
	if strings.HasPrefix(value, "-") {
		literal = "(-" + strings.TrimPrefix(value, "-") + "ull)"
	}
	sign := "> 0"
	if !unsigned {
		sign = "< 1"
	}
	return fmt.Sprintf("_Static_assert((unsigned long long)(%[1]s) == %[2]s && sizeof(%[1]s) == %[3]d && "+
		"(__typeof__(%[1]s))-1 %[4]s, \"\");", expression, literal, size, sign)
}

// TestConstantsMatchGCC checks that gcc computes the values and types of TestConstants, and rejects the expressions of
// TestConstantsRejected.
func TestConstantsMatchGCC(t *testing.T) {
	var lines []string
	for _, c := range computed {
		ull := map[bool]string{true: "ull"}[len(c.value) > 18]
		lines = append(lines,
			fmt.Sprintf("_Static_assert((%[1]s) == (__typeof__(%[1]s))%[2]s%[3]s, \"\");", c.expression, c.value, ull),
			fmt.Sprintf("_Static_assert(sizeof(%[1]s) == sizeof(%[2]s) && "+
				"((__typeof__(%[1]s))-1 < 1) == ((%[2]s)-1 < 1), \"\");", c.expression, c.typ))
	}
	assert.Empty(t, gccErrors(t, lines), strings.Join(lines, "\n"))
	lines = nil
	for i, c := range rejected {
		lines = append(lines, fmt.Sprintf("long long v%d = (%s);", i, c.expression))
	}
	errors := gccErrors(t, lines)
	for i, c := range rejected {
		assert.NotEmpty(t, errors[i], c.expression)
	}
}

// TestRandomConstantsMatchGCC checks with random expressions that gcc rejects those that this generator rejects, and
// computes the same values and types for the others.
func TestRandomConstantsMatchGCC(t *testing.T) {
	const count = 2000
	seed := uint64(os.Getpid())
	if s, err := strconv.ParseUint(os.Getenv("RAPID_SEED"), 10, 64); err == nil { // a repeatable run
		seed = s
	}
	t.Logf("seed %d", seed)
	random := &expressions{rand.New(rand.NewPCG(seed, 0))}
	text := constantsBefore
	var all []string
	for i := range count {
		all = append(all, random.expression(1+i%4))
		text += fmt.Sprintf("#define T_%d (%s)\n", i, all[i])
	}
	src := Source{Include: fstest.MapFS{"infiniband/a.h": {Data: []byte(text)}}, Name: "include",
		Headers: []string{"infiniband/a.h"}}
	r, err := parseTarget(src, "amd64")
	require.NoError(t, err)
	require.NoError(t, r.findAll())
	var lines []string
	var errs []error
	rejections := 0
	for i, expression := range all {
		n := r.constants[fmt.Sprintf("T_%d", i)]
		require.NotNil(t, n, expression)
		v, err := r.compute(n)
		errs = append(errs, err)
		if err != nil {
			rejections++
			lines = append(lines, fmt.Sprintf("long long v%d = (%s);", i, expression))
			continue
		}
		lines = append(lines, assertion(expression, v.n.String(), max(1, v.bits/8), v.unsigned))
	}
	errors := gccErrors(t, lines)
	for i, expression := range all {
		if errs[i] != nil && errors[i] == "" && errors[noLine] != "" {
			errors[i] = gccErrors(t, lines[i:i+1])[noLine]
		}
		if errs[i] != nil {
			assert.NotEmpty(t, errors[i], "%s: rejected here (%v), but accepted by gcc", expression, errs[i])
			continue
		}
		if strings.ContainsAny(expression, "?&|") { // gcc warns about some operands that it does not evaluate
			errors[i] = regexp.MustCompile(`.*\[-Werror=.*\]\n`).ReplaceAllString(errors[i], "")
		}
		assert.Empty(t, errors[i], "%s: %s", expression, lines[i])
	}
	assert.Greater(t, rejections, count/20)
	assert.Less(t, rejections, count*19/20)
}

// expressions generates random C expressions.
type expressions struct{ *rand.Rand }

func (r *expressions) of(words ...string) string { return words[r.IntN(len(words))] }

func (r *expressions) expression(depth int) string {
	if depth == 0 {
		return r.of("0", "1", "2", "3", "5", "31", "32", "63", "64", "100", "0x7fffffff", "2147483648", "0xffffffff",
			"0x80000000", "1u", "7ul", "0x7fffffffffffffff", "0xffffffffffffffff", "1ll", "2ull", "0777", "'a'",
			"'\\0'", "FOUR", "BIG", "MINUS", "U_TOP", "N_NEG2", "sizeof(int)", "sizeof(struct pair)", "_Alignof(long)")
	}
	inner := func() string { return r.expression(r.IntN(depth)) }
	switch r.IntN(12) {
	case 0:
		return r.of("-", "~", "!", "+") + "(" + inner() + ")"
	case 1, 2:
		return "(" + r.of("int", "unsigned", "long", "unsigned long", "uint8_t", "int8_t", "short", "uint16_t", "_Bool",
			"uint64_t", "int64_t", "enum u", "enum b") + ")(" + inner() + ")"
	case 3:
		return fmt.Sprintf("(%s ? %s : %s)", inner(), inner(), inner())
	case 4:
		return "sizeof(" + r.expression(0) + ")" // gcc warns about a deeper operand although it does not evaluate it
	case 5:
		return r.of("SHIFTED", "SHORTER") + "(" + inner() + ")"
	default:
		op := r.of("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", ">", "<=", ">=", "&&", "||")
		return "(" + inner() + ") " + op + " (" + inner() + ")"
	}
}
