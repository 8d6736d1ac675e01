// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// constantsBefore declares the types and macros that the constants of these tests use.
const constantsBefore = `#include <stddef.h>
#include <stdint.h>
enum b { FOUR = 4, BIG = 1ll << 33, MINUS = -1 };
enum u { U_ONE = 1, U_TOP = 0x80000000 };
enum next { N_A = 7, N_B, N_C, N_NEG = -3, N_NEG2 };
struct pair { char a; long b; };
#define SHIFTED(x) (1 << (x))
#define SHORTER(x) ((uint8_t)(x))
`

// computed lists valid constant expressions with their values and types. TestConstantsMatchGCC checks the list with
// gcc.
var computed = []struct {
	expression, value, typ string
}{
	{"1 << 31", "-2147483648", "int"},
	{"1U << 31", "2147483648", "unsigned int"},
	{"1ULL << 63", "9223372036854775808", "unsigned long long"},
	{"1LL << 63", "-9223372036854775808", "long long"},
	{"~0U << 4", "4294967280", "unsigned int"},
	{"0xffffffffu + 1", "0", "unsigned int"},
	{"-2147483647 - 1", "-2147483648", "int"},
	{"0x7fffffff + 1u", "2147483648", "unsigned int"},
	{"0xffffffff + 1", "0", "unsigned int"},       // hexadecimal numbers may be unsigned
	{"2147483648 + 1", "2147483649", "long long"}, // decimal literals become long instead
	{"1 ? 5 : 1 << 99", "5", "int"},               // not evaluated
	{"1 ? 5 : 1ull << 99", "5", "unsigned long long"},
	{"0 && 1 << 99", "0", "int"},
	{"1 || 1 << 99", "1", "int"},
	{"(1 + 2) * 3 % 4 ^ 8 | 16", "25", "int"},
	{"5 > 3 && 3 <= 3 && 2 != 3 && !0", "1", "int"},
	{"-5 / 2 + -5 % 2", "-3", "int"},
	{"-1 >> 1", "-1", "int"},
	{"-1 < 1u", "0", "int"},
	{"-1 < 1ll", "1", "int"},
	{"BIG << 1", "17179869184", "long long"},
	{"FOUR - 5", "-1", "int"},
	{"N_C + N_NEG2", "7", "int"},
	{"U_TOP << 1", "0", "unsigned int"},
	{"'a' << 4", "1552", "int"},
	{"'\\n' + '\\x41' + '\\060'", "123", "int"},
	{"sizeof(int) << 4", "64", "unsigned long"},
	{"sizeof(struct pair) * 2", "32", "unsigned long"},
	{"sizeof(1 ? 1 : 1ll)", "8", "unsigned long"},
	{"sizeof((char)1)", "1", "unsigned long"},
	{"sizeof('a')", "4", "unsigned long"},
	{"sizeof(1 << 99)", "4", "unsigned long"},
	{"sizeof(((struct pair *)0)->b)", "8", "unsigned long"},
	{"_Alignof(struct pair)", "8", "unsigned long"},
	{"offsetof(struct pair, b) + 1", "9", "unsigned long"},
	{"(int)offsetof(struct pair, b)", "8", "int"},
	{"SHIFTED(4) | SHIFTED(SHIFTED(2))", "16", "int"},
	{"SHORTER(300)", "44", "unsigned char"},
	{"SHORTER(300) - 45", "-1", "int"},
	{"~SHORTER(0)", "-1", "int"},
	{"(unsigned long)1 << 40", "1099511627776", "unsigned long"},
	{"(unsigned long)-1", "18446744073709551615", "unsigned long"},
	{"(unsigned)1 << 31", "2147483648", "unsigned int"},
	{"(int)2147483648", "-2147483648", "int"},
	{"(int8_t)200", "-56", "signed char"},
	{"(uint16_t)65535 + 1", "65536", "int"},
	{"(_Bool)256", "1", "_Bool"},
	{"(_Bool)2 + (_Bool)-1", "2", "int"},
	{"(enum b)FOUR - 5", "-1", "long long"},
	{"(enum u)1 - 2", "4294967295", "unsigned int"},
	{"(uint64_t)1 << 63 >> 3", "1152921504606846976", "unsigned long"},
	{"(int)1.9 + (int)-1.9", "0", "int"},
	{"-(unsigned long)1", "18446744073709551615", "unsigned long"},
	{"!(void *)0", "1", "int"},
	{"(char)97", "97", "char"},
}

// rejected lists constants that overflow their types. TestConstantsMatchGCC checks that gcc warns about each of them.
var rejected = []struct{ expression, why string }{
	{"1 << 32", "1 << 32 shifts an integer of 32 bits too far; write it with a suffix or a cast that makes it " +
		"longer, such as ULL"},
	{"1ull << 64", "1 << 64 shifts an unsigned integer of 64 bits too far; C has no longer integers; correct"},
	{"1 << -1", "1 << -1 shifts by a negative number; shift the other way"},
	{"3 << 31", "3 << 31 overflows an integer of 32 bits"},
	{"2147483647 + 1", "2147483647 + 1 overflows an integer of 32 bits"},
	{"-2147483647 - 2", "-2147483647 - 2 overflows an integer of 32 bits"},
	{"65536 * 65536", "65536 * 65536 overflows an integer of 32 bits"},
	{"0x7fffffffffffffff + 1", "9223372036854775807 + 1 overflows an integer of 64 bits"},
	{"-(-2147483647 - 1)", "-(-2147483648) overflows an integer of 32 bits"},
	{"(-2147483647 - 1) / -1", "-2147483648 / -1 overflows an integer of 32 bits"},
	{"(-2147483647 - 1) % -1", "-2147483648 % -1 overflows an integer of 32 bits"},
	{"1 ? 1 << 99 : 5", "1 << 99 shifts an integer of 32 bits too far"},
	{"FOUR << 30", "4 << 30 overflows an integer of 32 bits"},
	{"BIG << 63", "8589934592 << 63 overflows an integer of 64 bits"},
	{"((((1)))) << (((((((((400)))))))))", "1 << 400 shifts an integer of 32 bits too far"},
	{"SHIFTED(400)", "1 << 400 shifts an integer of 32 bits too far"},
	{"(unsigned long)1 << 400", "1 << 400 shifts an unsigned integer of 64 bits too far"},
	{"(int)1 << 400", "1 << 400 shifts an integer of 32 bits too far"},
	{"(int)2147483647 + 1", "2147483647 + 1 overflows an integer of 32 bits"},
	{"'a' << 400", "97 << 400 shifts an integer of 32 bits too far"},
	{"sizeof(int) << 400", "4 << 400 shifts an unsigned integer of 64 bits too far"},
	{"SHORTER(1) << 32", "1 << 32 shifts an integer of 32 bits too far"}, // promoted to int
	{"(int64_t)0x7fffffffffffffff * 2", "9223372036854775807 * 2 overflows an integer of 64 bits"},
	{"1 + (int)(sizeof(int) << 64)", "4 << 64 shifts an unsigned integer of 64 bits too far"},
}

// places lists the positions in which constants occur, with %s for the expression, and the name of each in errors. In
// some positions, the C parser itself rejects an expression first.
var places = map[string]struct{ text, line, named string }{
	"macro":      {"#define T_X (%s)\n", "9", "macro T_X: "},
	"enumerator": {"enum e {\nA = %s };\n", "10", "enumerator A: "},
	"array":      {"struct s { int n;\nchar tail[%s]; };\n", "10", "length of array tail: "},
	"slot":       {"struct s { int (*f)(int a[%s]); };\n", "9", "length of array a: "},
	"parameter":  {"int f(int a[%s]);\n", "9", "length of array a: "},
	"aligned":    {"struct s { int n; } __attribute__((aligned(%s)));\n", "9", "struct s: aligned("},
}

// TestConstants checks the values and types of valid expressions.
func TestConstants(t *testing.T) {
	text := constantsBefore
	for i, c := range computed {
		text += fmt.Sprintf("#define T_%d (%s)\n", i, c.expression)
		text += fmt.Sprintf("enum e%d { A%[1]d = %s };\n", i, c.expression)
		if i, err := strconv.Atoi(c.value); err == nil && i >= 0 && i < 1000 {
			text += fmt.Sprintf("struct s%d { char a[%s]; };\n", len(text), c.expression)
		}
	}
	h := read(t, text, "amd64").Headers[0]
	for i, c := range computed {
		m := h.Macros[len(h.Macros)-len(computed)+i]
		require.Equal(t, model.Constant, m.Kind, c.expression)
		assert.Equal(t, c.value, string(*m.Value), c.expression)
		assert.Equal(t, shortNames.Replace(c.typ), shortNames.Replace(m.Type), c.expression)
		e := h.Enums[len(h.Enums)-len(computed)+i]
		assert.Equal(t, c.value, string(e.Enumerators[0].Value), c.expression)
	}
}

// shortNames replaces type names that are equivalent on amd64 by a single name.
var shortNames = strings.NewReplacer("long long", "long", "uint8_t", "unsigned char", "uint64_t", "unsigned long",
	"int8_t", "signed char")

// TestConstantsRejected checks that an expression that overflows its type is rejected in every position, with an error
// that names the declaration and the fix.
func TestConstantsRejected(t *testing.T) {
	for name, place := range places {
		for _, c := range rejected {
			if slices.Contains([]string{"slot", "parameter", "aligned"}, name) && c.expression != "SHIFTED(400)" {
				continue
			}
			t.Run(name+" "+c.expression, func(t *testing.T) {
				err := readText(constantsBefore + strings.Replace(place.text, "%s", c.expression, 1))
				require.ErrorContains(t, err, "include/infiniband/a.h:"+place.line+":")
				theirs := regexp.MustCompile(`:\d+: (A|tail|a|n): (cannot evaluate constant expression|` +
					`invalid array size|alignment must be positive|expected a constant integer value)`)
				if theirs.MatchString(err.Error()) && name != "macro" {
					return
				}
				assert.ErrorContains(t, err, place.named)
				assert.ErrorContains(t, err, c.why)
				assert.Regexp(t, "; (write|correct|shift|C has)", err.Error())
			})
		}
	}
}

// TestConstantsNotPortable checks that expressions are rejected although gcc accepts them, if other targets or
// compilers interpret them differently or if this generator cannot compute them.
func TestConstantsNotPortable(t *testing.T) {
	for expression, want := range map[string]string{
		"U_ONE - 2":                   "the C parser computes 4294967295, this generator -1", // as in C23
		"'\\377'":                     "depends on the compiler or on the signedness of char",
		"(char)200":                   "write signed char or unsigned char",
		"(char)-1":                    "write signed char or unsigned char",
		"(int)(1.5 > 1)":              "is not an integer constant",
		"sizeof(struct packed_s)":     "the C parser cannot compute the size of a structure that is packed",
		"offsetof(struct packed_s,b)": "the C parser cannot compute the size of a structure that is packed",
		"sizeof(A0)":                  "the C parser computes 8, this generator 4",
		// rejected by the C parser; the error gains the declaration's name
		"1 / 0":                 "a.h:10:18: A: cannot evaluate constant expression: 1 / 0; correct the header",
		"1 % (FOUR - 4)":        "a.h:10:18: A: cannot evaluate constant expression",
		"'ab'":                  "a.h:10:18: A: invalid character constant",
		"(char *)8 - (char *)4": "a.h:10:18: A: undefined type: ptrdiff_t",
	} {
		t.Run(expression, func(t *testing.T) {
			before := constantsBefore + "struct packed_s { char a; int b; } __attribute__((packed));\n"
			assert.ErrorContains(t, readText(before+"enum e { A0, A = "+expression+" };\n"), want)
		})
	}
}

// TestMacrosRejected checks that macros that may be constants are evaluated even if the C parser has no value for them.
func TestMacrosRejected(t *testing.T) {
	for text, want := range map[string]string{
		"#define T_X (int)1e10":               "macro T_X: 1e+10 does not fit an integer of 32 bits; write it with",
		"#define T_X (FOUR / 0)":              "macro T_X: 4 / 0 divides by zero; correct the divisor",
		"#define T_ONE SHIFTED(-1)":           "macro T_ONE: 1 << -1 shifts by a negative number; shift the other way",
		"#define T_X 0x12345678901234567ull":  "macro T_X: no C type holds 20988295476557333863; write a number",
		"#define T_X 1.5":                     "",
		"#define T_X 1 +":                     "",
		"#define T_X __attribute__((unused))": "",
		"#define T_X (int) *":                 "",
		"#define T_X struct pair":             "",
		"#define T_X \"a\" \"b\"":             "",
	} {
		err := readText(constantsBefore + text + "\n")
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, "include/infiniband/a.h:9: "+want, text)
		}
	}
}

// TestEnumerators checks that an enumerator without an initializer is the previous value plus one, and that overflows
// are rejected.
func TestEnumerators(t *testing.T) {
	for text, want := range map[string]string{
		"enum e { A = 0xffffffffffffffff, B };": "enumerator B: 18446744073709551615 + 1 overflows an " +
			"unsigned integer of 64 bits; give it a value",
		"enum e { A = 0x7fffffffffffffff, B };": "enumerator B: 9223372036854775807 + 1 overflows",
		"enum e { A = 0x7fffffff, B };":         "enumerator B: 2147483647 + 1 overflows an integer of 32",
		"enum e { A = 0xffffffff, B };":         "enumerator B: 4294967295 + 1 overflows",
		"enum e { A = -1, B = 0xffffffffffffffff };": "enumerator B is 18446744073709551615, which no C type " +
			"holds together with the other enumerators; split the enum",
		"enum e { A = 1, B = A + 2147483647 };": "enumerator B: 1 + 2147483647 overflows an integer of 32 bits",
	} {
		err := readText("\n" + text + "\n")
		assert.ErrorContains(t, err, "include/infiniband/a.h:2: "+want, text)
	}
	e := read(t, "enum e { A, B = 5, C, D = -4, E, F = A - 1 };\n", "amd64").Headers[0].Enums[0]
	var values []string
	for _, n := range e.Enumerators {
		values = append(values, string(n.Value))
	}
	assert.Equal(t, "0 5 6 -4 -3 -1", strings.Join(values, " "))
	assert.True(t, e.Signed)
	assert.EqualValues(t, 4, e.Size)
}

// TestConstantsTerminate checks that macros that double each other or expand to themselves are evaluated in linear
// time.
func TestConstantsTerminate(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	text := "#define A00 1\n#define SELF SELF + SELF\n"
	for i := range 60 {
		text += "#define A" + twoDigits(i+1) + " (A" + twoDigits(i) + " | A" + twoDigits(i) + ")\n"
	}
	assert.NoError(t, readText(text))
}

func twoDigits(i int) string { return string(rune('0'+i/10)) + string(rune('0'+i%10)) }
