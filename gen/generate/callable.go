// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Callable is one of Kinds: functions that are callable from Go.
const Callable = "callable functions"

// callable returns the C functions in the package of functions, read from the comments of its exported functions.
func callable(files emit.Files, p *rules.VerbsPlan) (map[string]bool, error) {
	have := map[string]bool{}
	fset := token.NewFileSet()
	for name, text := range files {
		if path.Dir(name) != p.Verbs.Name {
			continue
		}
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("generated source is invalid: %w", err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() {
				for line := range strings.Lines(fn.Doc.Text()) {
					if c, ok := strings.CutPrefix(line, "C: "); ok {
						have[c[:strings.LastIndexByte(c, ' ')]] = true
					}
				}
			}
		}
	}
	return have, nil
}

// coverCallable counts the functions of a header that the package of functions contains.
func coverCallable(h *model.Header, p *rules.VerbsPlan, have map[string]bool, n *Count) {
	for _, f := range h.Funcs {
		n.Total++
		switch {
		case have[f.Declare(f.Name)]:
			n.Emitted++
		case slices.ContainsFunc(p.Skipped, func(e rules.Exception) bool { return e.C == f.Name }):
			n.Excepted++
		default:
			n.Missing = append(n.Missing, f.Name)
		}
	}
}
