// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"math"
	"math/big"

	"modernc.org/cc/v4"
)

// cast evaluates a cast.
func (e *evaluator) cast(n *cc.CastExpression) (number, error) {
	to, err := e.typeOf(n.TypeName.Type())
	if err != nil {
		return number{}, fmt.Errorf("%s: %w", text(n.TypeName), err)
	}
	if f, ok := n.CastExpression.(cc.ExpressionNode); ok {
		if x, ok := f.Value().(cc.Float64Value); ok {
			return e.truncate(float64(x), to)
		}
	}
	v, err := e.value(n.CastExpression)
	if err != nil {
		return number{}, err
	}
	plain := v.n.Sign() >= 0 && v.n.Cmp(big.NewInt(127)) <= 0
	if v = v.as(to); n.TypeName.Type().Kind() == cc.Char && !plain {
		return e.overflow(v, "%s has a different value where char is unsigned; write signed char or unsigned char",
			text(n))
	}
	return v, nil
}

// truncate converts a floating-point number to an integer.
func (e *evaluator) truncate(f float64, to number) (number, error) {
	if to.bits == 1 {
		to.n = truth(f != 0).n
		return to, nil
	}
	to.n = new(big.Int)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return e.overflow(to, "%g is not an integer; correct the number", f)
	}
	if n, _ := big.NewFloat(f).Int(nil); n.Sign() != 0 {
		to.n = n
	}
	if !to.fits() {
		return e.overflow(to, "%g does not fit %s; %s", f, to.integer(), to.longer())
	}
	return to, nil
}

// typeOf returns a C type as a number without a value.
func (e *evaluator) typeOf(t cc.Type) (number, error) {
	if enum, ok := t.(*cc.EnumType); ok {
		return e.r.enumType(enum)
	}
	if t.Kind() == cc.Ptr {
		return number{bits: e.r.bitsOf(cc.Ptr), unsigned: true, pointer: true}, nil
	}
	if t.Kind() == cc.Bool {
		return number{bits: 1, unsigned: true}, nil
	}
	if !cc.IsIntegerType(t) || t.Size() > 8 {
		return number{}, fmt.Errorf("a cast to a type other than an integer of at most 64 bits %w", errUnknown)
	}
	return number{bits: uint(t.Size()) * 8, unsigned: !cc.IsSignedInteger(t)}, nil
}

// bitsOf returns the width of an integer kind on this target.
func (r *reader) bitsOf(kind cc.Kind) uint { return uint(r.ast.ABI.Types[kind].Size) * 8 }
