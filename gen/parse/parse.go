// SPDX-License-Identifier: BSD-2-Clause

// Package parse parses C headers with modernc.org/cc and returns a model. It is the only package that imports cc.
// Parsing is hermetic: the C library headers come from headers/shim and the predefined macros from headers/macros, and
// no C compiler runs. The result is the same on every machine.
package parse

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/headers"
)

// Source describes the input.
type Source struct {
	Project string // name of the project; if empty, it follows from the headers' names
	Release string // name of the release in the model
	Include fs.FS  // include directory that holds the upstream headers
	Name    string // name of that directory in errors
	// Headers are the public headers of the project, as written between < and >. Headers of other projects that they
	// include are parsed for their types but not recorded.
	Headers []string
	Targets []string // GOARCH values; those with recorded macros if empty

	checked *sync.Map // header → result of checkText, shared by all targets
}

// Read parses the headers for every target and merges the results. Targets may differ only in sizes and offsets.
func Read(src Source) (*model.Release, error) {
	if len(src.Targets) == 0 {
		src.Targets = headers.TargetsOf(src.goos())
	}
	src.checked = &sync.Map{}
	src.dropLater()
	if err := src.check(); err != nil {
		return nil, err
	}
	groups, err := src.targetGroups()
	if err != nil {
		return nil, err
	}
	read := make([]*reader, len(groups))
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2) // two at a time, to limit memory
	for i, group := range groups {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			read[i], errs[i] = convertTarget(src, group[0])
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("read for %s: %w", groups[i][0], err)
		}
	}
	for i, group := range groups[1:] {
		for _, target := range group {
			if err := mergeHeaders(read[0].headers, read[i+1].headers, target); err != nil {
				return nil, fmt.Errorf("%s and %s: %w", src.Targets[0], target, err)
			}
		}
	}
	if err := read[0].readInlines(); err != nil { // only once, since inline functions are the same on every target
		return nil, err
	}
	release := &model.Release{Project: src.project(), Name: src.Release, Targets: src.Targets, Headers: read[0].headers}
	if err := release.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return release, nil
}

// project returns the name of the project that installs the headers.
func (src Source) project() string {
	if src.Project != "" {
		return src.Project
	}
	if len(src.Headers) > 0 {
		if p := project.Of(src.Headers[0]); p != nil {
			return p.Name
		}
	}
	return ""
}

// goos returns the system of the project if it is not Linux, and "" otherwise.
func (src Source) goos() string {
	if p := project.Named(src.project()); p != nil {
		return p.GOOS
	}
	return ""
}

// of returns the project of a header that the headers include, or nil. A project of another system than Linux includes
// only its own headers and those of the C library.
func (src Source) of(header string) *project.Project {
	if src.goos() == "" {
		return project.Of(header)
	}
	if p := project.Named(src.project()); p.Has(header) {
		return p
	}
	return nil
}

// install returns a hint to install the header's package, or "" if unknown.
func (src Source) install(header string) string {
	if p := src.of(header); p != nil && p.GOOS == "" {
		return "install " + p.PackageOf(header) + ", or "
	}
	return ""
}

// dropLater drops headers that were introduced after this release.
func (src *Source) dropLater() {
	p := project.Named(src.project())
	if p == nil {
		return
	}
	src.Headers = slices.DeleteFunc(slices.Clone(src.Headers), func(name string) bool {
		_, err := fs.Stat(src.Include, name)
		return slices.Contains(p.Later, name) && errors.Is(err, fs.ErrNotExist)
	})
}

// check reports missing and unreadable headers, with better errors than the C parser's.
func (src Source) check() error {
	var missing []error
	for _, name := range src.Headers {
		f, err := src.Include.Open(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, fmt.Errorf("%s: no such header; %sname another "+
				"include directory (%w)", path.Join(src.Name, name), src.install(name), err))
		case err != nil:
			missing = append(missing, fmt.Errorf("%s: %w", path.Join(src.Name, name), err))
		default:
			f.Close()
		}
	}
	return errors.Join(missing...)
}

const builtinSource = "<builtin>"

// builtins declares the gcc builtins that cc's type checker needs.
const builtins = `
#define __extension__
typedef __SIZE_TYPE__ __predefined_size_t;
typedef void *__builtin_va_list;
int __predefined_declarator;
`

func convertTarget(src Source, target string) (r *reader, err error) {
	defer func() {
		if p := recover(); p != nil { // a malformed header must not crash the program
			r, err = nil, fmt.Errorf("%s: the C parser failed: %v", src.Name, p)
		}
	}()
	if r, err = parseTarget(src, target); err != nil {
		return nil, err
	}
	return r, r.read()
}

// parseTarget parses the headers for a target.
func parseTarget(src Source, target string) (*reader, error) {
	abi, err := targetABI(src.goos(), target)
	if err != nil {
		return nil, err
	}
	macros, err := headers.MacrosOf(src.goos(), target)
	if err != nil {
		return nil, noMacros(target)
	}
	var main strings.Builder
	for _, name := range src.Headers {
		fmt.Fprintf(&main, "#include <%s>\n", name)
	}
	sources := []cc.Source{
		{Name: "<predefined>", Value: macros},
		{Name: builtinSource, Value: builtins},
		{Name: "<main>", Value: main.String()},
	}
	ast, err := src.translateConstants(abi, sources)
	if err != nil {
		return nil, err
	}
	return newReader(src, target, ast), nil
}

// config returns the configuration and the file system of the C parser.
func (src Source) config(abi *cc.ABI) (*overlay, *cc.Config) {
	files := &overlay{src: src}
	return files, &cc.Config{
		ABI:             abi,
		FS:              files,
		FSOnly:          true,
		IncludePaths:    []string{shimDir, includeDir},
		SysIncludePaths: []string{shimDir, includeDir},
		PragmaHandler:   rejectPragma,
		Header:          true, // bodies are classified, not compiled
		ExpansionLimit:  10_000_000,

		IgnoreNegativeShiftAmounts: true, // this package rejects them, with the name of the declaration
	}
}

// translate runs the C parser on the sources.
func (src Source) translate(abi *cc.ABI, sources []cc.Source, evalMacros bool) (*cc.AST, error) {
	files, cfg := src.config(abi)
	if cfg.EvalAllMacros = evalMacros; !evalMacros { // the second pass must not exceed the limit if the first did not
		cfg.ExpansionLimit *= 2
	}
	ast, err := cc.Translate(cfg, sources)
	if files.err != nil {
		return nil, files.err
	}
	if err != nil {
		return nil, src.parseError(cfg, sources, err)
	}
	return ast, nil
}

func noMacros(target string) error {
	return fmt.Errorf("no predefined macros are recorded for %s; add headers/macros/%[1]s.h from the C compiler's "+
		"-dM -E", target)
}

// rejectPragma rejects pragmas that could change a layout, since cc ignores them.
func rejectPragma(tokens []cc.Token) error {
	var words []string
	for _, t := range tokens {
		words = append(words, t.SrcStr())
	}
	if len(words) == 0 || words[0] == "once" || words[0] == "GCC" && len(words) > 1 &&
		slices.Contains([]string{"diagnostic", "system_header", "poison", "visibility"}, words[1]) {
		return nil
	}
	return fmt.Errorf("%v: #pragma %s is not supported", tokens[0].Position(), strings.Join(words, " "))
}

// targetABI returns cc's description of a target, including the big-endian variants of two targets, which cc lacks.
func targetABI(goos, target string) (*cc.ABI, error) {
	littleEndian := map[string]string{"mips64": "mips64le", "ppc64": "ppc64le"}
	known := target
	if t, ok := littleEndian[target]; ok {
		known = t
	}
	abi, err := cc.NewABI(cmp.Or(goos, "linux"), known)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", target, err)
	}
	if known != target {
		big, err := cc.NewABI("linux", "s390x")
		if err != nil {
			return nil, err
		}
		abi.ByteOrder = big.ByteOrder
	}
	return abi, nil
}

const (
	shimDir    = "shim"
	includeDir = "include"
)

// overlay is the file system of the C parser. It contains only the shim headers and the project's headers.
type overlay struct {
	src Source
	err error // first header that was rejected or unreadable
}

func (o *overlay) Open(name string) (fs.File, error) {
	dir, rest, _ := strings.Cut(path.Clean(name), "/")
	switch {
	case dir == shimDir && rest != "" && !o.src.reads(rest):
		return headers.ShimOf(o.src.goos()).Open(rest)
	case dir != includeDir || !o.src.upstream(rest):
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	text, err := fs.ReadFile(o.src.Include, rest)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(o.err, o.src.checkText(rest, string(text))); err != nil {
		o.err = err
		return nil, err
	}
	return o.src.Include.Open(rest)
}

// reads reports whether a header belongs to the project that is being parsed. Headers of other projects come from the
// shim.
func (src Source) reads(header string) bool {
	p := src.of(header)
	return p != nil && p.Name == src.project()
}

// checkText rejects a header that the C parser might parse incompletely.
func (src Source) checkText(name, text string) error {
	if src.checked == nil {
		return cmp.Or(checkNesting(path.Join(src.Name, name), text), src.checkIncludes(name, text))
	}
	known, ok := src.checked.Load(name)
	if !ok {
		known = cmp.Or(checkNesting(path.Join(src.Name, name), text), src.checkIncludes(name, text))
		src.checked.Store(name, known)
	}
	err, _ := known.(error)
	return err
}

// upstream reports whether a known project installs the header. All other headers belong to the C library or the
// kernel; the shim replaces them.
func (src Source) upstream(name string) bool { return src.of(name) != nil }
