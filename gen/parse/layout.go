package parse

import (
	"fmt"
	"math/big"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// layout places members by the rules of the C compilers for Linux. It exists because cc ignores packed; where nothing
// is packed, it and cc check each other.
type layout struct {
	union  bool
	packed bool
	align  int64 // so far
	end    int64 // first free byte of a structure, size of the largest arm of a union
}

// place gives the offset of the next member.
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
	l.end = offset + size
	return offset
}

// finish gives size and alignment; aligned is what the aligned attribute asks for, or 0.
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

// attributes reads the attributes of a definition; cc keeps those behind the closing brace in a list of their own.
// One that is not known is refused, since it might change the layout.
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
						return a, fmt.Errorf("aligned without a number, for which there is no rule")
					}
					list := value.ArgumentExpressionList
					n, err := r.constant(list.AssignmentExpression)
					if err != nil {
						return a, fmt.Errorf("aligned(%s): %w", text(list), err)
					}
					if n.n.Sign() <= 0 || n.n.Cmp(big.NewInt(model.MaxSize)) > 0 ||
						new(big.Int).And(n.n, new(big.Int).Sub(n.n, big.NewInt(1))).Sign() != 0 {
						return a, fmt.Errorf("aligned(%s) is no power of two, or beyond every address space", n.n)
					}
					a.align = max(a.align, n.n.Int64())
				case "may_alias", "deprecated", "unused":
				default:
					return a, fmt.Errorf("attribute %s, for which there is no rule", name)
				}
			}
		}
	}
	return a, nil
}
