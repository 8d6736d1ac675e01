// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"io"
	"path"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

const loader = "ld-linux-x86-64.so.2"

// madeImage returns an image that consists of minimal files.
func madeImage(t *testing.T) *Image {
	t.Helper()
	i := &Image{Kernel: "6.1", Modules: []string{"ib_core", "rdma_rxe"}, dir: t.TempDir()}
	for _, m := range i.Modules {
		put(t, i.dir, "modules/"+m+".ko", []byte(m))
	}
	library := func(name string, needed ...string) { elfFile{needed: needed}.write(t, i.root(), name) }
	library("lib/x86_64-linux-gnu/libc.so.6")
	library("lib/x86_64-linux-gnu/" + loader)
	library("lib/x86_64-linux-gnu/libnl-3.so.200", "libc.so.6")
	for _, name := range dlopened {
		library("usr/lib/x86_64-linux-gnu/"+name, "libc.so.6", "libnl-3.so.200")
	}
	library("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "libibverbs.so.1")
	library("usr/lib/x86_64-linux-gnu/libibverbs/libother-rdmav34.so", "libnot-there.so.9")
	elfFile{interp: "/lib64/" + loader, needed: []string{"libibverbs.so.1"}}.write(t, i.root(), "usr/bin/ibv_devinfo")
	return i
}

type packed struct {
	mode cpio.FileMode
	data []byte
}

// unpack reads an initramfs. It checks that every entry occurs once, after its directory.
func unpack(t *testing.T, data []byte) map[string]packed {
	t.Helper()
	all := map[string]packed{".": {mode: cpio.TypeDir}}
	for r := cpio.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		if h.Mode&^cpio.ModePerm == cpio.TypeSymlink && h.Linkname != "" {
			content = []byte(h.Linkname)
		}
		assert.NotContains(t, all, h.Name, "is duplicate")
		assert.Equal(t, cpio.FileMode(cpio.TypeDir), all[path.Dir(h.Name)].mode&^cpio.ModePerm, "directory of %s",
			h.Name)
		all[h.Name] = packed{h.Mode, content}
	}
}

func TestInitramfs(t *testing.T) {
	i := madeImage(t)
	dir := t.TempDir()
	put(t, dir, "testdata/below/given", []byte("given"))
	program := elfFile{interp: "/lib64/" + loader, needed: []string{"libc.so.6"}}.write(t, dir, "verbs.test")
	guest := &Guest{Image: i,
		Programs: []Program{{Name: "verbs", Host: program, Testdata: dir + "/testdata", Args: []string{"-x"},
			Timeout: time.Minute}}}
	text, _, err := i.initramfs(put(t, dir, "init", []byte("init's")), guest.config(), guest.Programs,
		[]File{{Name: "/etc/extra", Host: put(t, dir, "extra", []byte("more"))}})
	require.NoError(t, err)
	all := unpack(t, text)
	for name, want := range map[string]string{
		"init": "init's", "modules/ib_core.ko": "ib_core", "modules/rdma_rxe.ko": "rdma_rxe", "etc/extra": "more",
		"etc/libibverbs.d/rxe.driver": "driver rxe\n", "programs/0/testdata/below/given": "given",
		"lib": "usr/lib", "lib64": "usr/lib64", "bin": "usr/bin",
	} {
		assert.Equal(t, want, string(all[name].data), name)
	}
	for _, name := range []string{"init", "programs/0/verbs.test", "usr/bin/ibv_devinfo", "usr/lib64/" + loader} {
		assert.Equal(t, cpio.FileMode(cpio.TypeReg|0o755), all[name].mode, name)
	}
	assert.Equal(t, cpio.FileMode(cpio.TypeSymlink), all["lib64"].mode&^cpio.ModePerm)
	for _, name := range append([]string{"libc.so.6", "libnl-3.so.200", "libibverbs/librxe-rdmav34.so"}, dlopened...) {
		assert.Contains(t, all, libraryDir+"/"+name)
	}
	assert.NotContains(t, all, libraryDir+"/libibverbs/libother-rdmav34.so", "another device's provider")
	var config wire.Config
	require.NoError(t, json.Unmarshal(all[wire.ConfigFile[1:]].data, &config))
	assert.Equal(t, wire.Config{Kernel: "6.1", Driver: "rxe", Modules: i.Modules, Programs: []wire.Program{
		{Name: "verbs", Path: "/programs/0/verbs.test", Dir: "/programs/0", Args: []string{"-x"}, Timeout: time.Minute},
	}}, config)
}

func TestInitramfsLacksLibraries(t *testing.T) {
	i := madeImage(t)
	dir := t.TempDir()
	make := func(e elfFile) error {
		program := e.write(t, dir, "program")
		guest := &Guest{Image: i, Programs: []Program{{Name: "p", Host: program}}}
		_, _, err := i.initramfs(program, guest.config(), guest.Programs, nil)
		return err
	}
	assert.EqualError(t, make(elfFile{needed: []string{"libpmem.so.1", "libc.so.6"}}), "the guest's packages lack "+
		"shared libraries: libpmem.so.1 (needed by program)")
	assert.ErrorContains(t, make(elfFile{machine: elf.EM_AARCH64}), "guests are amd64")
	assert.NoError(t, make(elfFile{}))
	// a library that is given as a file need not be in the guest's packages, but its dependencies must be
	program := elfFile{needed: []string{"libmnl.so.0"}}.write(t, dir, "program")
	for needed, want := range map[string]string{"libc.so.6": "", "libz.so.1": "libz.so.1 (needed by libmnl.so.0)"} {
		library := elfFile{needed: []string{needed}}.write(t, dir, "libmnl.so.0")
		guest := &Guest{Image: i, Programs: []Program{{Name: "p", Host: program}}}
		_, _, err := i.initramfs(program, guest.config(), guest.Programs,
			[]File{{Name: "usr/lib/x86_64-linux-gnu/libmnl.so.0", Host: library}})
		if want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}
