// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"embed"
	"errors"
	"fmt"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed tables/*.txt
var gridFiles embed.FS

// GridFile is a parsed file of gen/rules/tables, not yet resolved for a release.
type GridFile struct {
	Grid
	dims     []gridDim
	rows     []*gridRow
	readings []*gridReading
}

type gridDim struct {
	param, what, kind, of string
	without               []string
	at                    string
}

type gridRow struct {
	items  [][]string
	kind   StatementKind
	answer Answer
	values []string // columns, not yet parsed
	why    *rows.Label
	at     string
}

// gridReading corrects a word of a man page.
type gridReading struct {
	word, as string
	why      *rows.Label
	row      *rows.Row // fires if the word is on the page
}

// StatementKind is the effect of a row on its cells.
type StatementKind string

const (
	Answers  StatementKind = "answers"  // sets the answer if the page has none or is wrong
	Agrees   StatementKind = "agrees"   // confirms the page's cell and adds to it
	Disputes StatementKind = "disputed" // keeps the page's answer and notes that of another source
	Reads    StatementKind = "reading"  // keeps the answer and notes how the page was interpreted
)

// DefaultGridFiles returns the files of gen/rules/tables, by name.
func DefaultGridFiles() ([]*GridFile, error) {
	names, err := fs.Glob(gridFiles, "tables/*.txt")
	if err != nil {
		return nil, err
	}
	var all []*GridFile
	var errs []error
	for _, name := range names {
		text, err := gridFiles.ReadFile(name)
		if err == nil {
			var f *GridFile
			f, err = ParseGrid("gen/rules/"+name, string(text))
			all = append(all, f)
			if err == nil && !slices.ContainsFunc(Packages, func(p Package) bool { return p.Name == f.Package }) {
				err = fmt.Errorf("gen/rules/%s: unknown package %s", name, f.Package)
			}
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// gridForm is the form of a file of gen/rules/tables. The number of columns in a row depends on the dimensions and
// values above it.
var gridForm = rows.Form{Directives: true, Labels: "label | reason | source", MoreLabels: 1}

// gridParser parses one file; row is the current row or directive.
type gridParser struct {
	*rows.File
	f   *GridFile
	row *rows.Row
}

func (p *gridParser) errorf(format string, args ...any) { p.Fail(p.row.At, format, args...) }

// ParseGrid parses one file. The names in it are checked later, against a release.
func ParseGrid(name, text string) (*GridFile, error) {
	p := &gridParser{File: rows.Read(name, text, gridForm), f: &GridFile{}}
	p.f.Name = strings.TrimSuffix(path.Base(name), ".txt")
	p.f.Result = "Validity"
	for _, p.row = range p.Rows {
		if p.row.Directive {
			p.directive(p.row.Columns[0])
		} else {
			p.statement(p.row.Columns)
		}
	}
	p.row = &rows.Row{At: name}
	for what, lacks := range map[string]bool{"package": p.f.Package == "", "question": p.f.Question == "",
		"func or @ part": p.f.Func == "" && p.f.Part == nil, "dim": len(p.f.dims) == 0} {
		if lacks {
			p.errorf("no line @ %s", what)
		}
	}
	if (p.f.Result == "Validity") != (len(p.f.Values) == 0) {
		p.errorf("@ result and @ value go together")
	}
	return p.f, p.Err()
}

// directive reads a line that starts with @.
func (p *gridParser) directive(line string) {
	word, rest, _ := strings.Cut(line, " ")
	c := rows.Columns(rest)
	least := map[string]int{"package": 1, "part": 1, "first": 1, "question": 1, "page": 1, "func": 2, "result": 2,
		"dim": 3, "list": 2, "set": 2, "item": 2, "value": 3, "all": 2, "items": 3, "check": 4, "reads": 3}[word]
	if least == 0 || len(c) < least || slices.Contains(c[:least], "") {
		p.errorf("unknown or incomplete directive %q; see gen/rules/table.go", line)
		return
	}
	goNames := map[string]int{"func": 1, "first": 1, "result": 1, "list": 1, "set": 1, "item": 1, "value": 1, "all": 1,
		"items": 1, "check": 1}[word]
	if goNames > 0 && (!token.IsExported(c[0]) || !token.IsIdentifier(c[0])) {
		p.errorf("%q is not an exported Go name", c[0])
	}
	f := p.f
	switch word {
	case "package":
		f.Package = c[0]
	case "part":
		f.Part = rows.List(c[0])
	case "first":
		f.First = c[0]
	case "question":
		f.Question = c[0]
	case "page":
		f.Pages = rows.List(c[0])
	case "func":
		f.Func, f.FuncDoc = c[0], c[1]
	case "result":
		f.Result, f.Doc = c[0], c[1]
	case "all":
		f.All = Lookup{Func: c[0], Doc: c[1]}
	case "items":
		f.Items = append(f.Items,
			Lookup{Func: c[0], Doc: c[2],
				Dim: slices.IndexFunc(f.dims, func(d gridDim) bool { return d.param == c[1] })})
		if f.Items[len(f.Items)-1].Dim < 0 {
			p.errorf("no dimension %q above", c[1])
		}
	case "check":
		f.Check = FlagCheck{Func: c[0], Needs: c[1], Always: c[2], Doc: c[3]}
	case "list", "set":
		f.Types = append(f.Types, &GridType{Name: c[0], Doc: c[1], Set: word == "set"})
	case "item":
		if len(f.Types) == 0 {
			p.errorf("an item without a @ list or @ set above")
			return
		}
		t := f.Types[len(f.Types)-1]
		t.Items = append(t.Items, GridItem{Go: c[0], Prints: c[1], Doc: strings.Join(c[2:], "")})
	case "dim":
		d := gridDim{param: c[0], what: c[1], at: p.row.At}
		d.kind, d.of, _ = strings.Cut(c[2], " ")
		if !slices.Contains([]string{"enum", "flag", "list"}, d.kind) || d.of == "" || len(c) > 4 {
			p.errorf("want @ dim name | what | enum TAG, flag TAG or list NAME | without …")
		}
		if len(c) == 4 {
			without, ok := strings.CutPrefix(c[3], "without ")
			if !ok {
				p.errorf("want: without NAME, …")
			}
			d.without = rows.List(without)
		}
		f.dims = append(f.dims, d)
	case "value":
		kind, of, _ := strings.Cut(c[1], " ")
		v := ValueDef{Go: c[0], Doc: c[2], Kind: ValueKind(kind), Type: of}
		if typed := slices.Contains([]ValueKind{Mask, One, List}, v.Kind); typed == (of == "") || !typed &&
			v.Kind != Number && v.Kind != Text {
			p.errorf("unknown kind of value %q; want mask TAG, one TAG, list TAG, number or text", c[1])
		}
		f.Values = append(f.Values, v)
	case "reads":
		f.readings = append(f.readings, &gridReading{word: c[0], as: c[1], why: p.Use(c[2], p.row), row: p.row})
	}
}

// statement reads a row.
func (p *gridParser) statement(c []string) {
	n, values := len(p.f.dims), len(p.f.Values)
	if len(c) != n+2 && len(c) != n+2+values {
		p.errorf("%d columns; want %d for the dimensions, a statement, %d values or none of them, and a label", len(c),
			n, values)
		return
	}
	row := &gridRow{at: p.row.At, values: c[n+1 : len(c)-1], why: p.Use(c[len(c)-1], p.row)}
	for _, column := range c[:n] {
		row.items = append(row.items, rows.List(column))
	}
	answer, disputes := strings.CutPrefix(c[n], "disputed ")
	row.kind, row.answer = Answers, Answer(answer)
	if disputes {
		row.kind = Disputes
	}
	switch {
	case c[n] == string(Reads) || c[n] == string(Agrees):
		row.kind, row.answer = StatementKind(c[n]), ""
	case !slices.Contains([]Answer{Yes, No, Capability, Elsewhere, Unspecified}, row.answer) || disputes &&
		row.answer == Unspecified:
		p.errorf("unknown statement %q; see gen/rules/table.go", c[n])
	}
	if row.answer == Capability && row.why.More == "" {
		p.errorf("label %q has no condition; capability needs one that names the capability", row.why.Name)
	}
	p.f.rows = append(p.f.rows, row)
}
