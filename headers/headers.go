// SPDX-License-Identifier: BSD-2-Clause

// Package headers embeds the inputs of the generator: the lock, the recorded models, the predefined macros of each
// target, our minimal C library headers, and the measured answers of providers. It contains no upstream header text.
package headers

import (
	"compress/gzip"
	"embed"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed headers.lock models/*.json.gz macros/*.h shim freebsd measured ioctls
var files embed.FS

// Lock returns the text of headers.lock.
func Lock() []byte { return must(files.ReadFile("headers.lock")) }

// Primary returns the primary release of a project, the source of generated/.
func Primary(project string) string {
	for line := range strings.Lines(string(Lock())) {
		words := strings.Fields(line)
		if len(words) == 4 && words[0] == "release" && words[1] == project && words[3] == "primary" {
			return words[2]
		}
	}
	panic("headers.lock names no primary release of " + project) // gen/fetch rejects such a lock
}

// Shim returns the include directory of our C library headers.
func Shim() fs.FS { return must(fs.Sub(files, "shim")) }

// ShimOf returns the include directory of our C library headers for a system; "" is Linux. The headers of another
// system hide Linux's.
func ShimOf(goos string) fs.FS {
	if goos == "" {
		return Shim()
	}
	return over{must(fs.Sub(files, goos+"/shim")), Shim()}
}

// over is the union of two directories. A file of the first hides the file of the same name in the second.
type over [2]fs.FS

func (o over) Open(name string) (fs.File, error) {
	f, err := o[0].Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return o[1].Open(name)
	}
	return f, err
}

// ReadDir returns the entries of both directories.
func (o over) ReadDir(name string) ([]fs.DirEntry, error) {
	var all []fs.DirEntry
	found := false
	for _, dir := range o {
		entries, err := fs.ReadDir(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = true
		for _, e := range entries {
			if !slices.ContainsFunc(all, func(a fs.DirEntry) bool { return a.Name() == e.Name() }) {
				all = append(all, e)
			}
		}
	}
	if !found {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

// Macros returns the predefined macros of a C compiler for a target (a GOARCH of Linux).
func Macros(target string) (string, error) {
	return MacrosOf("", target)
}

// MacrosOf returns the predefined macros of a C compiler for a target of a system; "" is Linux.
func MacrosOf(goos, target string) (string, error) {
	b, err := files.ReadFile(path.Join(goos, "macros", target+".h"))
	return string(b), err
}

// Targets lists the targets whose predefined macros are recorded, the default target amd64 first.
func Targets() []string { return TargetsOf("") }

// TargetsOf lists the targets of a system, "" for Linux, whose predefined macros are recorded, amd64 first.
func TargetsOf(goos string) []string {
	var all []string
	for _, e := range must(files.ReadDir(path.Join(goos, "macros"))) {
		all = append(all, strings.TrimSuffix(e.Name(), ".h"))
	}
	slices.SortStableFunc(all, func(a, b string) int {
		return btoi(b == "amd64") - btoi(a == "amd64")
	})
	return all
}

// Model returns the recorded model of a release as JSON, by its file name: "65.0", "librpma-1.3.0".
func Model(file string) ([]byte, error) {
	packed, err := files.Open("models/" + file + ".json.gz")
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	text, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(text)
}

// Ioctls returns the directory of the kernels' ioctl methods.
func Ioctls() fs.FS { return must(fs.Sub(files, "ioctls")) }

// Measured returns the directory of measured answers.
func Measured() fs.FS { return must(fs.Sub(files, "measured")) }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the files are embedded: only a broken build gets here
	}
	return v
}
