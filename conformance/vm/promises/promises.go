// SPDX-License-Identifier: BSD-2-Clause

// Package promises maps the promises of the manual pages about posting to tests. promises.txt has a row for each
// promise, paraphrased, with the tests that verify it and where they run. The package's own tests verify promises one
// by one, on real kernels and on the software device. docs/conformance.md is generated from the rows.
package promises

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed promises.txt
var text string

// own is the path of this package.
const own = "conformance/vm/promises"

// Promise is one row.
type Promise struct {
	Text    string
	Tests   []Test
	Where   []string // "rxe", "soft0", …
	Differs string   // known difference, or ""
	At      string   // file:line
}

// Test names a test function and, optionally, a subtest.
type Test struct{ Dir, Name, Sub string }

func (t Test) String() string {
	s := t.Name
	if t.Sub != "" {
		s += "/" + t.Sub
	}
	return s
}

// Page is a manual page and its promises.
type Page struct {
	Name     string // "ibv_post_send(3)"
	File     string // in headers.lock
	Sum      string // sha256 of the page from which the promises were taken
	Promises []Promise
}

// places lists where tests run, with descriptions for docs/conformance.md.
var places = []struct{ name, text string }{
	{"rxe", "Soft-RoCE of Linux " + list(results.Kernels)},
	{"C", "a C program of the library, as peer and for comparison"},
	{"soft0", "the software device"},
	{"stub", "a stub of a provider, compared with C"},
	{"tables", "the page itself"},
	{"unit", "our code only"},
}

func list(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// Read parses rows.
func Read(name, text string) ([]Page, error) {
	f := rows.Read(name, text, rows.Form{Want: "promise | tests | where | what differs", Least: 3, Most: 4,
		Directives: true})
	var pages []Page
	for _, row := range f.Rows {
		if row.Directive {
			words := strings.Fields(row.Columns[0])
			if len(words) != 4 || words[0] != "page" {
				f.Fail(row.At, "want @ page PAGE FILE SHA256")
				continue
			}
			pages = append(pages, Page{Name: words[1], File: words[2], Sum: words[3]})
			continue
		}
		if len(pages) == 0 {
			f.Fail(row.At, "a promise must follow its page")
			continue
		}
		page := &pages[len(pages)-1]
		page.Promises = append(page.Promises, promise(f, row))
	}
	return pages, f.Err()
}

func promise(f *rows.File, row *rows.Row) Promise {
	p := Promise{Text: row.Columns[0], Where: rows.List(row.Columns[2]), At: row.At}
	if len(row.Columns) > 3 {
		p.Differs = row.Columns[3]
	}
	for _, name := range rows.List(row.Columns[1]) {
		t := Test{Dir: own}
		if dir, rest, ok := strings.Cut(name, " "); ok && !strings.HasPrefix(dir, "Test") {
			t.Dir, name = dir, rest
		}
		t.Name, t.Sub, _ = strings.Cut(name, "/")
		if !strings.HasPrefix(t.Name, "Test") {
			f.Fail(row.At, "%q is not a test; every promise needs one", name)
		}
		p.Tests = append(p.Tests, t)
	}
	for _, w := range p.Where {
		if !slices.ContainsFunc(places, func(k struct{ name, text string }) bool { return k.name == w }) {
			f.Fail(row.At, "unknown place %q", w)
		}
	}
	return p
}

// sources holds the tests in a directory.
type sources struct {
	tests    map[Test]bool // test functions with all strings in them, since subtest names may be in tables
	subtests map[Test]bool // subtests with a literal name in Run
}

func readTests(root, dir string) (sources, error) {
	s := sources{map[Test]bool{}, map[Test]bool{}}
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		return s, err
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return s, err
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			s.tests[Test{dir, fn.Name.Name, ""}] = true
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if value, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
						s.tests[Test{dir, fn.Name.Name, value}] = true
					}
				case *ast.CallExpr:
					if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Run" && len(n.Args) == 2 {
						if lit, ok := n.Args[0].(*ast.BasicLit); ok {
							value, _ := strconv.Unquote(lit.Value)
							s.subtests[Test{dir, fn.Name.Name, value}] = true
						}
					}
				}
				return true
			})
		}
	}
	return s, nil
}

// Check reports rows that name tests that do not exist, and tests of this package that no row names.
func Check(root string, pages []Page) (wrong []string, err error) {
	all, named := map[string]sources{}, map[Test]bool{}
	for _, page := range pages {
		for _, p := range page.Promises {
			for _, t := range p.Tests {
				s, ok := all[t.Dir]
				if !ok {
					if s, err = readTests(root, t.Dir); err != nil {
						return nil, err
					}
					all[t.Dir] = s
				}
				named[t] = true
				if !s.tests[t] {
					wrong = append(wrong, fmt.Sprintf("%s: %s has no test %v", p.At, t.Dir, t))
				}
			}
		}
	}
	for t := range all[own].subtests {
		if !named[t] {
			wrong = append(wrong, fmt.Sprintf("no row of promises.txt names %v", t))
		}
	}
	slices.Sort(wrong)
	return wrong, nil
}

const head = `# Conformance of posting

Promises of the manual pages about posting, paraphrased, and the tests that verify them. Generated from
[promises.txt](../conformance/vm/promises/promises.txt) by ` + "`make docs`" + `; a promise without a test, and a page that has
changed since, fail ` + "`make test`" + `. Tests without a directory are in
[conformance/vm/promises](../conformance/vm/promises): ` + "`go test ./conformance/vm/promises`" + ` runs them on the software
device, ` + "`make vm`" + ` on real kernels with Soft-RoCE. None of them ran on a real adapter.

`

// Markdown returns docs/conformance.md.
func Markdown(pages []Page) string {
	var b strings.Builder
	b.WriteString(head)
	for _, place := range places {
		fmt.Fprintf(&b, "- **%s**: %s\n", place.name, place.text)
	}
	for _, page := range pages {
		fmt.Fprintf(&b, "\n## %s\n\n", page.Name)
		b.WriteString("| promise | tests | where | differences |\n| --- | --- | --- | --- |\n")
		for _, p := range page.Promises {
			var tests []string
			for _, t := range p.Tests {
				name := "`" + t.String() + "`"
				if t.Dir != own {
					name += " of " + t.Dir
				}
				tests = append(tests, name)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.Text, strings.Join(tests, ", "), strings.Join(p.Where, ", "),
				p.Differs)
		}
	}
	return b.String()
}

// Write writes docs/conformance.md.
func Write(root string) error {
	pages, err := Read("promises.txt", text)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "docs", "conformance.md"), []byte(Markdown(pages)), 0o666)
}
