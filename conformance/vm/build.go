// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// moduleRoot is the root of this checkout. In a program built with -trimpath, the go command reports it.
var moduleRoot = sync.OnceValue(func() string {
	if _, file, _, _ := runtime.Caller(0); filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "..", "..")
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "." // errors about missing files name their path
	}
	return strings.TrimSpace(string(dir))
})

func guestTarget() []string { return []string{"GOOS=linux", "GOARCH=amd64"} }

// goCommand runs the go command. Its output is part of the error.
func goCommand(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 2 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), ended(ctx, err), bytes.TrimSpace(out))
	}
	return nil
}

// ended returns the cause of a command's failure: the context's error if the context ended, because the command's error
// is then only "killed".
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// listed is the output of go list for a package.
type listed struct {
	Dir, ImportPath, Name     string
	TestGoFiles, XTestGoFiles []string
}

// Build compiles, for the guest, the tests of the packages that match patterns, and matching programs without tests.
// Executables go to dir. buildFlags are for the go command, args for each program.
func Build(ctx context.Context, dir string, patterns, buildFlags, args []string, timeout time.Duration,
	log Logf) ([]Program, error) {
	packages, err := list(ctx, patterns, buildFlags)
	if err != nil {
		return nil, err
	}
	sources, err := sourceDigests(ctx, patterns, buildFlags)
	if err != nil {
		return nil, err
	}
	var programs []Program
	var tests, mains []*listed
	for i := range packages {
		p := &packages[i]
		switch {
		case len(p.TestGoFiles)+len(p.XTestGoFiles) > 0:
			tests = append(tests, p)
		case p.Name == "main":
			mains = append(mains, p)
		}
	}
	testFiles, err := compile(ctx, dir, "test -c", buildFlags, tests, log)
	if err != nil {
		return nil, err
	}
	mainFiles, err := compile(ctx, dir, "build", buildFlags, mains, log)
	if err != nil {
		return nil, err
	}
	for i := range packages {
		p := &packages[i]
		name, _ := filepath.Rel(moduleRoot(), p.Dir)
		program := Program{Name: filepath.ToSlash(name), Source: sources[p.ImportPath], Args: args, Timeout: timeout}
		if testdata := filepath.Join(p.Dir, "testdata"); isDir(testdata) {
			program.Testdata = testdata
		}
		switch {
		case testFiles[p] != "":
			program.Host, program.Source = testFiles[p], sources[p.ImportPath+".test"]
			program.Args = testArgs(args, timeout)
		case mainFiles[p] != "":
			program.Host = mainFiles[p]
		default:
			continue
		}
		programs = append(programs, program)
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("no tests and no programs in %s", strings.Join(patterns, " "))
	}
	return programs, nil
}

// BuildHelpers compiles programs that tests run in the guest. They are installed in /usr/bin under the name of their
// directory (Go packages) or file (C files). C files are linked with libibverbs, librdmacm and, if they include its
// header, librpma.
func BuildHelpers(ctx context.Context, dir string, desc, buildFlags []string, log Logf) (files []File, err error) {
	var patterns []string
	for _, name := range desc {
		if base, ok := strings.CutSuffix(filepath.Base(name), ".c"); ok {
			host := filepath.Join(dir, "helper-"+base)
			log.printf("compiling %s", base)
			libraries := []string{"-lrdmacm", "-libverbs"}
			if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte("<librpma.h>")) {
				libraries = append(libraries, "-lrpma") // it may not be installed
			}
			args := append([]string{"-O2", "-Wall", "-Werror", "-o", host, name, "-Wl,--as-needed"}, libraries...)
			if out, err := exec.CommandContext(ctx, "gcc", args...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(out))
			}
			files = append(files, File{Name: "/usr/bin/" + base, Host: host})
			continue
		}
		patterns = append(patterns, name)
	}
	if len(patterns) == 0 {
		return files, nil
	}
	packages, err := list(ctx, patterns, buildFlags)
	if err != nil {
		return nil, err
	}
	sources, err := sourceDigests(ctx, patterns, buildFlags)
	if err != nil {
		return nil, err
	}
	var mains []*listed
	for i := range packages {
		if packages[i].Name == "main" {
			mains = append(mains, &packages[i])
		}
	}
	hosts, err := compile(ctx, dir, "build", buildFlags, mains, log)
	if err != nil {
		return nil, err
	}
	for _, p := range mains {
		name := "/usr/bin/" + path.Base(p.ImportPath)
		files = append(files, File{Name: name, Host: hosts[p], Source: sources[p.ImportPath]})
	}
	return files, nil
}

// compile runs a go command, "build" or "test -c", that writes executables for the guest to directories below dir. It
// runs it once for all packages whose names differ, since each run loads all packages. It returns the files.
func compile(ctx context.Context, dir, command string, buildFlags []string, packages []*listed, log Logf) (
	files map[*listed]string, err error) {
	suffix := ""
	if command == "test -c" {
		suffix = ".test"
	}
	files = map[*listed]string{}
	for len(packages) > 0 {
		to, err := os.MkdirTemp(dir, "built-")
		if err != nil {
			return nil, err
		}
		args := append(strings.Fields(command), buildFlags...)
		args = append(args, "-buildvcs=false", "-ldflags=-s -w", "-o", to+string(filepath.Separator))
		names := map[string]bool{}
		var rest []*listed
		for _, p := range packages {
			name := path.Base(p.ImportPath)
			if names[name] {
				rest = append(rest, p)
				continue
			}
			names[name] = true
			args = append(args, p.ImportPath)
			files[p] = filepath.Join(to, name+suffix)
		}
		log.printf("building %s", strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		if err := goCommand(ctx, "", guestTarget(), args...); err != nil {
			return nil, err
		}
		packages = rest
	}
	return files, nil
}

// testArgs converts flags of go test to those of a test program (-run becomes -test.run). The test's timeout is shorter
// than the guest's, so that the test can print its goroutines itself.
func testArgs(args []string, timeout time.Duration) []string {
	var all []string
	hasTimeout := false
	for _, a := range args {
		if name, ok := strings.CutPrefix(a, "-"); ok && !strings.HasPrefix(name, "test.") {
			name = strings.TrimPrefix(name, "-")
			if word, _, _ := strings.Cut(name, "="); testFlags[word] {
				hasTimeout = hasTimeout || word == "timeout"
				a = "-test." + name
			}
		}
		all = append(all, a)
	}
	if !hasTimeout && timeout > 0 {
		all = append([]string{"-test.timeout=" + (timeout * 9 / 10).String()}, all...)
	}
	return all
}

var testFlags = map[string]bool{
	"run": true, "v": true, "bench": true, "benchtime": true, "benchmem": true, "count": true, "cpu": true,
	"failfast": true, "list": true,
	"parallel": true, "short": true, "skip": true, "timeout": true, "shuffle": true, "fullpath": true,
}

func list(ctx context.Context, patterns, buildFlags []string) ([]listed, error) {
	args := append([]string{"list", "-json=Dir,ImportPath,Name,TestGoFiles,XTestGoFiles"}, buildFlags...)
	out, err := goOutput(ctx, append(args, patterns...)...)
	if err != nil {
		return nil, err
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := dec.Decode(&one); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
}

func isDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}
