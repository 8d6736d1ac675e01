// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// The C parser keeps the value of a macro but not its expression. The headers are therefore parsed a second time, with
// a declaration for every macro that may be a constant, so that the syntax tree contains the expressions.
const (
	constantsSource = "<constants>"
	constantPrefix  = "__goverbs_constant_"
)

// translateConstants parses the sources with a declaration for every macro that looks constant. If one of them is not
// constant, it parses them again, with declarations only for macros whose integer value the C parser knows.
func (src Source) translateConstants(abi *cc.ABI, sources []cc.Source) (*cc.AST, error) {
	with := func(ast *cc.AST, constant func(*cc.Macro) bool) []cc.Source {
		var lines []string
		for name, m := range ast.Macros {
			public := strings.HasPrefix(m.Position().Filename, includeDir+"/")
			if public && !m.IsFnLike && len(m.ReplacementList()) > 0 && constant(m) &&
				!depends(ast, m, map[string]bool{}) {
				lines = append(lines, fmt.Sprintf("typedef __typeof__(%s) %s%[1]s;\n", name, constantPrefix))
			}
		}
		slices.Sort(lines)
		return append(slices.Clip(sources), cc.Source{Name: constantsSource, Value: strings.Join(lines, "")})
	}
	files, cfg := src.config(abi)
	if ast, err := cc.Parse(cfg, sources); err == nil && files.err == nil {
		likely := with(ast, func(m *cc.Macro) bool { return looksConstant(ast, m, map[string]bool{}) })
		if ast, err := src.translate(abi, likely, false); err == nil {
			return ast, nil
		}
	}
	ast, err := src.translate(abi, sources, true)
	if err != nil {
		return nil, err
	}
	return src.translate(abi, with(ast, func(m *cc.Macro) bool {
		_, ok := intValue(m.Value())
		return ok
	}), false)
}

// findConstant records the expression of a constant macro.
func (r *reader) findConstant(d *cc.ExternalDeclaration) {
	name := strings.TrimPrefix(d.Declaration.InitDeclaratorList.InitDeclarator.Declarator.Name(), constantPrefix)
	walk(d, func(n cc.Node) bool {
		if t, ok := n.(*cc.TypeSpecifier); ok && t.Case == cc.TypeSpecifierTypeofExpr {
			r.constants[name] = t.ExpressionList
		}
		return r.constants[name] == nil
	})
}

// depends reports whether the value of a macro depends on where it is expanded.
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

// looksConstant reports whether a macro may expand to an integer constant: numbers, operators, enumerators, integer
// types, and macros of these.
func looksConstant(ast *cc.AST, m *cc.Macro, seen map[string]bool) bool {
	word, before := "", ""
	for _, t := range m.ReplacementList() {
		next := strings.TrimSpace(t.SrcStr())
		if next == "" {
			continue
		}
		before, word = word, next
		if before == "?" && word == ":" { // a GCC extension that the C parser cannot type
			return false
		}
		if !isWord(word[0]) || word[0] >= '0' && word[0] <= '9' || typeWords[word] {
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
		if slices.Contains([]string{"->", ".", ","}, before) { // a member name; in offsetof, it follows a comma
			continue
		}
		if !slices.ContainsFunc(ast.Scope.Nodes[word], func(n cc.Node) bool {
			d, isDeclarator := n.(*cc.Declarator)
			_, isEnumerator := n.(*cc.Enumerator)
			return isEnumerator || isDeclarator && d.IsTypename() || slices.Contains(tagWords, before)
		}) {
			return false
		}
	}
	return true
}

var tagWords = []string{"struct", "union", "enum"}

var typeWords = map[string]bool{"sizeof": true, "_Alignof": true, "signed": true, "unsigned": true, "char": true,
	"short": true, "int": true, "long": true, "_Bool": true, "struct": true, "union": true, "enum": true, "void": true}
