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

// The C reader computes in 64 bits without overflow checks: it evaluates 1<<400 as 0. This file therefore evaluates
// every recorded constant again, from the same syntax tree in arbitrary precision, and rejects a constant if C's types
// cannot hold an intermediate result.

// constant evaluates a constant expression, and rejects one for which the C reader has another value.
func (r *reader) constant(n cc.ExpressionNode) (number, error) {
	mine, err := r.compute(n)
	if err != nil {
		return mine, err
	}
	return mine, r.agree(mine, n.Value())
}

// agree compares a value with that of the C reader.
func (r *reader) agree(mine number, value cc.Value) error {
	theirs, ok := intValue(value)
	if !ok {
		return fmt.Errorf("the C reader has no value for it, this generator computes %s; write the number", mine.n)
	}
	if model.Int(mine.n.String()) != theirs {
		return fmt.Errorf("the C reader computes %s, this generator %s; write the number", theirs, mine.n)
	}
	return nil
}

// intValue returns the C reader's integer value of a constant expression.
func intValue(v cc.Value) (model.Int, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return model.IntOf(int64(v)), true
	case cc.UInt64Value:
		return model.UintOf(uint64(v)), true
	}
	return "", false
}

// checkLength rejects an array length that overflows. The length of a parameter is ignored by C and may not be
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
		err = fmt.Errorf("%s elements exceed the address space; correct the number", v.n)
	}
	if err != nil {
		return fmt.Errorf("%s: length of array %s: %w", r.pos(n.AssignmentExpression.Position()), declared(n), err)
	}
	return nil
}

// declared returns the name of a declarator.
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
