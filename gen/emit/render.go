// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"go/scanner"
	"strings"

	"github.com/dave/jennifer/jen"
)

// add prints a file.
func (out Files) add(name string, f *jen.File) error {
	text, err := render(name, f)
	if err == nil {
		out[name] = text
	}
	return err
}

// render formats a file like gofmt. If the text is not valid Go, the error names the declaration.
func render(name string, f *jen.File) ([]byte, error) {
	f.NoFormat = true
	var raw bytes.Buffer
	if err := f.Render(&raw); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out, err := format.Source(raw.Bytes())
	if err == nil {
		return out, nil
	}
	line, what := 0, err.Error()
	if list := (scanner.ErrorList)(nil); errors.As(err, &list) && len(list) > 0 {
		line, what = list[0].Pos.Line, list[0].Msg
	}
	return nil, fmt.Errorf("%s: invalid Go printed for %s: %s; fix the rule or row that it comes from",
		name, declarationAt(raw.String(), line), what)
}

// declarationAt returns the declaration at a line and quotes the line.
func declarationAt(source string, line int) string {
	var declaration, c, comment, text string
	for at := range strings.Lines(source) {
		at = strings.TrimSpace(at)
		line--
		switch {
		case strings.HasPrefix(at, "// C: "):
			comment = strings.TrimPrefix(at, "// ")
		case strings.HasPrefix(at, "//"):
		default:
			for _, start := range []string{"func ", "type ", "const ", "var "} {
				if strings.HasPrefix(at, start) {
					declaration, c = at, comment
				}
			}
			comment = ""
		}
		if line <= 0 {
			text = at
			break
		}
	}
	named := fmt.Sprintf("%.100q", declaration)
	if c != "" {
		named += " (" + c + ")"
	}
	if text != declaration {
		named += fmt.Sprintf(", at %.100q", text)
	}
	return named
}
