// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"errors"
	"fmt"
	"math"
	"math/big"

	"modernc.org/cc/v4"
)

// maxExpression limits the depth of an expression. Macros can nest expressions deeper than checkNesting detects.
const maxExpression = 10_000

// errUnknown is returned for an expression that is not constant or not supported.
var errUnknown = errors.New("is not an integer constant that this generator can compute; rewrite it, or extend " +
	"gen/parse/expression.go")

// evaluator evaluates C constant expressions with C's types and conversions, in arbitrary precision.
type evaluator struct {
	r       *reader
	depth   int
	skipped int // nesting depth of operands that C does not evaluate; only their types matter
}

// compute evaluates a constant expression.
func (r *reader) compute(n cc.Node) (number, error) {
	e := evaluator{r: r}
	return e.value(n)
}

// overflow rejects an operation that overflows. In an operand that C does not evaluate, the result has a type but no
// value.
func (e *evaluator) overflow(t number, format string, args ...any) (number, error) {
	if e.skipped > 0 {
		return t.as(t), nil
	}
	return t, fmt.Errorf(format, args...)
}

// unknown returns errUnknown for an expression.
func unknown(n cc.Node) (number, error) {
	s := text(n)
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return number{}, fmt.Errorf("%s %w", s, errUnknown)
}

// value evaluates an expression.
func (e *evaluator) value(n cc.Node) (number, error) {
	if e.depth++; e.depth > maxExpression {
		return number{}, fmt.Errorf("operations nested more than %d deep; split the expression", maxExpression)
	}
	defer func() { e.depth-- }()
	switch n := n.(type) {
	case *cc.ConstantExpression:
		return e.value(n.ConditionalExpression)
	case *cc.AssignmentExpression:
		if n.Case == cc.AssignmentExpressionCond {
			return e.value(n.ConditionalExpression)
		}
	case *cc.ExpressionList:
		if n.ExpressionList == nil {
			return e.value(n.AssignmentExpression)
		}
	case *cc.ConditionalExpression:
		if n.Case == cc.ConditionalExpressionLOr {
			return e.value(n.LogicalOrExpression)
		}
		return e.choice(n)
	case *cc.LogicalOrExpression:
		return e.logical(n.LogicalOrExpression, n.LogicalAndExpression, true)
	case *cc.LogicalAndExpression:
		return e.logical(n.LogicalAndExpression, n.InclusiveOrExpression, false)
	case *cc.InclusiveOrExpression:
		return e.binary(n.InclusiveOrExpression, n.Token, n.ExclusiveOrExpression)
	case *cc.ExclusiveOrExpression:
		return e.binary(n.ExclusiveOrExpression, n.Token, n.AndExpression)
	case *cc.AndExpression:
		return e.binary(n.AndExpression, n.Token, n.EqualityExpression)
	case *cc.EqualityExpression:
		return e.binary(n.EqualityExpression, n.Token, n.RelationalExpression)
	case *cc.RelationalExpression:
		return e.binary(n.RelationalExpression, n.Token, n.ShiftExpression)
	case *cc.ShiftExpression:
		return e.binary(n.ShiftExpression, n.Token, n.AdditiveExpression)
	case *cc.AdditiveExpression:
		return e.binary(n.AdditiveExpression, n.Token, n.MultiplicativeExpression)
	case *cc.MultiplicativeExpression:
		return e.binary(n.MultiplicativeExpression, n.Token, n.CastExpression)
	case *cc.CastExpression:
		if n.Case == cc.CastExpressionUnary {
			return e.value(n.UnaryExpression)
		}
		return e.cast(n)
	case *cc.UnaryExpression:
		return e.unary(n)
	case *cc.PostfixExpression:
		if n.Case == cc.PostfixExpressionPrimary {
			return e.value(n.PrimaryExpression)
		}
	case *cc.PrimaryExpression:
		return e.primary(n)
	}
	return unknown(n)
}

// operand evaluates an operand; C does not evaluate it if skipped is true.
func (e *evaluator) operand(skipped bool, n cc.Node) (number, error) {
	if skipped {
		e.skipped++
		defer func() { e.skipped-- }()
	}
	return e.value(n)
}

// choice evaluates condition ? a : b.
func (e *evaluator) choice(n *cc.ConditionalExpression) (number, error) {
	condition, err := e.value(n.LogicalOrExpression)
	if err != nil {
		return number{}, err
	}
	chosen := condition.n.Sign() != 0
	if n.ExpressionList == nil { // condition ?: b, an extension of GCC
		return unknown(n)
	}
	yes, err := e.operand(!chosen, n.ExpressionList)
	if err != nil {
		return number{}, err
	}
	no, err := e.operand(chosen, n.ConditionalExpression)
	if err != nil {
		return number{}, err
	}
	if yes.pointer != no.pointer {
		return unknown(n)
	}
	if !yes.pointer {
		yes, no = usualConversions(yes, no)
	}
	if chosen {
		return yes, nil
	}
	return no, nil
}

// logical evaluates || or &&; the left operand may decide the result.
func (e *evaluator) logical(left, right cc.Node, or bool) (number, error) {
	a, err := e.value(left)
	if err != nil {
		return number{}, err
	}
	decided := (a.n.Sign() != 0) == or
	b, err := e.operand(decided, right)
	if err != nil {
		return number{}, err
	}
	if decided {
		return truth(or), nil
	}
	return truth(b.n.Sign() != 0), nil
}

func (e *evaluator) binary(left cc.Node, op cc.Token, right cc.Node) (number, error) {
	a, err := e.value(left)
	if err != nil {
		return number{}, err
	}
	b, err := e.value(right)
	if err != nil {
		return number{}, err
	}
	if a.pointer || b.pointer {
		return number{}, fmt.Errorf("%s of a pointer %w", op.SrcStr(), errUnknown)
	}
	switch op := op.SrcStr(); op {
	case "<<", ">>":
		return e.shift(op, a.promoted(), b.promoted())
	default:
		return e.apply(op, a, b)
	}
}

var comparisons = map[string]func(order int) bool{
	"==": func(order int) bool { return order == 0 }, "!=": func(order int) bool { return order != 0 },
	"<": func(order int) bool { return order < 0 }, ">": func(order int) bool { return order > 0 },
	"<=": func(order int) bool { return order <= 0 }, ">=": func(order int) bool { return order >= 0 },
}

var operations = map[string]func(z, x, y *big.Int) *big.Int{
	"|": (*big.Int).Or, "^": (*big.Int).Xor, "&": (*big.Int).And, "+": (*big.Int).Add, "-": (*big.Int).Sub,
	"*": (*big.Int).Mul, "/": (*big.Int).Quo, "%": (*big.Int).Rem,
}

func (e *evaluator) apply(op string, a, b number) (number, error) {
	a, b = usualConversions(a, b)
	if compare := comparisons[op]; compare != nil {
		return truth(compare(a.n.Cmp(b.n))), nil
	}
	if (op == "/" || op == "%") && b.n.Sign() == 0 {
		return e.overflow(a, "%s %s 0 divides by zero; correct the divisor", a.n, op)
	}
	v := a
	v.n = operations[op](new(big.Int), a.n, b.n)
	if op == "%" && !v.unsigned { // INT_MIN % -1: the quotient overflows
		if q := (number{n: new(big.Int).Quo(a.n, b.n), bits: v.bits}); !q.fits() {
			return e.overflow(a, "%s %% %s overflows %s; %s", a.n, b.n, a.integer(), a.longer())
		}
	}
	if !v.unsigned && !v.fits() {
		return e.overflow(v, "%s %s %s overflows %s; %s", a.n, op, b.n, a.integer(), a.longer())
	}
	return v.wrapped(), nil
}

// shift allows shifting a one into the sign bit, as in 1<<31, but no further. Like gcc, it shifts negative numbers left
// by multiplying.
func (e *evaluator) shift(op string, a, b number) (number, error) {
	if b.n.Sign() < 0 {
		return e.overflow(a, "%s %s %s shifts by a negative number; shift the other way", a.n, op, b.n)
	}
	if b.n.Cmp(big.NewInt(int64(a.bits))) >= 0 {
		return e.overflow(a, "%s %s %s shifts %s too far; %s", a.n, op, b.n, a.integer(), a.longer())
	}
	v, by := a, uint(b.n.Uint64())
	if op == ">>" {
		v.n = new(big.Int).Rsh(a.n, by)
		return v, nil
	}
	v.n = new(big.Int).Lsh(a.n, by)
	if bits := (number{n: v.n, bits: a.bits, unsigned: true}); !a.unsigned && !v.fits() && !bits.fits() {
		return e.overflow(a, "%s << %s overflows %s; %s", a.n, b.n, a.integer(), a.longer())
	}
	return v.wrapped(), nil
}

func (e *evaluator) unary(n *cc.UnaryExpression) (number, error) {
	switch n.Case {
	case cc.UnaryExpressionPostfix:
		return e.value(n.PostfixExpression)
	case cc.UnaryExpressionSizeofExpr, cc.UnaryExpressionAlignofExpr:
		return e.sizeofExpression(n)
	case cc.UnaryExpressionSizeofType, cc.UnaryExpressionAlignofType:
		return e.known(n, n.TypeName.Type())
	case cc.UnaryExpressionAddrof:
		return e.address(n)
	case cc.UnaryExpressionPlus, cc.UnaryExpressionMinus, cc.UnaryExpressionCpl, cc.UnaryExpressionNot:
	default:
		return unknown(n)
	}
	v, err := e.value(n.CastExpression)
	if err != nil {
		return number{}, err
	}
	if n.Case == cc.UnaryExpressionNot {
		return truth(v.n.Sign() == 0), nil
	}
	if v.pointer {
		return unknown(n)
	}
	v = v.promoted()
	switch n.Case {
	case cc.UnaryExpressionMinus:
		minus := v
		if minus.n = new(big.Int).Neg(v.n); !v.unsigned && !minus.fits() {
			return e.overflow(v, "-(%s) overflows %s; %s", v.n, v.integer(), v.longer())
		}
		return minus.wrapped(), nil
	case cc.UnaryExpressionCpl:
		v.n = new(big.Int).Not(v.n)
		return v.wrapped(), nil
	}
	return v, nil
}

// sizeofExpression returns the size or alignment of the type of an expression, which C does not evaluate. Within its
// own enum, an enumerator has a different type than in the C parser.
func (e *evaluator) sizeofExpression(n *cc.UnaryExpression) (number, error) {
	if v, err := e.operand(true, n.UnaryExpression); err == nil && !v.pointer {
		return e.size(int64(v.bits+7) / 8)
	}
	operand, ok := n.UnaryExpression.(cc.ExpressionNode)
	if !ok {
		return unknown(n)
	}
	return e.known(n, operand.Type())
}

// known returns the size, alignment or offset that the C parser computed for this type.
func (e *evaluator) known(n cc.ExpressionNode, of cc.Type) (number, error) {
	if p, ok := of.(*cc.PointerType); ok && p.IsIncomplete() {
		return unknown(n)
	}
	if e.r.hasPacked(of) { // the C parser ignores packed
		return number{}, fmt.Errorf("%s: the C parser cannot compute the size of a structure that is packed or has "+
			"bitfields; write the number", text(n))
	}
	switch v := n.Value().(type) {
	case cc.Int64Value:
		return e.size(int64(v))
	case cc.UInt64Value:
		if v <= math.MaxInt64 {
			return e.size(int64(v))
		}
	}
	return unknown(n)
}

// size returns a number of type size_t.
func (e *evaluator) size(n int64) (number, error) {
	if n < 0 {
		return number{}, fmt.Errorf("invalid size of %d bytes; correct the type", n)
	}
	return number{n: big.NewInt(n), bits: e.r.bitsOf(cc.Ptr), unsigned: true}, nil
}

// address evaluates &((type *)0)->member, to which offsetof expands.
func (e *evaluator) address(n *cc.UnaryExpression) (number, error) {
	var packed cc.Type
	walk(n.CastExpression, func(inner cc.Node) bool {
		if x, ok := inner.(*cc.PostfixExpression); ok && x.PostfixExpression != nil {
			t := x.PostfixExpression.Type()
			if p, ok := t.(*cc.PointerType); ok {
				t = p.Elem()
			}
			if e.r.hasPacked(t) {
				packed = t
			}
		}
		return true
	})
	if packed == nil {
		packed = n.CastExpression.Type()
	}
	v, err := e.known(n, packed)
	v.pointer = true
	return v, err
}

// primary evaluates a number, a character, an enumerator or a parenthesized expression.
func (e *evaluator) primary(n *cc.PrimaryExpression) (number, error) {
	switch n.Case {
	case cc.PrimaryExpressionInt:
		return literalNumber(n.Token.SrcStr(), e.r.bitsOf(cc.Long))
	case cc.PrimaryExpressionExpr:
		return e.value(n.ExpressionList)
	case cc.PrimaryExpressionChar:
		return e.character(n)
	case cc.PrimaryExpressionIdent:
		if enumerator, ok := n.ResolvedTo().(*cc.Enumerator); ok {
			return e.r.enumerator(enumerator)
		}
	}
	return unknown(n)
}

// character evaluates a character constant of type int. The value of non-ASCII characters depends on the signedness of
// char, and that of multi-character constants on the compiler.
func (e *evaluator) character(n *cc.PrimaryExpression) (number, error) {
	v, ok := n.Value().(cc.Int64Value)
	if !ok || v < 0 || v > 127 {
		return number{}, fmt.Errorf("the value of %s depends on the compiler or on the signedness of char; write the "+
			"number", n.Token.SrcStr())
	}
	return number{n: big.NewInt(int64(v)), bits: 32}, nil
}
