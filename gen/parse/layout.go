// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"modernc.org/cc/v4"
	"modernc.org/token"

	"github.com/goverbs/goverbs/gen/model"
)

// layout places members by the rules of C compilers for Linux, since cc ignores packed. For records that are not
// packed, both results are compared.
type layout struct {
	union  bool
	packed bool
	align  int64
	end    int64 // of a structure: first free byte; of a union: size of the largest member
	bits   int64 // first free bit if the last member of a structure is a bitfield, otherwise 0
}

// placeBits returns the first bit of a bitfield whose type has this size and alignment. A bitfield does not cross the
// boundary of an aligned integer of its type.
func (l *layout) placeBits(size, align, width int64) int64 {
	if l.union {
		l.align = max(l.align, align)
		l.end = max(l.end, (width+7)/8)
		return 0
	}
	first := l.bits
	if first == 0 {
		first = 8 * l.end
	}
	switch {
	case l.packed:
		align = 1
	case width == 0 || first%(8*align)+width > 8*size:
		first = roundUp(first, 8*align)
	}
	l.align = max(l.align, align)
	l.bits = first + width
	l.end = (l.bits + 7) / 8
	return first
}

// place returns the offset of the next member.
func (l *layout) place(size, align int64) int64 {
	if l.packed {
		align = 1
	}
	l.align = max(l.align, align)
	if l.union {
		l.end = max(l.end, size)
		return 0
	}
	offset := roundUp(l.end, align)
	l.end, l.bits = offset+size, 0
	return offset
}

// finish returns size and alignment. aligned is the argument of the aligned attribute, or 0.
func (l *layout) finish(aligned int64) (size, align int64) {
	align = max(l.align, aligned)
	return roundUp(l.end, align), align
}

func roundUp(n, align int64) int64 { return (n + align - 1) / align * align }

// attrs are the attributes of a structure or union that change its layout.
type attrs struct {
	packed bool
	align  int64
}

// attributes parses the attributes of a definition; cc keeps those after the closing brace in a separate list. It
// rejects unknown attributes, since they might change the layout.
func (r *reader) attributes(lists ...*cc.AttributeSpecifierList) (a attrs, err error) {
	for _, list := range lists {
		for ; list != nil; list = list.AttributeSpecifierList {
			for v := list.AttributeSpecifier.AttributeValueList; v != nil; v = v.AttributeValueList {
				value := v.AttributeValue
				switch name := strings.Trim(value.Token.SrcStr(), "_"); name {
				case "packed":
					a.packed = true
				case "aligned":
					if value.ArgumentExpressionList == nil {
						return a, fmt.Errorf("aligned without a number is not supported")
					}
					list := value.ArgumentExpressionList
					n, err := r.constant(list.AssignmentExpression)
					if err != nil {
						return a, fmt.Errorf("aligned(%s): %w", text(list), err)
					}
					if n.n.Sign() <= 0 || n.n.Cmp(big.NewInt(model.MaxSize)) > 0 ||
						new(big.Int).And(n.n, new(big.Int).Sub(n.n, big.NewInt(1))).Sign() != 0 {
						return a, fmt.Errorf("aligned(%s): not a power of two, or too large", n.n)
					}
					a.align = max(a.align, n.n.Int64())
				case "may_alias", "deprecated", "unused":
				default:
					return a, fmt.Errorf("attribute %s is not supported", name)
				}
			}
		}
	}
	return a, nil
}

// plainAttributes change neither layouts nor values.
var plainAttributes = []string{"always_inline", "artificial", "cold", "const", "deprecated", "flatten", "format",
	"gnu_inline", "hot", "leaf", "malloc", "may_alias", "noinline", "nonnull", "noreturn", "nothrow", "pure",
	"returns_nonnull", "unused", "used", "visibility", "warn_unused_result", "weak"}

// alignedMember returns the position of a member with an alignment attribute. If nothing is packed, the C parser's
// layout accounts for it.
func (r *reader) alignedMember(spec *cc.StructOrUnionSpecifier) (at token.Position, found bool) {
	walk(spec.StructDeclarationList, func(n cc.Node) bool {
		if a, ok := n.(*cc.AttributeSpecifier); ok && !r.ofRecord[a] {
			for v := a.AttributeValueList; v != nil; v = v.AttributeValueList {
				if strings.Trim(v.AttributeValue.Token.SrcStr(), "_") == "aligned" {
					at, found = a.Position(), true
				}
			}
		}
		return !found
	})
	return at, found
}

// checkAttributes rejects attributes outside structures and unions that may change a layout.
func (r *reader) checkAttributes(n *cc.AttributeSpecifier) error {
	if _, public, err := r.where(n.Position()); err != nil || !public || r.ofRecord[n] {
		return err
	}
	for v := n.AttributeValueList; v != nil; v = v.AttributeValueList {
		name := strings.Trim(v.AttributeValue.Token.SrcStr(), "_")
		aligned := name == "aligned" && r.ofMember[n] // checked by record
		if name == "" || aligned || slices.Contains(plainAttributes, name) {
			continue
		}
		at := n.Position()
		return fmt.Errorf("%s: %s: attribute %s is supported only on structures and unions; if it "+
			"changes no layout, add it to gen/parse/layout.go", r.pos(at), declarationAt(r.ast, at), name)
	}
	return nil
}
