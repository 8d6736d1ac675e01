// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/project"
)

// source is a directory of headers, man pages and libraries.
type source struct {
	dir         string
	tree        bool     // a source tree
	folders     []string // of a source tree: see project.Project
	find        func(header string) []string
	pageDirs    []string
	libraryDirs []string // none for a source tree
}

// openSource accepts an include directory of a project, a directory of unpacked packages, and a source tree.
func openSource(of, dir string) (*source, error) {
	p := project.Named(of)
	if p == nil {
		return nil, project.Unknown(of)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if p.Tree != "" && isFile(filepath.Join(dir, p.Tree)) {
		return openTree(dir, p.Folders)
	}
	for _, below := range []string{".", "include", "usr/include"} {
		inc := filepath.Join(dir, below)
		if isFile(filepath.Join(inc, p.Mark)) {
			return &source{
				dir:  inc,
				find: func(h string) []string { return []string{filepath.Join(inc, h)} },
				// as installed, and as in the cache
				pageDirs: []string{filepath.Join(inc, "..", "share", "man", "man3"), filepath.Join(inc, "..", "man")},
				libraryDirs: []string{filepath.Join(inc, "..", "lib", "x86_64-linux-gnu"),
					filepath.Join(inc, "..", "lib")},
			}, nil
		}
	}
	if p.Tree == "" {
		return nil, fmt.Errorf("%s is not an include directory of %s: %s is missing", dir, of, p.Mark)
	}
	return nil, fmt.Errorf("%s is neither an include directory (it has no %s) nor an %s source tree (it has no %s)",
		dir, p.Mark, of, p.Tree)
}

func openTree(dir string, folders []string) (*source, error) {
	s := &source{dir: dir, tree: true, folders: folders}
	var dirs []string
	for _, pattern := range folders {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
	for _, d := range dirs {
		s.pageDirs = append(s.pageDirs, filepath.Join(d, "man"))
	}
	s.find = func(h string) []string {
		var all []string
		for _, d := range dirs {
			all = append(all, filepath.Join(d, path.Base(h)))
		}
		return all
	}
	return s, nil
}

// header reads a header. The error matches fs.ErrNotExist if the source lacks it.
func (s *source) header(name string) ([]byte, error) {
	for _, p := range s.find(name) {
		data, err := bounded.Read(p)
		if !errors.Is(err, fs.ErrNotExist) {
			return short(data, p, err)
		}
	}
	return nil, fmt.Errorf("%s: %s: %w", s.dir, name, fs.ErrNotExist)
}

// library reads a shared library. The error matches fs.ErrNotExist if the source lacks it.
func (s *source) library(soname string) ([]byte, error) {
	for _, dir := range s.libraryDirs {
		data, err := bounded.Read(filepath.Join(dir, soname))
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fmt.Errorf("library %s: %w", soname, fs.ErrNotExist)
}

// page holds the file of a man page, and its target if it is a link.
type page struct{ file, link string }

// page finds a man page. The error matches fs.ErrNotExist if the source lacks it.
func (s *source) page(name string) (page, error) {
	for _, dir := range s.pageDirs {
		for _, suffix := range []string{"", ".gz"} {
			file := filepath.Join(dir, name+suffix)
			info, err := os.Lstat(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return page{}, err
			}
			if info.Mode()&fs.ModeSymlink == 0 {
				return stub(page{file: file})
			}
			target, err := os.Readlink(file)
			if err != nil {
				return page{}, err
			}
			pg := page{file: file}
			// a link that leaves the directory only relocates the page
			if filepath.Dir(target) == "." {
				pg.link = strings.TrimSuffix(target, ".gz")
			}
			return pg, nil
		}
	}
	return page{}, fmt.Errorf("man page %s: %w", name, fs.ErrNotExist)
}

// stub converts a page that consists of ".so man3/other.3" to a link.
func stub(pg page) (page, error) {
	data, err := pg.read()
	if err != nil {
		return pg, err
	}
	if to, ok := strings.CutPrefix(string(data), ".so "); ok && strings.Count(strings.TrimSpace(to), "\n") == 0 {
		pg.link = strings.TrimSuffix(path.Base(strings.TrimSpace(to)), ".gz")
	}
	return pg, nil
}

// read returns the uncompressed text.
func (p page) read() ([]byte, error) {
	data, err := bounded.Read(p.file)
	if err != nil || !strings.HasSuffix(p.file, ".gz") {
		return short(data, p.file, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: not a gzip file: %w", p.file, err)
	}
	text, err := bounded.All(io.LimitReader(z, maxText+1), p.file)
	if err != nil {
		return nil, fmt.Errorf("%s: damaged gzip file: %w", p.file, err)
	}
	return short(text, p.file, nil)
}

// maxText limits the uncompressed size of a header or man page, since all files of a release are in memory together.
const maxText = 1 << 20

func short(text []byte, file string, err error) ([]byte, error) {
	if err == nil && len(text) > maxText {
		return nil, fmt.Errorf("%s: larger than the limit of %d MiB of a header or man page", file, maxText>>20)
	}
	return text, err
}

func isFile(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular()
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
