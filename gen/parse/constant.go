package parse

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// The C reader computes with 64 bits and says nothing where a constant expression leaves its type: 1<<400 is 0 to it.
// Here the expression is computed again with numbers of any size, and refused where C's own types cannot hold a step
// of it.

// checkConstant refuses a constant expression that overflows, and one of which the C reader made another value. What
// is not known here (sizeof, casts, floating point) ends the check and is no error.
func (r *reader) checkConstant(tokens []cc.Token, value cc.Value) error {
	mine, err := r.compute(tokens, 0)
	if err != nil || mine.n == nil {
		return err
	}
	if theirs, ok := intValue(value); ok && model.Int(mine.n.String()) != theirs {
		return fmt.Errorf("the C reader makes it %s, this generator %s", theirs, mine.n)
	}
	return nil
}

// compute gives the value of an expression, or none where it is not known.
func (r *reader) compute(tokens []cc.Token, depth int) (number, error) {
	e := evaluator{r: r, depth: depth}
	for _, t := range tokens {
		if s := strings.TrimSpace(t.SrcStr()); s != "" {
			e.words = append(e.words, s)
		}
	}
	v := e.choice()
	if len(e.words) > 0 {
		v = number{}
	}
	return v, e.err
}

// named is the value of an enumerator or of what a macro stands for.
func (r *reader) named(name string, depth int) (number, error) {
	if m := r.ast.Macros[name]; m != nil && !m.IsFnLike {
		v, known := r.macros[name]
		if !known {
			r.macros[name] = number{} // a macro that names itself has no value
			var err error
			if v, err = r.compute(m.ReplacementList(), depth+1); err != nil {
				return v, err
			}
			r.macros[name] = v
		}
		return v, nil
	}
	if n := r.enumerators[name]; n != nil {
		if v, ok := intValue(n.Value()); ok {
			return smallest(v)
		}
	}
	return number{}, nil
}

// smallest gives a value the type int where that holds it, else a longer one.
func smallest(v model.Int) (number, error) {
	n, ok := new(big.Int).SetString(string(v), 10)
	if !ok {
		return number{}, fmt.Errorf("%q is no number", v)
	}
	return firstFit(n, number{bits: 32}, number{bits: 64}, number{bits: 64, unsigned: true})
}

// number is an integer of C; n is nil where the value is not known.
type number struct {
	n        *big.Int
	bits     uint
	unsigned bool
}

// firstFit gives n the first of these types that holds it.
func firstFit(n *big.Int, types ...number) (number, error) {
	for _, t := range types {
		t.n = n
		if t.fits() {
			return t, nil
		}
	}
	return number{}, fmt.Errorf("no type of C holds %s", n)
}

func (v number) fits() bool {
	low, high := big.NewInt(0), new(big.Int).Lsh(big.NewInt(1), v.bits)
	if !v.unsigned {
		high.Rsh(high, 1)
		low.Neg(high)
	}
	return v.n.Cmp(low) >= 0 && v.n.Cmp(high) < 0
}

// wrapped is what a machine keeps of a number.
func (v number) wrapped() number {
	n := new(big.Int).And(v.n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), v.bits), big.NewInt(1)))
	if v.n = n; !v.fits() {
		v.n = n.Sub(n, new(big.Int).Lsh(big.NewInt(1), v.bits))
	}
	return v
}

// evaluator computes an expression from its words, which it takes away from the front.
type evaluator struct {
	r     *reader
	words []string
	depth int // of macros in macros
	idle  int // in operands that C does not evaluate
	err   error
}

func (e *evaluator) fail(format string, args ...any) number {
	if e.err == nil && e.idle == 0 {
		e.err = fmt.Errorf(format, args...)
	}
	return number{}
}

// take takes the next word away if it is one of these.
func (e *evaluator) take(words ...string) string {
	if len(e.words) > 0 && slices.Contains(words, e.words[0]) {
		word := e.words[0]
		e.words = e.words[1:]
		return word
	}
	return ""
}

// choice is a ? b : c, or what binds closer.
func (e *evaluator) choice() number {
	if e.depth++; e.depth > 4*maxNesting {
		return e.fail("more than %d parentheses and macros within each other", 4*maxNesting)
	}
	defer func() { e.depth-- }()
	condition := e.binary(0)
	if e.take("?") == "" {
		return condition
	}
	yes := e.operand(condition.n != nil && condition.n.Sign() == 0, e.choice)
	if e.take(":") == "" {
		return number{}
	}
	no := e.operand(condition.n != nil && condition.n.Sign() != 0, e.choice)
	if condition.n == nil || yes.n == nil || no.n == nil {
		return number{}
	}
	yes, no = alike(yes, no)
	if condition.n.Sign() != 0 {
		return yes
	}
	return no
}

// operand computes an operand, which C may not evaluate.
func (e *evaluator) operand(idle bool, compute func() number) number {
	if idle {
		e.idle++
		defer func() { e.idle-- }()
	}
	return compute()
}

// precedence are the operators of two operands, those that bind least first.
var precedence = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/",
		"%"},
}

func (e *evaluator) binary(level int) number {
	if level == len(precedence) {
		return e.unary()
	}
	left := e.binary(level + 1)
	for {
		op := e.take(precedence[level]...)
		if op == "" {
			return left
		}
		decided := left.n != nil && (op == "||" && left.n.Sign() != 0 || op == "&&" && left.n.Sign() == 0)
		right := e.operand(decided, func() number { return e.binary(level + 1) })
		if left.n == nil || right.n == nil {
			left = number{}
			continue
		}
		left = e.apply(op, left, right)
	}
}

// alike converts two operands to their common type.
func alike(a, b number) (number, number) {
	bits := max(a.bits, b.bits)
	unsigned := a.unsigned && a.bits == bits || b.unsigned && b.bits == bits
	a.bits, b.bits, a.unsigned, b.unsigned = bits, bits, unsigned, unsigned
	return a.wrapped(), b.wrapped()
}

func truth(yes bool) number {
	v := number{n: big.NewInt(0), bits: 32}
	if yes {
		v.n.SetInt64(1)
	}
	return v
}

func (e *evaluator) apply(op string, a, b number) number {
	switch op {
	case "||":
		return truth(a.n.Sign() != 0 || b.n.Sign() != 0)
	case "&&":
		return truth(a.n.Sign() != 0 && b.n.Sign() != 0)
	case "<<", ">>":
		return e.shift(op, a, b)
	}
	a, b = alike(a, b)
	order := a.n.Cmp(b.n)
	switch op {
	case "==":
		return truth(order == 0)
	case "!=":
		return truth(order != 0)
	case "<":
		return truth(order < 0)
	case ">":
		return truth(order > 0)
	case "<=":
		return truth(order <= 0)
	case ">=":
		return truth(order >= 0)
	}
	if (op == "/" || op == "%") && b.n.Sign() == 0 {
		return e.fail("%s %s 0 divides by zero", a.n, op)
	}
	compute := map[string]func(z, x, y *big.Int) *big.Int{
		"|": (*big.Int).Or, "^": (*big.Int).Xor, "&": (*big.Int).And, "+": (*big.Int).Add, "-": (*big.Int).Sub,
		"*": (*big.Int).Mul,
		"/": (*big.Int).Quo, "%": (*big.Int).Rem,
	}[op]
	v := number{n: compute(new(big.Int), a.n, b.n), bits: a.bits, unsigned: a.unsigned}
	if !v.unsigned && !v.fits() {
		return e.fail("%s %s %s overflows an integer of %d bits", a.n, op, b.n, a.bits)
	}
	return v.wrapped()
}

// shift lets a one be shifted into the sign, as headers do in 1<<31, and nothing beyond it.
func (e *evaluator) shift(op string, a, b number) number {
	if b.n.Sign() < 0 || b.n.Cmp(big.NewInt(int64(a.bits))) >= 0 {
		return e.fail("%s %s %s shifts an integer of %d bits too far; write it with a suffix that makes it longer, "+
			"such as ULL", a.n, op, b.n, a.bits)
	}
	v, by := a, uint(b.n.Uint64())
	if op == ">>" {
		v.n = new(big.Int).Rsh(a.n, by)
		return v
	}
	v.n = new(big.Int).Lsh(a.n, by)
	if bits := (number{n: v.n, bits: a.bits, unsigned: true}); !a.unsigned && !v.fits() && !bits.fits() {
		return e.fail("%s << %s overflows an integer of %d bits; write it with a suffix that makes it longer, such "+
			"as ULL", a.n, b.n, a.bits)
	}
	return v.wrapped()
}

func (e *evaluator) unary() number {
	var signs []string
	for {
		sign := e.take("+", "-", "~", "!")
		if sign == "" {
			break
		}
		signs = append(signs, sign)
	}
	v := e.primary()
	for _, sign := range slices.Backward(signs) {
		if v.n == nil {
			return v
		}
		switch sign {
		case "-":
			n := new(big.Int).Neg(v.n)
			if v.n = n; !v.unsigned && !v.fits() {
				return e.fail("%s overflows an integer of %d bits", n, v.bits)
			}
			v = v.wrapped()
		case "~":
			v.n = new(big.Int).Not(v.n)
			v = v.wrapped()
		case "!":
			v = truth(v.n.Sign() == 0)
		}
	}
	return v
}

// primary is a number, a name or an expression in parentheses; another word makes the value unknown.
func (e *evaluator) primary() number {
	if len(e.words) == 0 {
		return number{}
	}
	if e.take("(") != "" {
		v := e.choice()
		if e.take(")") == "" {
			return number{}
		}
		return v
	}
	word := e.words[0]
	e.words = e.words[1:]
	var v number
	var err error
	switch {
	case word[0] >= '0' && word[0] <= '9':
		v, err = literalNumber(word)
	case isWord(word[0]):
		v, err = e.r.named(word, e.depth)
	}
	if err != nil {
		return e.fail("%w", err)
	}
	return v
}

// literalNumber gives a number its first type that holds it; a decimal one is not unsigned unless it says so.
func literalNumber(word string) (number, error) {
	digits := strings.TrimRight(strings.ToLower(word), "ul")
	suffix := strings.ToLower(word)[len(digits):]
	n, ok := new(big.Int).SetString(digits, 0)
	if !ok { // a floating-point number
		return number{}, nil
	}
	var types []number
	for _, bits := range []uint{32, 64} {
		if bits == 32 && strings.Contains(suffix, "l") {
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
