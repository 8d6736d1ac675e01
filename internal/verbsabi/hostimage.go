// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
)

// Limits of images, which are untrusted.
const (
	maxImageFiles = 4 << 20
	maxLayers     = 1000
	maxLayer      = 64 << 30 // bytes, uncompressed
	maxDepth      = 200      // directories in a path
)

// hostImage is a root file system in a tar archive from docker export, or in the layers of an archive from docker save.
// File contents are read when they are needed.
type hostImage struct {
	file   *os.File
	layers []imageLayer
	root   *imageFile
	count  int // entries of all layers
}

// imageLayer is a tar archive in the file, which may be compressed.
type imageLayer struct{ offset, size int64 }

// imageFile is a file of the image.
type imageFile struct {
	kind     fs.FileMode
	target   string                // target of a symbolic link
	children map[string]*imageFile // files in a directory
	layer    int                   // location of the contents: layer, and index of the entry in it
	entry    int
}

func newImageDir() *imageFile {
	return &imageFile{kind: fs.ModeDir, children: map[string]*imageFile{}}
}

// openHostImage reads the names in all layers.
func openHostImage(name string) (*hostImage, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	m := &hostImage{file: file, root: newImageDir()}
	if err := m.readLayers(); err != nil {
		file.Close()
		return nil, err
	}
	return m, nil
}

func (m *hostImage) Close() error { return m.file.Close() }

// readLayers finds the archive's layers and reads them in order.
func (m *hostImage) readLayers() error {
	info, err := m.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, errors.New("not a directory or a tar archive of an image"))
	}
	start := make([]byte, 4)
	if n, _ := m.file.ReadAt(start, 0); n == len(start) && compression(start) != "" {
		return fmt.Errorf("the archive is compressed with %s; uncompress it first", compression(start))
	}
	inside := map[string]imageLayer{} // files of the archive
	links := map[string]string{}
	var manifest []byte
	t := tar.NewReader(m.file)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(inside)+len(links) >= maxImageFiles {
			err = fmt.Errorf("more than %d files", maxImageFiles)
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		at := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			offset, err := m.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			inside[at] = imageLayer{offset, h.Size}
			if at == "manifest.json" {
				if manifest, err = bounded.All(t, at); err != nil {
					return err
				}
			}
		case tar.TypeSymlink, tar.TypeLink:
			links[at] = h.Linkname
			if h.Typeflag == tar.TypeSymlink {
				links[at] = path.Join(path.Dir(at), h.Linkname)
			}
		}
	}
	if _, isOCI := inside["oci-layout"]; isOCI && manifest == nil {
		return errors.New("an OCI archive without manifest.json; write it with docker save, or skopeo's docker-archive")
	}
	var images []struct{ Layers []string }
	if manifest == nil || json.Unmarshal(manifest, &images) != nil || len(images) == 0 || len(images[0].Layers) == 0 {
		m.layers = []imageLayer{{0, info.Size()}} // of docker export; a manifest.json of another kind may be in it
		return m.addLayer(0)
	}
	if len(images) != 1 {
		return fmt.Errorf("the archive has %d images; save one", len(images))
	}
	if len(images[0].Layers) > maxLayers {
		return fmt.Errorf("the image has more than %d layers", maxLayers)
	}
	for i, name := range images[0].Layers {
		at := path.Clean(name)
		if to, ok := links[at]; ok {
			at = path.Clean(to)
		}
		layer, ok := inside[at]
		if !ok {
			return fmt.Errorf("layer %q of manifest.json is not in the archive", name)
		}
		m.layers = append(m.layers, layer)
		if err := m.addLayer(i); err != nil {
			return fmt.Errorf("layer %q: %w", name, err)
		}
	}
	return nil
}

// compression returns the program that compressed data, or "".
func compression(start []byte) string {
	for program, magic := range map[string]string{"gzip": "\x1f\x8b", "zstd": "\x28\xb5\x2f\xfd", "xz": "\xfd7zX",
		"bzip2": "BZh"} {
		if bytes.HasPrefix(start, []byte(magic)) {
			return program
		}
	}
	return ""
}

// open returns a reader of a layer.
func (m *hostImage) open(layer int) (*tar.Reader, error) {
	l := m.layers[layer]
	section := io.NewSectionReader(m.file, l.offset, l.size)
	start, _ := bufio.NewReader(io.NewSectionReader(m.file, l.offset, min(l.size, 4))).Peek(4)
	switch program := compression(start); program {
	case "":
		return tar.NewReader(section), nil
	case "gzip":
		z, err := gzip.NewReader(section)
		if err != nil {
			return nil, err
		}
		return tar.NewReader(io.LimitReader(z, maxLayer)), nil
	default:
		return nil, fmt.Errorf("compressed with %s, which is not supported; save the image with docker save", program)
	}
}

// Names by which a layer removes files of the layers below.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// addLayer adds a layer on top of the others. Its whiteouts remove files of lower layers, regardless of their order.
func (m *hostImage) addLayer(layer int) error {
	for _, removing := range []bool{true, false} {
		t, err := m.open(layer)
		if err != nil {
			return err
		}
		for entry := 0; ; entry++ {
			h, err := t.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("reading it: %w", err)
			}
			if m.count++; m.count > maxImageFiles {
				return fmt.Errorf("the image has more than %d files", maxImageFiles/2)
			}
			dir, base, err := splitEntry(h.Name)
			if err != nil {
				return err
			}
			switch white := strings.HasPrefix(base, whiteout); {
			case white && removing:
				m.remove(dir, base)
			case !white && !removing:
				if err := m.add(h, dir, base, layer, entry); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// splitEntry splits an entry's name into a directory and the last element, which is "" for the root.
func splitEntry(name string) (dir, base string, err error) {
	switch parts := strings.Split(name, "/"); {
	case slices.Contains(parts, ".."):
		return "", "", fmt.Errorf("the entry %.100q leaves the image; the archive is not from docker", name)
	case len(parts) > maxDepth || len(name) > maxPath:
		return "", "", fmt.Errorf("the entry %.100q is too long", name)
	}
	dir, base = path.Split(strings.Trim(path.Clean("/"+name), "/"))
	return dir, base, nil
}

// remove applies a whiteout.
func (m *hostImage) remove(dir, base string) {
	real, _, err := resolveIn(dir, m.look)
	if err != nil { // nothing is there
		return
	}
	switch at := m.at(path.Join(".", real)); {
	case at == nil || at.children == nil:
	case base == opaque:
		clear(at.children)
	default:
		delete(at.children, strings.TrimPrefix(base, whiteout))
	}
}

// add adds an entry to the tree, and creates missing directories. A directory keeps its files from lower layers.
func (m *hostImage) add(h *tar.Header, dir, base string, layer, entry int) error {
	if base == "" || base == "." {
		return nil
	}
	parent, err := m.directory(dir)
	if err != nil {
		return fmt.Errorf("the entry %.100q: %w", h.Name, err)
	}
	f := &imageFile{layer: layer, entry: entry}
	switch h.Typeflag {
	case tar.TypeDir:
		if old := parent.children[base]; old != nil && old.children != nil {
			return nil
		}
		f = newImageDir()
	case tar.TypeReg:
	case tar.TypeSymlink:
		f.kind, f.target = fs.ModeSymlink, h.Linkname
	case tar.TypeLink:
		real, _, err := resolveIn(path.Dir(path.Join("/", h.Linkname)), m.look)
		if err == nil {
			f = m.at(path.Join(".", real, path.Base(h.Linkname)))
		}
		if err != nil || f == nil || f.children != nil {
			return fmt.Errorf("the entry %.100q is a link to %.100q, which is not in the image", h.Name, h.Linkname)
		}
	case tar.TypeXGlobalHeader:
		return nil
	default:
		f.kind = fs.ModeIrregular // a device or a pipe
	}
	parent.children[base] = f
	return nil
}

// directory returns a directory, following links of lower layers, and creates missing ones.
func (m *hostImage) directory(name string) (*imageFile, error) {
	at := "."
	for _, part := range strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if part == "" {
			continue
		}
		here := m.at(at)
		next := here.children[part]
		if next == nil || next.children == nil && next.kind&fs.ModeSymlink == 0 {
			if m.count++; m.count > maxImageFiles {
				return nil, fmt.Errorf("the image has more than %d files", maxImageFiles/2)
			}
			next = newImageDir() // replaces a file of a lower layer
			here.children[part] = next
		}
		real, kind, err := resolveIn(path.Join(at, part), m.look)
		if err != nil || !kind.IsDir() {
			return nil, errors.Join(errors.New("a directory of its path is a link to something else"), err)
		}
		at = path.Join(".", real)
	}
	return m.at(at), nil
}

// at returns a file by its path without links, or nil.
func (m *hostImage) at(name string) *imageFile {
	at := m.root
	if name == "." || name == "" {
		return at
	}
	for _, part := range strings.Split(name, "/") {
		if at = at.children[part]; at == nil {
			return nil
		}
	}
	return at
}

func (m *hostImage) look(name string) (fs.FileMode, string, error) {
	f := m.at(name)
	if f == nil {
		return 0, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f.kind, f.target, nil
}

func (m *hostImage) list(name string) ([]string, error) {
	f := m.at(name)
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Sorted(maps.Keys(f.children)), nil
}

func (m *hostImage) read(name string) ([]byte, error) {
	f := m.at(name)
	if f == nil || !f.kind.IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	t, err := m.open(f.layer)
	if err != nil {
		return nil, err
	}
	for i := 0; ; i++ {
		if _, err := t.Next(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if i == f.entry {
			return bounded.All(t, name)
		}
	}
}
