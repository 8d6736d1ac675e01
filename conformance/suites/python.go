// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bufio"
	"compress/gzip"
	"context"
	_ "embed"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// pyverbsTests runs modules of pyverbs' tests and reports the result of each test.
//
//go:embed unittests.py
var pyverbsTests []byte

// RunPython runs the pyverbs tests in s.Python, each wanted module in a separate process.
func (r *Runner) RunPython(ctx context.Context, s *Suite, wanted func(name string) bool) ([]Result, error) {
	dir, err := os.MkdirTemp("", "goverbs-pyverbs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	from := strings.ReplaceAll(s.Python, "{cache}", r.Cache)
	modules, err := unzip(filepath.Join(dir, "tests"), from)
	if err != nil {
		return nil, err
	}
	script := filepath.Join(dir, "unittests.py")
	if err := os.WriteFile(script, pyverbsTests, 0o644); err != nil {
		return nil, err
	}
	modules = slices.DeleteFunc(modules, func(name string) bool { return !wanted(name) })
	if r.Together && len(modules) > 0 {
		modules = []string{strings.Join(modules, ",")}
	}
	var all []Result
	for _, module := range modules {
		r.begins(module)
		some := r.module(ctx, s, dir, script, module)
		for _, one := range some {
			r.Log("%s: %s: %s%s", s.Name, one.Case, one, one.detail())
			r.ended(one)
		}
		all = append(all, some...)
	}
	return all, nil
}

// module runs a module, or several separated by commas. A test that kills the process or hangs fails, and the remaining
// tests of the module run in another process.
func (r *Runner) module(ctx context.Context, s *Suite, dir, script, module string) (all []Result) {
	command := r.Python
	if command == nil {
		command = []string{"PYTHONPATH=" + filepath.Dir(strings.ReplaceAll(s.Python, "{cache}", r.Cache)),
			"/usr/bin/python3"}
	}
	command = append(slices.Clone(command), script, "{device}", "{server}", dir, module)
	for {
		done := len(all)
		at, _ := r.addresses()
		p, err := r.start(at, r.fill("{server}", at), command)
		if err != nil {
			return append(all, Result{module, Fail, err.Error(), ""})
		}
		err = p.endOrSilence(ctx, r.limit(s))
		p.kill()
		some, running := read(p.text())
		all = append(all, some...)
		for _, one := range some {
			command = append(command, one.Case)
		}
		if running == "" {
			if err != nil && done == len(all) {
				all = append(all, Result{module, Fail, err.Error() + ": " + last(p.text()), p.text()})
			}
			return all
		}
		all = append(all, Result{running, Fail, err.Error() + ": " + last(p.text()), p.text()})
		command = append(command, running)
	}
}

// read parses the output of unittests.py: the results, and the test that started but did not end.
func read(text string) (all []Result, running string) {
	for line := range strings.Lines(text) {
		word, rest, ok := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		name, reason, _ := strings.Cut(rest, "\t")
		switch {
		case !ok:
		case word == "begin":
			running = name
		case word == Pass || word == Skip || word == Fail:
			running = ""
			r := Result{name, word, strings.ReplaceAll(strings.ReplaceAll(reason, "|", "/"), `\n`, " "), ""}
			if word == Fail {
				r.output = strings.ReplaceAll(reason, `\n`, "\n")
				r.Reason = last(r.output)
			}
			all = append(all, r)
		}
	}
	return all, running
}

// unzip copies the tests, some of which Debian compresses, and returns the modules with tests.
func unzip(to, from string) (modules []string, err error) {
	if err := os.Mkdir(to, 0o755); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		plain, zipped := strings.CutSuffix(file.Name(), ".gz")
		if filepath.Ext(plain) != ".py" {
			continue
		}
		if err := unzipFile(filepath.Join(to, plain), filepath.Join(from, file.Name()), zipped); err != nil {
			return nil, err
		}
		if module, ok := strings.CutSuffix(plain, ".py"); ok && strings.HasPrefix(module, "test_") {
			modules = append(modules, module)
		}
	}
	slices.Sort(modules)
	return modules, nil
}

func unzipFile(to, from string, zipped bool) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	var text io.Reader = bufio.NewReader(in)
	if zipped {
		if text, err = gzip.NewReader(text); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(text)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}
