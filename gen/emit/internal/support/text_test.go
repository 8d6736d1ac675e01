// SPDX-License-Identifier: BSD-2-Clause

package support

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

type (
	flags  uint64
	signed int32
	small  uint8
)

var (
	flagNames = []named[flags]{{1, "L_A"}, {2, "L_B"}, {6, "L_B_AND_C"}, {1 << 31, "L_HIGH"}}
	signNames = []named[signed]{{-1, "L_NONE"}, {0, "L_ZERO"}, {7, "L_SEVEN"}}
)

func TestFlags(t *testing.T) {
	for v, want := range map[flags]string{
		0: "0", 1: "L_A", 3: "L_A|L_B", 6: "L_B_AND_C", 7: "L_A|L_B|0x4", 1 << 31: "L_HIGH",
		1<<31 | 1<<40: "L_HIGH|0x10000000000", 0x40: "0x40",
	} {
		assert.Equal(t, want, flagString(v, flagNames))
		var back flags
		assert.NoError(t, parseFlags(&back, "l_flags", []byte(want), flagNames))
		assert.Equal(t, v, back)
	}
	assert.Equal(t, "0xffffffffffffffff", flagString(flags(math.MaxUint64), nil))
	for text, want := range map[string]flags{"": 0, " \n": 0, " A | 0x40|L_B ": 0x43, "12": 12, "B_AND_C": 6, "0": 0} {
		v := flags(99)
		assert.NoError(t, parseFlags(&v, "l_flags", []byte(text), flagNames))
		assert.Equal(t, want, v, "%q", text)
	}
	for _, text := range []string{"|", "L_A|", "|L_A", "L_A||L_B", "l_a", "L_C", "-1", "0x", "1e3", "L_A,L_B",
		"18446744073709551616", "0x10000000000000000", "L_"} {
		v := flags(99)
		assert.ErrorContains(t, parseFlags(&v, "l_flags", []byte(text), flagNames), " is not a flag of l_flags: ", text)
		assert.Equal(t, flags(99), v, "%q: an error must leave the value unchanged", text)
	}
}

func TestEnums(t *testing.T) {
	for v, want := range map[signed][3]string{
		-1: {"L_NONE", "L_NONE", `"L_NONE"`}, 0: {"L_ZERO", "L_ZERO", `"L_ZERO"`}, 9: {"l_enum(9)", "9", "9"},
		math.MinInt32: {"l_enum(-2147483648)", "-2147483648", "-2147483648"},
	} {
		assert.Equal(t, want, [3]string{enumString(v, "l_enum", signNames), string(enumText(v, signNames)),
			string(enumJSON(v, signNames))})
		for _, text := range want {
			var back signed
			assert.NoError(t, fromJSON([]byte(text), func(b []byte) error {
				return parseEnum(&back, "l_enum", b, signNames)
			}))
			assert.Equal(t, v, back, text)
		}
	}
	v := signed(5)
	assert.NoError(t, parseEnum(&v, "l_enum", []byte("SEVEN"), signNames))
	assert.Equal(t, signed(7), v)
	assert.NoError(t, fromJSON([]byte("null"), func([]byte) error { t.Error("parse called for null"); return nil }))
	for _, text := range []string{"", "seven", "L_SEVEN|L_ZERO", "2147483648", "-2147483649", "l_enum(", "l_enum()",
		"l_enum(x)", "other(7)", "--1", "+1", "1.0", "true", "{}"} {
		assert.Error(t, parseEnum(&v, "l_enum", []byte(text), signNames), "%q", text)
		assert.Equal(t, signed(7), v)
	}
	err := parseEnum(&v, "l_enum", []byte("wrong\x1b[31m\"\u00e4"+strings.Repeat("x", 1000)), signNames)
	assert.EqualError(t, err, `"wrong?[31m???`+strings.Repeat("x", 47)+`..." is not a value of l_enum: write a `+
		"number that fits, L_NONE, L_ZERO, L_SEVEN")
	many := make([]named[small], 20)
	for i := range many {
		many[i] = named[small]{small(i), fmt.Sprint("N", i)}
	}
	assert.ErrorContains(t, parseEnum(new(small), "l", []byte("x"), many), ", N11 or one of 8 more names")
	for _, text := range []string{"256", "-1", "0x100"} {
		assert.Error(t, parseEnum(new(small), "l", []byte(text), many), text)
	}
}

// FuzzIntegers compares with strconv.
func FuzzIntegers(f *testing.F) {
	for _, s := range []string{"", "0", "-0", "127", "128", "-128", "-129", "0xff", "0x", "-0x80",
		"99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		digits, base := strings.TrimPrefix(s, "-"), 10
		if rest := withoutHex(digits); rest != digits {
			digits, base = rest, 16
		}
		if strings.ContainsAny(digits, "+-_") {
			digits = "none"
		}
		text := digits
		if s != "" && s[0] == '-' {
			text = "-" + text
		}
		want, err := strconv.ParseInt(text, base, 8)
		got, ok := parseInteger[int8](s)
		assert.Equal(t, err == nil, ok, "%q", s)
		if ok {
			assert.Equal(t, int8(want), got)
			assert.Equal(t, strconv.Itoa(int(got)), string(appendInteger(nil, got)))
		}
		wantU, err := strconv.ParseUint(strings.Replace(text, "-0", "0", 1), base, 64)
		gotU, ok := parseInteger[uint64](s)
		if ok {
			assert.Equal(t, wantU, gotU, "%q", s)
		} else if !strings.HasPrefix(text, "-") {
			assert.Error(t, err, "%q", s)
		}
	})
}
