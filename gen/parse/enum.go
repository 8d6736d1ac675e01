package parse

import (
	"fmt"
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
		return fmt.Errorf("%s: the C reader gave the enum no type (%T)", r.pos(at.spec.Position()), at.spec.Type())
	}
	e := model.Enum{Tag: at.spec.Token2.SrcStr(), Size: t.Size()}
	for l := at.spec.EnumeratorList; l != nil; l = l.EnumeratorList {
		n := l.Enumerator
		value, ok := intValue(n.Value())
		if !ok {
			return fmt.Errorf("%s: %s has no integer value", r.pos(n.Position()), n.Token.SrcStr())
		}
		if n.ConstantExpression != nil {
			if err := r.checkConstant(cc.NodeTokens(n.ConstantExpression), n.Value()); err != nil {
				return fmt.Errorf("%s: %s: %w", r.pos(n.Position()), n.Token.SrcStr(), err)
			}
		}
		e.Signed = e.Signed || value.Negative()
		shift := slices.ContainsFunc(cc.NodeTokens(n), func(t cc.Token) bool { return t.SrcStr() == "<<" })
		e.Enumerators = append(e.Enumerators, model.Enumerator{Name: n.Token.SrcStr(), Value: value, Shift: shift})
	}
	for _, n := range e.Enumerators {
		if !e.Holds(n.Value) {
			return fmt.Errorf("%s: %s is %s, which no type of C holds together with the other enumerators",
				r.pos(r.enumerators[n.Name].Position()), n.Name, n.Value)
		}
	}
	h := r.header(at.header, at.public)
	h.Enums = append(h.Enums, e)
	return nil
}

// intValue is the integer that a constant expression has.
func intValue(v cc.Value) (model.Int, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return model.IntOf(int64(v)), true
	case cc.UInt64Value:
		return model.UintOf(uint64(v)), true
	}
	return "", false
}
