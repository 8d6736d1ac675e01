// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// The C reader keeps a macro's value and not its expression. It reads the headers again with a declaration for every
// macro that may be a constant, so that the expressions stand in the syntax tree.
const (
	constantsSource = "<constants>"
	constantPrefix  = "__goverbs_constant_"
)

// translateConstants reads the sources again with the macros that ast found to be integers, and with those that it gave
// no value but that look like constants. If the latter are none, they are left out.
func (src Source) translateConstants(abi *cc.ABI, sources []cc.Source, ast *cc.AST) (*cc.AST, error) {
	var sure, likely []string
	for name, m := range ast.Macros {
		if m.IsFnLike || len(m.ReplacementList()) == 0 || !strings.HasPrefix(m.Position().Filename, includeDir+"/") {
			continue
		}
		if depends(ast, m, map[string]bool{}) {
			continue
		}
		line := fmt.Sprintf("typedef __typeof__(%s) %s%[1]s;\n", name, constantPrefix)
		if _, ok := intValue(m.Value()); ok {
			sure = append(sure, line)
		} else if m.Value() == cc.Unknown && looksConstant(ast, m, map[string]bool{}) {
			likely = append(likely, line)
		}
	}
	slices.Sort(sure)
	slices.Sort(likely)
	with := func(lines ...string) (*cc.AST, error) {
		if len(lines) == 0 {
			return ast, nil
		}
		constants := cc.Source{Name: constantsSource, Value: strings.Join(lines, "")}
		return src.translate(abi, append(slices.Clip(sources), constants), false)
	}
	if len(likely) > 0 {
		if again, err := with(append(likely, sure...)...); err == nil {
			return again, nil
		}
	}
	return with(sure...)
}

// findConstant notes the expression of a macro.
func (r *reader) findConstant(d *cc.ExternalDeclaration) {
	name := strings.TrimPrefix(d.Declaration.InitDeclaratorList.InitDeclarator.Declarator.Name(), constantPrefix)
	walk(d, func(n cc.Node) bool {
		if t, ok := n.(*cc.TypeSpecifier); ok && t.Case == cc.TypeSpecifierTypeofExpr {
			r.constants[name] = t.ExpressionList
		}
		return r.constants[name] == nil
	})
}

// depends reports whether a macro's value depends on where it is used.
func depends(ast *cc.AST, m *cc.Macro, seen map[string]bool) bool {
	for _, t := range m.ReplacementList() {
		word := t.SrcStr()
		if word == "__LINE__" || word == "__COUNTER__" {
			return true
		}
		if inner := ast.Macros[word]; inner != nil && !seen[word] {
			if seen[word] = true; depends(ast, inner, seen) {
				return true
			}
		}
	}
	return false
}

// looksConstant reports whether a macro stands for what may be an integer constant: numbers, operators, enumerators,
// integer types, and macros of these.
func looksConstant(ast *cc.AST, m *cc.Macro, seen map[string]bool) bool {
	for _, t := range m.ReplacementList() {
		word := strings.TrimSpace(t.SrcStr())
		if word == "" || !isWord(word[0]) || word[0] >= '0' && word[0] <= '9' || typeWords[word] {
			if strings.ContainsAny(word, "{};\"#=") && word != "==" && word != "!=" && word != "<=" && word != ">=" {
				return false
			}
			continue
		}
		if inner := ast.Macros[word]; inner != nil {
			if !seen[word] {
				if seen[word] = true; !looksConstant(ast, inner, seen) {
					return false
				}
			}
			continue
		}
		if slices.ContainsFunc(m.Params, func(p cc.Token) bool { return p.SrcStr() == word }) {
			continue
		}
		switch defined := ast.Scope.Nodes[word]; {
		case len(defined) == 0:
			return false
		default:
			d, isDeclarator := defined[0].(*cc.Declarator)
			if isDeclarator && !d.IsTypename() {
				return false
			}
		}
	}
	return true
}

var typeWords = map[string]bool{"sizeof": true, "_Alignof": true, "signed": true, "unsigned": true, "char": true,
	"short": true, "int": true, "long": true, "_Bool": true, "struct": true, "union": true, "enum": true, "void": true}
