// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// number is a C integer.
type number struct {
	n        *big.Int
	bits     uint // 1 for _Bool
	unsigned bool
	pointer  bool
}

var errTooLong = errors.New("no C type holds")

// firstFit returns n with the first of the types that can hold it.
func firstFit(n *big.Int, types ...number) (number, error) {
	for _, t := range types {
		t.n = n
		if t.fits() {
			return t, nil
		}
	}
	return number{}, fmt.Errorf("%w %s; write a number of at most 64 bits", errTooLong, n)
}

func (v number) fits() bool {
	low, high := big.NewInt(0), new(big.Int).Lsh(big.NewInt(1), v.bits)
	if !v.unsigned {
		high.Rsh(high, 1)
		low.Neg(high)
	}
	return v.n.Cmp(low) >= 0 && v.n.Cmp(high) < 0
}

// wrapped returns the value truncated to its type.
func (v number) wrapped() number {
	n := new(big.Int).And(v.n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), v.bits), big.NewInt(1)))
	if v.n = n; !v.fits() {
		v.n = n.Sub(n, new(big.Int).Lsh(big.NewInt(1), v.bits))
	}
	return v
}

// as converts v to the type of t.
func (v number) as(t number) number {
	if t.bits == 1 {
		t.n = big.NewInt(int64(min(v.n.CmpAbs(new(big.Int)), 1)))
		return t
	}
	t.n = v.n
	return t.wrapped()
}

// promoted applies the integer promotions.
func (v number) promoted() number {
	if v.bits < 32 {
		v.bits, v.unsigned = 32, false
	}
	return v
}

// usualConversions applies the usual arithmetic conversions to two operands.
func usualConversions(a, b number) (number, number) {
	a, b = a.promoted(), b.promoted()
	bits := max(a.bits, b.bits)
	t := number{bits: bits, unsigned: a.unsigned && a.bits == bits || b.unsigned && b.bits == bits}
	return a.as(t), b.as(t)
}

// integer describes the type of v for error messages.
func (v number) integer() string {
	if v.unsigned {
		return fmt.Sprintf("an unsigned integer of %d bits", v.bits)
	}
	return fmt.Sprintf("an integer of %d bits", v.bits)
}

// longer returns the hint for a value that is too large for its type.
func (v number) longer() string {
	if v.bits < 64 {
		return "write it with a suffix or a cast that makes it longer, such as ULL"
	}
	return "C has no longer integers; correct the number"
}

func truth(yes bool) number {
	if yes {
		return number{n: big.NewInt(1), bits: 32}
	}
	return number{n: big.NewInt(0), bits: 32}
}

// literalNumber parses an integer literal; its type is the first one that can hold the value. Only literals with a
// suffix, or in octal or hexadecimal, can be unsigned.
func literalNumber(word string, long uint) (number, error) {
	digits := strings.TrimRight(strings.ToLower(word), "ul")
	suffix := strings.ToLower(word)[len(digits):]
	n, ok := new(big.Int).SetString(digits, 0)
	if !ok {
		return number{}, fmt.Errorf("%s is not an integer", word)
	}
	shortest := uint(32)
	switch strings.Count(suffix, "l") {
	case 1:
		shortest = long
	case 2:
		shortest = 64
	}
	var types []number
	for _, bits := range []uint{32, 64} {
		if bits < shortest {
			continue
		}
		if !strings.Contains(suffix, "u") {
			types = append(types, number{bits: bits})
		}
		if digits[0] == '0' || strings.Contains(suffix, "u") {
			types = append(types, number{bits: bits, unsigned: true})
		}
	}
	return firstFit(n, types...)
}
