// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"modernc.org/cc/v4"
	"modernc.org/token"
)

// parseError rewrites an error of the C parser: with the user's include directory and, if the headers can be parsed,
// the enclosing declaration.
func (src Source) parseError(cfg *cc.Config, sources []cc.Source, err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if strings.HasPrefix(line, "TODO ") { // internal notes of the C parser, which follow the actual error
			continue
		}
		line = readerPlace.ReplaceAllString(strings.TrimRight(line, "\n"), "")
		if m := headerPlace.FindStringSubmatch(line); m != nil {
			row, _ := strconv.Atoi(m[2])
			column, _ := strconv.Atoi(m[3])
			at := token.Position{Filename: m[1], Line: row, Column: column}
			ast, err := cc.Parse(cfg, sources)
			if err != nil {
				ast = &cc.AST{}
			}
			if name := declarationAt(ast, at); name != "" {
				line = m[0] + name + ": " + line[len(m[0]):] + "; correct the header"
			}
		}
		lines = append(lines, strings.ReplaceAll(line, includeDir+"/", src.Name+"/"))
	}
	text := strings.Join(lines, "\n")
	if text == "" {
		text = err.Error()
	}
	if !strings.Contains(text, src.Name+"/") { // errors at the end of the input have no file name
		text = fmt.Sprintf("%s: %s: %s", src.Name, strings.Join(src.Headers, ", "), text)
	}
	return errors.New(text)
}

var (
	headerPlace = regexp.MustCompile(`^(` + includeDir + `/[^:]*):(\d+):(\d+): `)
	readerPlace = regexp.MustCompile(` \(\w+\.go:\d+:\w*:\)$`) // a line of the C parser's own source
)

// declarationAt returns the last name declared before a position, if any.
func declarationAt(ast *cc.AST, at token.Position) string {
	var last token.Position
	name := ""
	for tu := ast.TranslationUnit; tu != nil; tu = tu.TranslationUnit {
		walk(tu.ExternalDeclaration, func(n cc.Node) bool {
			var t cc.Token
			switch n := n.(type) {
			case *cc.Enumerator:
				t = n.Token
			case *cc.EnumSpecifier:
				t = n.Token2
			case *cc.StructOrUnionSpecifier:
				t = n.Token
			case *cc.DirectDeclarator:
				if n.Case != cc.DirectDeclaratorIdent {
					return true
				}
				t = n.Token
			default:
				return true
			}
			p := t.Position()
			before := p.Line < at.Line || p.Line == at.Line && p.Column <= at.Column
			later := p.Line > last.Line || p.Line == last.Line && p.Column >= last.Column
			if p.Filename == at.Filename && before && later && t.SrcStr() != "" {
				last, name = p, t.SrcStr()
			}
			return true
		})
	}
	return name
}
