// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// archiveWriter writes the initramfs and creates parent directories as needed. sum is the digest of everything written.
// For a file with a source digest, that digest replaces the content.
type archiveWriter struct {
	w       *cpio.Writer
	made    map[string]bool
	sum     hash.Hash
	sources map[string]string // file on the host → source digest
	err     error
}

func newArchive(to io.Writer) *archiveWriter {
	return &archiveWriter{w: cpio.NewWriter(to), made: map[string]bool{}, sum: sha256.New(),
		sources: map[string]string{}}
}

func (a *archiveWriter) entry(name string, mode cpio.FileMode, data []byte) {
	a.entryOf(name, mode, data, data)
}

// entryOf is like entry, but adds counts instead of data to the digest.
func (a *archiveWriter) entryOf(name string, mode cpio.FileMode, data, counts []byte) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if a.err != nil || name == "" || a.made[name] {
		return
	}
	a.entry(path.Dir(name), cpio.TypeDir|0o755, nil)
	a.made[name] = true
	fmt.Fprintf(a.sum, "%s %o %d\n%s", name, mode, len(counts), counts)
	if a.err = a.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data)), Links: 1}); a.err == nil {
		_, a.err = a.w.Write(data)
	}
}

func (a *archiveWriter) file(name string, mode fs.FileMode, data []byte) {
	a.entry(name, cpio.TypeReg|cpio.FileMode(mode.Perm()), data)
}

func (a *archiveWriter) link(name, target string) {
	a.entry(name, cpio.TypeSymlink|0o777, []byte(target))
}

func (a *archiveWriter) copy(name, from string) {
	info, err := os.Stat(from)
	if err == nil && a.err == nil {
		var data []byte
		data, err = os.ReadFile(from)
		counts := data
		if source := a.sources[from]; source != "" {
			counts = []byte(source)
		}
		a.entryOf(name, cpio.TypeReg|cpio.FileMode(info.Mode().Perm()), data, counts)
	}
	if a.err == nil {
		a.err = err
	}
}

// tree copies all regular files below a directory.
func (a *archiveWriter) tree(name, from string) {
	err := filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		below, err := filepath.Rel(from, file)
		a.copy(path.Join(name, filepath.ToSlash(below)), file)
		return err
	})
	if a.err == nil {
		a.err = err
	}
}

// File is an additional file of a guest.
type File struct {
	Name string // absolute path in the guest
	Host string // path on the host

	Source string // as in Program
	Whole  bool   // its libraries are among the files, in a separate root
}

// initramfs returns the initramfs of a guest and its digest. It contains init, its configuration, modules, programs,
// and their libraries.
func (i *Image) initramfs(initProgram string, config wire.Config, programs []Program, files []File) (archive []byte,
	digest string, err error) {
	var out bytes.Buffer
	a := newArchive(&out)
	for _, p := range programs {
		a.sources[p.Host] = p.Source
	}
	for _, f := range files {
		a.sources[f.Host] = f.Source
	}
	// where /lib and /usr/lib are the same directory, either name works
	a.entry("usr/lib64", cpio.TypeDir|0o755, nil)
	a.link("lib", "usr/lib")
	a.link("lib64", "usr/lib64")
	a.link("bin", "usr/bin")
	a.entry("dev", cpio.TypeDir|0o755, nil)
	a.copy("init", initProgram)
	text, err := json.Marshal(config)
	if err != nil {
		return nil, "", err
	}
	a.file(wire.ConfigFile, 0o644, text)
	for _, name := range config.Modules {
		a.copy(path.Join(wire.ModuleDir, name+".ko"), i.moduleFile(name))
	}
	var executables []string
	for n, p := range programs {
		a.copy(config.Programs[n].Path, p.Host)
		executables = append(executables, p.Host)
		if p.Testdata != "" {
			a.tree(path.Join(config.Programs[n].Dir, "testdata"), p.Testdata)
		}
	}
	for _, f := range files {
		a.copy(f.Name, f.Host)
		if !f.Whole && isELF(f.Host) {
			executables = append(executables, f.Host)
		}
	}
	if err := i.libraries(a, executables); err != nil {
		return nil, "", err
	}
	if a.err != nil {
		return nil, "", a.err
	}
	if err := a.w.Close(); err != nil {
		return nil, "", err
	}
	return out.Bytes(), hex.EncodeToString(a.sum.Sum(nil)), nil
}

// tools lists the rdma-core programs in /usr/bin of a guest.
var tools = []string{"ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong",
	"ibv_xsrq_pingpong", "rping", "ucmatose", "udaddy", "mckey", "rdma_client", "rdma_server", "rdma_xclient",
	"rdma_xserver", "rstream", "riostream", "rcopy", "cmtime"}

// libraries adds the provider, rdma-core's programs, and the shared libraries that these and executables need.
func (i *Image) libraries(a *archiveWriter, executables []string) error {
	driver := i.driver()
	providers, err := filepath.Glob(filepath.Join(i.root(), libraryDir, "libibverbs", "lib"+driver+"-*.so"))
	if err != nil {
		return err
	}
	if len(providers) != 1 {
		return fmt.Errorf("%s has %d providers for %s instead of one", i.root(), len(providers), driver)
	}
	a.copy(path.Join(libraryDir, "libibverbs", filepath.Base(providers[0])), providers[0])
	a.file("etc/libibverbs.d/"+driver+".driver", 0o644, []byte("driver "+driver+"\n"))
	executables = append(executables, providers[0])
	for _, name := range tools {
		file := filepath.Join(i.root(), "usr", "bin", name)
		if _, err := os.Stat(file); err == nil {
			a.copy(path.Join("usr/bin", name), file)
			executables = append(executables, file)
		}
	}
	libraries := slices.Clone(dlopened)
	for _, name := range dlopenedIfPresent {
		if _, err := resolve(i.root(), path.Join(libraryDir, name)); err == nil {
			libraries = append(libraries, name)
		}
	}
	found, err := closure(i.root(), executables, libraries)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		dir := libraryDir
		if strings.HasPrefix(name, "ld-linux") {
			dir = "usr/lib64"
		}
		a.copy(path.Join(dir, name), found[name])
	}
	return nil
}

func isELF(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [4]byte
	_, err = f.Read(head[:])
	return err == nil && string(head[:]) == "\x7fELF"
}
