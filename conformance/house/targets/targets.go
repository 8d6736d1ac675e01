// SPDX-License-Identifier: BSD-2-Clause

// Package targets type-checks packages of this module for other systems like the compiler, without compiling them or
// the standard library, which takes minutes for each system. It reads all sources with the files, sizes and alignments
// of the target. Constants are evaluated, so the layout assertions of generated packages are checked.
//
// Errors that only a compiler, assembler or linker finds are left to the targets that are built to run: linux/amd64 and
// linux/arm64, which have all the assembly, ppc64le, riscv64 and 386.
package targets

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Checker reads sources once for all targets. Its methods may be called concurrently.
type Checker struct {
	module  string
	folders map[string]string // module → directory of its source
	files   *token.FileSet
	parsed  sync.Map // path → func() (*ast.File, error)
}

// New returns a checker for the module in dir. It uses the go command to locate imported modules.
func New(dir string) (*Checker, error) {
	c := &Checker{folders: map[string]string{}, files: token.NewFileSet()}
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}\t{{.Main}}{{end}}", "./...")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		if cells := strings.Split(strings.TrimSpace(line), "\t"); len(cells) == 3 {
			c.folders[cells[0]] = cells[1]
			if cells[2] == "true" {
				c.module = cells[0]
			}
		}
	}
	if c.module == "" {
		return nil, fmt.Errorf("%s: no packages of a module", dir)
	}
	return c, nil
}

// contextOf returns the build context that selects a target's files.
func contextOf(goos, goarch string) build.Context {
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = goos, goarch, false
	return context
}

// Own describes the target-specific files, sizes and alignments of packages of the module, named by directory. Targets
// of a system with the same description are equivalent for the module's code, apart from differences in the standard
// library.
func (c *Checker) Own(goos, goarch string, packages ...string) (string, error) {
	context := contextOf(goos, goarch)
	text := fmt.Sprintf("%+v\n", types.SizesFor("gc", goarch))
	for _, p := range packages {
		found, err := context.ImportDir(filepath.Join(c.folders[c.module], p), 0)
		if err != nil && !errors.As(err, new(*build.NoGoError)) {
			return "", err
		}
		text += fmt.Sprintln(p, found.GoFiles, found.SFiles)
	}
	return text, nil
}

// Check type-checks packages of the module, named by directory, and their imports for a target; function bodies only in
// the module's packages. It returns all errors.
func (c *Checker) Check(goos, goarch string, packages ...string) error {
	context := contextOf(goos, goarch)
	// Go experiments of the target
	list := exec.Command("go", "list", "-f", `{{join context.ToolTags " "}}`, "unsafe")
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch)
	tags, err := list.Output()
	if err != nil {
		return fmt.Errorf("%s/%s: no such target: %w", goos, goarch, err)
	}
	context.ToolTags = strings.Fields(string(tags))
	t := &target{Checker: c, context: context, sizes: types.SizesFor("gc", goarch), done: map[string]*types.Package{}}
	if t.sizes == nil {
		return fmt.Errorf("%s/%s: no such target", goos, goarch)
	}
	for _, p := range packages {
		// a package may be limited to some systems
		if _, err := t.Import(path.Join(c.module, p)); err != nil && !errors.As(err, new(*build.NoGoError)) {
			t.wrong = append(t.wrong, err)
		}
	}
	return errors.Join(t.wrong...)
}

// target is the state of one Check. It implements the type checker's importer.
type target struct {
	*Checker
	context build.Context
	sizes   types.Sizes
	done    map[string]*types.Package
	wrong   []error
}

func (t *target) Import(name string) (*types.Package, error) { return t.ImportFrom(name, "", 0) }

// ImportFrom returns a package imported by a file in the directory from.
func (t *target) ImportFrom(path, from string, _ types.ImportMode) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	dir, err := t.folder(path, from)
	if err != nil {
		return nil, err
	}
	if p := t.done[dir]; p != nil {
		return p, nil
	}
	found, err := t.context.ImportDir(dir, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var syntax []*ast.File
	for _, name := range found.GoFiles {
		f, err := t.parse(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		syntax = append(syntax, f)
	}
	ours := t.isOwn(path)
	config := types.Config{
		Importer: t, Sizes: t.sizes, IgnoreFuncBodies: !ours,
		Error: func(err error) { t.wrong = append(t.wrong, err) },
	}
	if ours {
		config.GoVersion = goVersion
		t.wrong = append(t.wrong, t.bodiless(found, syntax)...)
	}
	p, _ := config.Check(path, t.files, syntax, nil) // Error has collected the errors
	t.done[dir] = p
	return p, nil
}

// goVersion is the language version of the module's packages: that of the running Go, as the module requires.
var goVersion = strings.Join(strings.SplitN(runtime.Version(), ".", 3)[:2], ".")

func (c *Checker) isOwn(path string) bool {
	return path == c.module || strings.HasPrefix(path, c.module+"/")
}

// folder returns the source directory of an import: in a module, or in the standard library, which has vendored
// packages.
func (c *Checker) folder(path, from string) (string, error) {
	src := filepath.Join(runtime.GOROOT(), "src")
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") {
		return filepath.Join(src, path), nil
	}
	if strings.HasPrefix(from, src+string(filepath.Separator)) {
		return filepath.Join(src, "vendor", path), nil
	}
	for module := path; ; module = module[:strings.LastIndex(module, "/")] {
		if dir := c.folders[module]; dir != "" {
			return filepath.Join(dir, strings.TrimPrefix(path, module)), nil
		}
		if !strings.Contains(module, "/") {
			return "", fmt.Errorf("%s: not in a known module", path)
		}
	}
}

func (c *Checker) parse(file string) (*ast.File, error) {
	once, _ := c.parsed.LoadOrStore(file, sync.OnceValues(func() (*ast.File, error) {
		return parser.ParseFile(c.files, file, nil, parser.SkipObjectResolution|parser.ParseComments)
	}))
	return once.(func() (*ast.File, error))()
}

// bodiless reports functions without a body and without assembly for the target.
func (t *target) bodiless(found *build.Package, syntax []*ast.File) (wrong []error) {
	var assembly []byte
	for _, name := range found.SFiles {
		text, err := os.ReadFile(filepath.Join(found.Dir, name))
		if err != nil {
			return []error{err}
		}
		assembly = append(assembly, text...)
	}
	for _, f := range syntax {
		linked := map[string]bool{}
		for _, group := range f.Comments {
			for _, comment := range group.List {
				if words := strings.Fields(comment.Text); len(words) == 3 && words[0] == "//go:linkname" {
					linked[words[1]] = true
				}
			}
		}
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if ok && d.Body == nil && !linked[d.Name.Name] &&
				!bytes.Contains(assembly, []byte("TEXT ·"+d.Name.Name+"(SB)")) {
				wrong = append(wrong, fmt.Errorf("%s: %s has no body", t.files.Position(d.Pos()), d.Name.Name))
			}
		}
	}
	return wrong
}
