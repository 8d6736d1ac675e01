// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"math/big"
	"slices"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

func (r *reader) readEnums() error {
	for _, at := range r.allEnums {
		if at.public {
			if err := r.recordEnum(at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reader) recordEnum(at *locatedEnum) error {
	t, ok := at.spec.Type().(*cc.EnumType)
	if !ok {
		return fmt.Errorf("%s: the C parser assigned no type to the enum (%T)",
			r.pos(at.spec.Position()), at.spec.Type())
	}
	if at.spec.EnumTypeSpecifier != nil {
		return fmt.Errorf("%s: enum %s with an explicit type is not supported", r.pos(at.spec.Position()),
			at.spec.Token2.SrcStr())
	}
	if err := r.computeEnum(at); err != nil {
		return err
	}
	e := model.Enum{Tag: at.spec.Token2.SrcStr(), Size: int64(at.typ.bits) / 8, Signed: !at.typ.unsigned}
	for l := at.spec.EnumeratorList; l != nil; l = l.EnumeratorList {
		n := l.Enumerator
		shift := slices.ContainsFunc(cc.NodeTokens(n), func(t cc.Token) bool { return t.SrcStr() == "<<" })
		e.Enumerators = append(e.Enumerators,
			model.Enumerator{Name: n.Token.SrcStr(), Value: model.Int(r.enumerators[n].n.String()), Shift: shift})
	}
	if e.Size != t.Size() {
		return fmt.Errorf("%s: enum %s: the C parser computes %d bytes, this generator %d", r.pos(at.spec.Position()),
			e.Tag, t.Size(), e.Size)
	}
	h := r.header(at.header, at.public)
	h.Enums = append(h.Enums, e)
	return nil
}

// computeEnum computes the enumerators' values and the enum's type. While the enum is being defined, an enumerator is
// an int if its value fits one, and has its expression's type otherwise; afterwards, all have the enum's type.
func (r *reader) computeEnum(at *locatedEnum) error {
	if at.typ.bits != 0 {
		return nil
	}
	if at.computing {
		return fmt.Errorf("%s: enum %s uses an enumerator before its definition", r.pos(at.spec.Position()),
			at.spec.Token2.SrcStr())
	}
	at.computing = true
	var previous *number
	var all []*cc.Enumerator
	for l := at.spec.EnumeratorList; l != nil; l = l.EnumeratorList {
		n := l.Enumerator
		v, known := r.enumerators[n]
		if !known {
			var err error
			if v, err = r.next(n, previous); err != nil {
				return fmt.Errorf("%s: enumerator %s: %w", r.pos(n.Position()), n.Token.SrcStr(), err)
			}
			r.enumerators[n] = v
		}
		previous, all = &v, append(all, n)
	}
	negative := slices.ContainsFunc(all, func(n *cc.Enumerator) bool { return r.enumerators[n].n.Sign() < 0 })
	at.typ = number{bits: 32, unsigned: !negative}
	for _, n := range all {
		if t := at.typ; !r.enumerators[n].fitsIn(t) {
			at.typ.bits = 64
		}
	}
	for _, n := range all {
		v := r.enumerators[n]
		if !v.fitsIn(at.typ) {
			return fmt.Errorf("%s: enumerator %s is %s, which no C type holds together with the other enumerators; "+
				"split the enum", r.pos(n.Position()), n.Token.SrcStr(), v.n)
		}
		if !v.fitsIn(number{bits: 32}) {
			r.enumerators[n] = v.as(at.typ)
		}
	}
	return nil
}

// fitsIn reports whether the type of t can hold v.
func (v number) fitsIn(t number) bool {
	t.n = v.n
	return t.fits()
}

// next returns the value of an enumerator: its initializer, or the previous value plus one.
func (r *reader) next(n *cc.Enumerator, previous *number) (number, error) {
	var v number
	switch {
	case n.ConstantExpression != nil:
		var err error
		if v, err = r.constant(n.ConstantExpression); err != nil {
			return v, err
		}
		if v.pointer {
			return v, fmt.Errorf("a pointer %w", errUnknown)
		}
		v = v.promoted()
	case previous == nil:
		v = truth(false)
	default:
		v = *previous
		if v.n = new(big.Int).Add(v.n, big.NewInt(1)); !v.fits() {
			return v, fmt.Errorf("%s + 1 overflows %s; give it a value", previous.n, previous.integer())
		}
		if err := r.compareWithParser(v, n.Value()); err != nil {
			return v, err
		}
	}
	if v.fitsIn(number{bits: 32}) {
		v = v.as(number{bits: 32})
	}
	return v, nil
}

// enumerator returns the value of an enumerator in an expression.
func (r *reader) enumerator(n *cc.Enumerator) (number, error) {
	if v, known := r.enumerators[n]; known {
		return v, nil
	}
	at := r.enumOf[n]
	if at == nil {
		return number{}, fmt.Errorf("%s %w", n.Token.SrcStr(), errUnknown)
	}
	if err := r.computeEnum(at); err != nil {
		return number{}, err
	}
	return r.enumerators[n], nil
}

// enumType returns the integer type of an enum.
func (r *reader) enumType(t *cc.EnumType) (number, error) {
	for _, n := range t.Enumerators() {
		if at := r.enumOf[n]; at != nil {
			if err := r.computeEnum(at); err != nil {
				return number{}, err
			}
			return at.typ, nil
		}
	}
	return number{}, fmt.Errorf("an enum that is not defined yet %w", errUnknown)
}
