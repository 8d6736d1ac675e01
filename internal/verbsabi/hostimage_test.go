// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// layerOf returns a tar archive of rows: "dir/", "file=text", "link->target", "hard=>target".
func layerOf(t *testing.T, rows ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, row := range rows {
		h := &tar.Header{Name: row, Mode: 0o644, Typeflag: tar.TypeReg}
		text := ""
		link, equal := strings.Index(row, "->"), strings.IndexByte(row, '=')
		switch {
		case link >= 0 && (equal < 0 || link < equal):
			h.Name, h.Linkname, h.Typeflag = row[:link], row[link+2:], tar.TypeSymlink
		case equal >= 0 && strings.HasPrefix(row[equal:], "=>"):
			h.Name, h.Linkname, h.Typeflag = row[:equal], row[equal+2:], tar.TypeLink
		case equal >= 0:
			h.Name, text, h.Size = row[:equal], row[equal+1:], int64(len(row)-equal-1)
		case strings.HasSuffix(row, "/"):
			h.Typeflag = tar.TypeDir
		}
		require.NoError(t, w.WriteHeader(h))
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// savedImage returns an archive as docker save writes it.
func savedImage(t *testing.T, layers ...[]byte) []byte {
	t.Helper()
	var rows, names []string
	for i, l := range layers {
		names = append(names, "blobs/sha256/"+string(rune('a'+i)))
		rows = append(rows, names[i]+"="+string(l))
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "Layers": names}})
	require.NoError(t, err)
	return layerOf(t, append([]string{"oci-layout={}", "manifest.json=" + string(manifest)}, rows...)...)
}

func openImage(t *testing.T, archive []byte) (*hostRoot, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, os.WriteFile(name, archive, 0o644))
	h, err := openHost(name)
	if err == nil {
		t.Cleanup(func() { h.close() })
	}
	return h, err
}

// TestImage checks layers, whiteouts and links of images.
func TestImage(t *testing.T) {
	archive := savedImage(t,
		layerOf(t, "usr/", "usr/lib/", "usr/lib/a=1", "usr/lib/b=1", "usr/lib/gone=1", "lib->usr/lib", "etc/old/x=1",
			"opt/all/y=1", "opt/all/z=1", "file=1", "up->../../../file", "opt/abs->/usr/lib/a", "loop->loop"),
		zipped(t, layerOf(t, "usr/lib/b=2", "usr/lib/.wh.gone", "etc/.wh.old", "opt/all/.wh..wh..opq", "opt/all/z=2",
			"lib/c=2", "usr/lib/hard=>usr/lib/a", "file/inside=2")),
		layerOf(t, "etc/old/new=3", ".wh.nothing", "lib/.wh.c"),
	)
	h, err := openImage(t, archive)
	require.NoError(t, err)
	for name, want := range map[string]string{"/usr/lib/a": "1", "/lib/a": "1", "/usr/lib/b": "2", "lib/hard": "1",
		"/opt/abs": "1", "/up/inside": "2", "/opt/all/z": "2", "/etc/old/new": "3", "/../usr/lib/../lib/a": "1"} {
		text, _, err := h.read(name)
		assert.NoError(t, err, name)
		assert.Equal(t, want, string(text), name)
	}
	for _, name := range []string{"/usr/lib/gone", "/etc/old/x", "/opt/all/y", "/usr/lib/c", "/usr/lib/a/b"} {
		_, _, err := h.read(name)
		assert.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	_, _, err = h.read("/loop")
	assert.ErrorContains(t, err, "too many symbolic links")
	_, _, err = h.read("/usr/lib")
	assert.ErrorContains(t, err, "not a regular file")
	names, err := h.glob("/lib/[ab]")
	require.NoError(t, err)
	assert.Equal(t, []string{"/usr/lib/a", "/usr/lib/b"}, names)
}

// TestImageAsTar compares an image with the file system that tar unpacks from the same archive.
func TestImageAsTar(t *testing.T) {
	archive := layerOf(t, "usr/", "usr/lib/", "usr/lib/a=1", "lib->usr/lib", "lib/b=2", "usr/lib/c=>usr/lib/a", "d->c/../usr",
		"./usr/e=4", "usr/e=5")
	h, err := openImage(t, archive)
	require.NoError(t, err)
	dir := t.TempDir()
	cmd := exec.Command("tar", "-x", "-C", dir)
	cmd.Stdin = bytes.NewReader(archive)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	unpacked, err := openHost(dir)
	require.NoError(t, err)
	defer unpacked.close()
	for _, name := range []string{"usr/lib/a", "usr/lib/b", "lib/b", "usr/lib/c", "lib/c", "d", "usr/e", "none"} {
		want, wantPath, wantErr := unpacked.read(name)
		text, path, err := h.read(name)
		assert.Equal(t, string(want), string(text), name)
		assert.Equal(t, wantPath, path, name)
		assert.Equal(t, wantErr == nil, err == nil, "%s: %v, %v", name, wantErr, err)
	}
}

// TestImageErrors checks archives that are damaged, hostile, or in another format.
func TestImageErrors(t *testing.T) {
	plain := layerOf(t, "a=1")
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"leaves":       {layerOf(t, "../a=1"), `the entry "../a" leaves the image`},
		"leaves later": {savedImage(t, plain, layerOf(t, "a/../../b=1")), "leaves the image"},
		"hard link":    {layerOf(t, "a=>/etc/passwd"), "which is not in the image"},
		"deep":         {layerOf(t, strings.Repeat("a/", maxDepth)+"b=1"), "is too long"},
		"loop":         {layerOf(t, "a->b", "b->a", "a/c=1"), "a directory of its path is a link to something else"},
		"compressed":   {zipped(t, plain), "compressed with gzip; uncompress it first"},
		"zstd":         {savedImage(t, []byte("\x28\xb5\x2f\xfd....")), "compressed with zstd, which is not supported"},
		"no layer":     {layerOf(t, `manifest.json=[{"Layers":["x"]}]`), `layer "x" of manifest.json is not in the archive`},
		"two images":   {layerOf(t, `manifest.json=[{"Layers":["x"]},{"Layers":["y"]}]`), "has 2 images"},
		"oci":          {layerOf(t, "oci-layout={}", "index.json={}"), "an OCI archive without manifest.json"},
		"text":         {[]byte(strings.Repeat("no archive ", 100)), "reading the archive"},
		"short":        {plain[:512], "reading the archive"},
	} {
		_, err := openImage(t, c.archive)
		assert.ErrorContains(t, err, c.want, name)
	}
}

// TestProgramOnImage checks a program on an image of two layers, the second of which removes a library.
func TestProgramOnImage(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64")
	root := newHost(t, "44.0")
	out, err := exec.Command("tar", "-c", "-C", root, ".").Output()
	require.NoError(t, err)
	image := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, os.WriteFile(image, out, 0o644))
	ok, a := checkProgram(t, program, image)
	assert.True(t, ok, "%v", failures(a))
	assert.Equal(t, "44.0", a.Libraries[0].Release)
	require.NoError(t, os.WriteFile(image, savedImage(t, out, layerOf(t, libDir+"/.wh.libibverbs.so.1")), 0o644))
	ok, a = checkProgram(t, program, image)
	assert.False(t, ok)
	assert.Equal(t, []string{"library libibverbs.so.1"}, failures(a))
}

func FuzzImage(f *testing.F) {
	f.Add([]byte("usr/lib/a=1\nlib->usr/lib\nusr/.wh.lib"), "/lib/a")
	f.Fuzz(func(t *testing.T, rows []byte, name string) {
		m := &hostImage{root: newImageDir()}
		for i, row := range strings.Split(string(rows), "\n") {
			h := &tar.Header{Name: row, Typeflag: tar.TypeReg}
			if from, to, ok := strings.Cut(row, "->"); ok {
				h.Name, h.Linkname, h.Typeflag = from, to, tar.TypeSymlink
			} else if from, to, ok := strings.Cut(row, "=>"); ok {
				h.Name, h.Linkname, h.Typeflag = from, to, tar.TypeLink
			}
			dir, base, err := splitEntry(h.Name)
			if err != nil {
				continue
			}
			if strings.HasPrefix(base, whiteout) {
				m.remove(dir, base)
			} else if err := m.add(h, dir, base, 0, i); err != nil {
				continue
			}
		}
		real, _, err := resolveIn(name, m.look)
		if err == nil {
			assert.NotContains(t, strings.Split(real, "/"), "..")
		}
	})
}
