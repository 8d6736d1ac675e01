// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"errors"
	"fmt"
	"math"
	"math/big"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// The C reader computes with 64 bits and says nothing where a constant expression leaves its type: 1<<400 is 0 to it.
// Here every constant that is recorded is computed again, from the same syntax tree and with numbers of any size, and
// refused where C's own types cannot hold a step of it.

// constant gives the value of a constant expression, and refuses one of which the C reader made another value.
func (r *reader) constant(n cc.ExpressionNode) (number, error) {
	mine, err := r.compute(n)
	if err != nil {
		return mine, err
	}
	return mine, r.agree(mine, n.Value())
}

// agree holds a value against what the C reader made of it.
func (r *reader) agree(mine number, value cc.Value) error {
	theirs, ok := intValue(value)
	if !ok {
		return fmt.Errorf("the C reader gives it no value, this generator %s; write the number", mine.n)
	}
	if model.Int(mine.n.String()) != theirs {
		return fmt.Errorf("the C reader makes it %s, this generator %s; write the number", theirs, mine.n)
	}
	return nil
}

// intValue is the integer that the C reader gives a constant expression.
func intValue(v cc.Value) (model.Int, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return model.IntOf(int64(v)), true
	case cc.UInt64Value:
		return model.UintOf(uint64(v)), true
	}
	return "", false
}

// checkLength refuses the length of an array that overflows. That of a parameter means nothing to C and may be no
// constant.
func (r *reader) checkLength(n *cc.DirectDeclarator) error {
	v, err := r.constant(n.AssignmentExpression)
	if r.inParam[n] && errors.Is(err, errUnknown) {
		return nil
	}
	if err == nil && v.n.Sign() < 0 {
		err = fmt.Errorf("%s is negative; correct the number", v.n)
	}
	if err == nil && v.n.Cmp(big.NewInt(math.MaxInt64)) > 0 {
		err = fmt.Errorf("%s elements are more than every address space has; correct the number", v.n)
	}
	if err != nil {
		return fmt.Errorf("%s: length of array %s: %w", r.pos(n.AssignmentExpression.Position()), declared(n), err)
	}
	return nil
}

// declared is the name that a declarator declares.
func declared(n *cc.DirectDeclarator) string {
	for ; n != nil; n = n.DirectDeclarator {
		if n.Case == cc.DirectDeclaratorIdent {
			return n.Token.SrcStr()
		}
		if n.Case == cc.DirectDeclaratorDecl {
			return n.Declarator.Name()
		}
	}
	return "without a name"
}
