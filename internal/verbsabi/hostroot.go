// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
)

// hostRoot is a host's root file system: a directory or an image. Paths are resolved as for a process in it: absolute
// links and ".." stay inside.
type hostRoot struct {
	name  string // as the user named it
	files hostFiles
}

// hostFiles reads files. Paths have no symbolic links and no leading slash; "." is the root.
type hostFiles interface {
	// look returns the kind of a file, and the target if it is a symbolic link.
	look(path string) (kind fs.FileMode, target string, err error)
	list(path string) ([]string, error)
	read(path string) ([]byte, error) // of at most bounded.MaxFile bytes
	io.Closer
}

// openHost opens a directory, or an image as docker save and docker export write it.
func openHost(name string) (*hostRoot, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		files, err := openHostImage(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return &hostRoot{name, files}, nil
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &hostRoot{name, hostDir{root}}, nil
}

func (h *hostRoot) close() error { return h.files.Close() }

// maxLinks is the maximum number of symbolic links that Linux follows in a path.
const maxLinks = 40

// resolve follows symbolic links. The result contains none, begins with a slash, and exists.
func (h *hostRoot) resolve(name string) (string, fs.FileMode, error) {
	return resolveIn(name, h.files.look)
}

func resolveIn(name string, look func(path string) (fs.FileMode, string, error)) (string, fs.FileMode, error) {
	at, kind := ".", fs.ModeDir
	rest := strings.Split(name, "/")
	links := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch {
		case part == "" || part == ".":
			continue
		case part == "..": // of the root is the root
			at, kind = path.Dir(at), fs.ModeDir
			continue
		case !kind.IsDir():
			return "", 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		next := path.Join(at, part)
		k, target, err := look(next)
		if err != nil {
			return "", 0, err
		}
		if k&fs.ModeSymlink == 0 {
			at, kind = next, k
			continue
		}
		if links++; links > maxLinks || len(target) > maxPath {
			return "", 0, fmt.Errorf("%s: too many symbolic links", name)
		}
		if strings.HasPrefix(target, "/") {
			at = "."
		}
		kind = fs.ModeDir
		rest = append(strings.Split(target, "/"), rest...)
	}
	return path.Join("/", at), kind, nil
}

// read reads a regular file and returns its resolved path.
func (h *hostRoot) read(name string) ([]byte, string, error) {
	real, kind, err := h.resolve(name)
	if err != nil {
		return nil, "", err
	}
	if !kind.IsRegular() {
		return nil, "", fmt.Errorf("%s: not a regular file", name)
	}
	data, err := h.files.read(strings.TrimPrefix(real, "/"))
	return data, real, err
}

// glob returns the paths that match a pattern. Only the last element may have wildcards.
func (h *hostRoot) glob(pattern string) ([]string, error) {
	dir, last := path.Split(pattern)
	real, kind, err := h.resolve(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !kind.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := h.files.list(path.Join(".", real))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range names {
		if ok, err := path.Match(last, name); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		} else if ok {
			all = append(all, path.Join(real, name))
		}
	}
	return all, nil
}

// loaderDirs returns the directories that the host's dynamic loader searches: those in its configuration, followed by
// its defaults. The GNU C library's loader reads ld.so.cache instead, which ldconfig generates from the same
// configuration.
func (h *hostRoot) loaderDirs(loader, target string) ([]string, error) {
	if base := path.Base(loader); strings.HasPrefix(base, "ld-musl-") {
		arch := strings.TrimSuffix(strings.TrimPrefix(base, "ld-musl-"), ".so.1")
		text, _, err := h.read("/etc/ld-musl-" + arch + ".path")
		if errors.Is(err, fs.ErrNotExist) {
			return []string{"/lib", "/usr/local/lib", "/usr/lib"}, nil
		}
		return strings.FieldsFunc(string(text), func(r rune) bool { return r == ':' || r == '\n' }), err
	}
	dirs, err := h.configuredDirs("/etc/ld.so.conf", map[string]bool{})
	if name := triplet[target]; name != "" {
		dirs = append(dirs, "/lib/"+name, "/usr/lib/"+name)
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib"), err
}

// configuredDirs parses a loader configuration, like the function of the same name for this machine.
func (h *hostRoot) configuredDirs(name string, seen map[string]bool) ([]string, error) {
	if seen[name] || len(seen) > maxConfigs {
		return nil, nil
	}
	seen[name] = true
	text, _, err := h.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range bytes.Lines(text) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		words := strings.Fields(string(line))
		switch {
		case len(words) == 0 || words[0] == "hwcap":
		case words[0] == "include":
			for _, pattern := range words[1:] {
				if !path.IsAbs(pattern) {
					pattern = path.Join(path.Dir(name), pattern)
				}
				files, err := h.glob(pattern)
				if err != nil {
					return nil, err
				}
				for _, f := range files {
					more, err := h.configuredDirs(f, seen)
					if err != nil {
						return nil, err
					}
					dirs = append(dirs, more...)
				}
			}
		default:
			dirs = append(dirs, words[0])
		}
	}
	return dirs, nil
}

const maxConfigs = 1000

// hostDir is a directory of this machine.
type hostDir struct{ root *os.Root }

func (d hostDir) Close() error { return d.root.Close() }

func (d hostDir) look(name string) (fs.FileMode, string, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return 0, "", err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return info.Mode().Type(), "", nil
	}
	target, err := d.root.Readlink(name)
	return info.Mode().Type(), target, err
}

func (d hostDir) list(name string) ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), name)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d hostDir) read(name string) ([]byte, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded.All(f, name)
}
