// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
)

// ErrNoLibrary is the error for a library that is not installed.
var ErrNoLibrary = errors.New("no such library")

// FindLibrary returns the file that a program for the target would load for a library name. It searches dirs if there
// are any, and otherwise the loader's directories, followed by the C compiler's. It skips files for other targets.
func FindLibrary(ctx context.Context, cc Compiler, name, target string, dirs []string) (string, error) {
	candidates := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	if len(dirs) == 0 {
		dirs = loaderDirs(target)
		for _, dir := range dirs {
			candidates = append(candidates, filepath.Join(dir, name))
		}
		if path := cc.fileName(ctx, name); path != "" {
			candidates = append(candidates, path)
		}
	}
	for _, path := range candidates {
		ok, err := loadable(path, target)
		if err != nil {
			return "", err
		}
		if ok {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w for %s in %s", ErrNoLibrary, target, strings.Join(dirs, ", "))
}

// loadable reports whether a file exists and is for the target. A file that is not a library is an error.
func loadable(path, target string) (bool, error) {
	f, closeFile, err := openLibrary(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w; name the directory of the libraries with -L", path, err)
	}
	defer closeFile()
	return forTarget(f, target), nil
}

// openLibrary opens an ELF file.
func openLibrary(path string) (f *elf.File, closeFile func() error, err error) {
	file, err := bounded.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if f, err = elf.NewFile(file); err != nil {
		file.Close()
		return nil, nil, err
	}
	return f, file.Close, nil
}

// loaderDirs returns the directories that the loader searches: for this machine's target those in its configuration,
// and for every target the default ones, including Debian's multiarch directories.
func loaderDirs(target string) []string {
	var dirs []string
	if target == runtime.GOARCH {
		for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
			if dir != "" {
				dirs = append(dirs, dir)
			}
		}
		dirs = append(dirs, configuredDirs("/etc/ld.so.conf", map[string]bool{})...)
	}
	if name := triplet[target]; name != "" {
		dirs = append(dirs, "/lib/"+name, "/usr/lib/"+name, "/usr/"+name+"/lib")
	}
	if target == runtime.GOARCH {
		dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib64", "/usr/local/lib")
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(dirs, func(dir string) bool {
		again := seen[dir]
		seen[dir] = true
		return again
	})
}

// configuredDirs parses a loader configuration: one directory per line, and include lines with patterns. Each file is
// read once, so that circular includes end.
func configuredDirs(path string, seen map[string]bool) []string {
	if seen[path] {
		return nil
	}
	seen[path] = true
	text, err := bounded.Read(path)
	if err != nil { // the file is optional
		return nil
	}
	var dirs []string
	for line := range bytes.Lines(text) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		words := strings.Fields(string(line))
		switch {
		case len(words) == 0 || words[0] == "hwcap":
		case words[0] == "include":
			for _, pattern := range words[1:] {
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(filepath.Dir(path), pattern)
				}
				files, _ := filepath.Glob(pattern) // an invalid pattern includes nothing
				for _, f := range files {
					dirs = append(dirs, configuredDirs(f, seen)...)
				}
			}
		default:
			dirs = append(dirs, words[0])
		}
	}
	return dirs
}

// fileName returns the path from which the compiler would link a library, or "".
func (c Compiler) fileName(ctx context.Context, name string) string {
	if len(c) == 0 {
		return ""
	}
	out, err := c.output(ctx, nil, "-print-file-name="+name)
	lines := strings.Split(strings.TrimSpace(out), "\n") // warnings may come first
	if path := strings.TrimSpace(lines[len(lines)-1]); err == nil && filepath.IsAbs(path) {
		return path
	}
	return ""
}
