// SPDX-License-Identifier: BSD-2-Clause

// Package bounded reads the inputs of the generator and verbsabi: headers, man pages, libraries, models and rows. Since
// a path may name anything, files must be regular, and file sizes, decompressed sizes and directory entries are
// limited.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MaxFile limits the size of one file. Libraries are the largest files that are read.
const MaxFile = 64 << 20

// maxEntries limits the entries of one directory. Tests change it.
var maxEntries = 1 << 16

// Open opens a regular file.
func Open(path string) (*os.File, error) {
	if err := check(path); err != nil { // checked before opening, since opening a pipe waits for a writer
		return nil, err
	}
	return os.Open(path)
}

func check(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%s, not a regular file", kind(info.Mode()))}
	case info.Size() > MaxFile:
		return tooLong(path)
	}
	return nil
}

func tooLong(path string) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than the limit of %d MiB", MaxFile>>20)}
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// Read reads a regular file.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return All(f, path)
}

// All reads r to the end: a decompressor, or a file that may grow. path names it in errors.
func All(r io.Reader, path string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		return nil, tooLong(path)
	}
	return data, err
}

// Dir is os.DirFS with the limits of this package.
func Dir(path string) fs.FS { return &tree{ReadLinkFS: os.DirFS(path).(fs.ReadLinkFS), path: path} }

// Glob is fs.Glob in a directory. A directory with too many entries is an error.
func Glob(dir, pattern string) ([]string, error) {
	t := Dir(dir).(*tree)
	names, err := fs.Glob(t, pattern)
	if t.tooMany != nil {
		return nil, t.tooMany
	}
	return names, err
}

// Walk is filepath.WalkDir with the limits of this package. It does not follow links.
func Walk(root string, fn fs.WalkDirFunc) error {
	return fs.WalkDir(Dir(root), ".", func(path string, d fs.DirEntry, err error) error {
		return fn(filepath.Join(root, path), d, err)
	})
}

// Headers checks that Open accepts every header (*.h) below a directory, following links. It is for C compilers, which
// include further headers on their own. It ignores files and directories that cannot be read, since the compiler cannot
// read them either.
func Headers(dir string) error { return checkHeaders(dir, map[string]bool{}) }

func checkHeaders(dir string, seen map[string]bool) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || seen[real] {
		return err
	}
	seen[real] = true
	return Walk(real, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		switch info, err := os.Stat(path); {
		case err != nil: // a dangling link, which the compiler cannot open either
			return nil
		case info.IsDir():
			return checkHeaders(path, seen)
		case filepath.Ext(path) != ".h":
			return nil
		}
		return check(path)
	})
}

type tree struct {
	fs.ReadLinkFS
	path    string
	tooMany error // fs.Glob ignores errors
}

// Open opens a regular file or a directory.
func (t *tree) Open(name string) (fs.File, error) {
	if fs.ValidPath(name) {
		info, err := fs.Stat(t.ReadLinkFS, name)
		if err == nil && !info.IsDir() {
			err = check(filepath.Join(t.path, name))
		}
		if err != nil {
			return nil, err
		}
	}
	return t.ReadLinkFS.Open(name)
}

// ReadFile reads a regular file.
func (t *tree) ReadFile(name string) ([]byte, error) {
	f, err := t.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return All(f, filepath.Join(t.path, name))
}

// Stat describes a file of any kind.
func (t *tree) Stat(name string) (fs.FileInfo, error) { return fs.Stat(t.ReadLinkFS, name) }

// ReadDir reads the entries of a directory.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := t.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	entries, err := dir.ReadDir(maxEntries + 1)
	if err == io.EOF {
		err = nil
	}
	if len(entries) > maxEntries {
		t.tooMany = &fs.PathError{Op: "readdir", Path: filepath.Join(t.path, name),
			Err: fmt.Errorf("more than the limit of %d entries", maxEntries)}
		return nil, t.tooMany
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}
