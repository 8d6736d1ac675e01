package parse

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestConstants: expressions that C computes without a mistake are read, with the value that C gives them; the C
// reader's own value is held against this generator's. Others are refused.
func TestConstants(t *testing.T) {
	for expression, want := range map[string]string{
		"1 << 31":                         "",
		"1U << 31":                        "",
		"1ULL << 63":                      "",
		"~0U << 4":                        "",
		"0xffffffffu + 1":                 "",
		"-2147483647 - 1":                 "",
		"0x7fffffff + 1u":                 "",
		"0xffffffff + 1":                  "", // hexadecimal numbers may be unsigned
		"2147483648 + 1":                  "", // decimal ones are long instead
		"1 ? 5 : 1 << 99":                 "", // not evaluated
		"0 && 1 / 0":                      "",
		"1 || 1 << 99":                    "",
		"(1 + 2) * 3 % 4 ^ 8 | 16":        "",
		"5 > 3 && 3 <= 3 && 2 != 3 && !0": "",
		"-5 / 2 + -5 % 2":                 "",
		"-1 >> 1":                         "",
		"sizeof(int) << 99 >> 99":         "", // sizes are not computed here
		"1 << 32": "1 << 32 shifts an integer of 32 bits too far; write it with a suffix " +
			"that makes it longer, such as ULL",
		"1ull << 64":                         "1 << 64 shifts an integer of 64 bits too far",
		"3 << 31":                            "3 << 31 overflows an integer of 32 bits",
		"2147483647 + 1":                     "2147483647 + 1 overflows an integer of 32 bits",
		"-2147483647 - 2":                    "-2147483647 - 2 overflows an integer of 32 bits",
		"65536 * 65536":                      "65536 * 65536 overflows an integer of 32 bits",
		"0x7fffffffffffffff + 1":             "9223372036854775807 + 1 overflows an integer of 64 bits",
		"-(-2147483647 - 1)":                 "2147483648 overflows an integer of 32 bits",
		"1 ? 1 << 99 : 5":                    "1 << 99 shifts an integer of 32 bits too far",
		"FOUR << 30":                         "4 << 30 overflows an integer of 32 bits",
		"BIG << 1":                           "",
		"BIG << 63":                          "8589934592 << 63 overflows an integer of 64 bits",
		"((((1)))) << (((((((((400)))))))))": "1 << 400 shifts an integer of 32 bits too far",
	} {
		t.Run(expression, func(t *testing.T) {
			err := readText("enum b { FOUR = 4, BIG = 1ll << 33 };\n\n#define T_X (" + expression + ")\nenum e { A = " +
				expression + " };\n")
			if want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, want)
			assert.ErrorContains(t, err, "include/infiniband/a.h:")
		})
	}
}

// TestConstantsEnd: macros that double each other, or name themselves, are computed once.
func TestConstantsEnd(t *testing.T) {
	text := "#define A00 1\n#define SELF SELF + SELF\n"
	for i := range 60 {
		text += "#define A" + number2(i+1) + " (A" + number2(i) + " | A" + number2(i) + ")\n"
	}
	assert.NoError(t, readText(text))
}

func number2(i int) string { return string(rune('0'+i/10)) + string(rune('0'+i%10)) }
