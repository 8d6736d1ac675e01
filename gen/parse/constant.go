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

// The C parser computes in 64 bits without overflow checks: it evaluates 1<<400 as 0. The generator therefore evaluates
// every recorded constant again, from the same syntax tree in arbitrary precision, and rejects a constant if C's types
// cannot hold an intermediate result.

// constant evaluates a constant expression and rejects it if the C parser computes a different value.
func (r *reader) constant(n cc.ExpressionNode) (number, error) {
	computed, err := r.compute(n)
	if err != nil {
		return computed, err
	}
	return computed, r.compareWithParser(computed, n.Value())
}

// compareWithParser returns an error unless the C parser computed the same value.
func (r *reader) compareWithParser(computed number, value cc.Value) error {
	parsed, ok := intValue(value)
	if !ok {
		return fmt.Errorf("the C parser cannot compute it, this generator computes %s; write the number", computed.n)
	}
	if model.Int(computed.n.String()) != parsed {
		return fmt.Errorf("the C parser computes %s, this generator %s; write the number", parsed, computed.n)
	}
	return nil
}

// intValue returns the integer that the C parser computed for a constant expression.
func intValue(v cc.Value) (model.Int, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return model.IntOf(int64(v)), true
	case cc.UInt64Value:
		return model.UintOf(uint64(v)), true
	}
	return "", false
}

// checkLength rejects an array length that overflows. C ignores the length of a parameter, which need not be constant.
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
