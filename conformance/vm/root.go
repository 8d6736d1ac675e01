// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Root is a directory with unpacked packages of a Debian suite: programs with the C library and the libibverbs for
// which they were built, to be run on the kernel of another suite.
type Root struct {
	Suite string
	Dir   string // directory on the host
}

// rootPackages are in every root: the dependencies of libibverbs programs and of perftest.
var rootPackages = []string{"libc6", "libgcc-s1", "libibverbs1", "ibverbs-providers", "librdmacm1", "libnl-3-200",
	"libnl-route-3-200", "libibumad3", "libpci3", "zlib1g", "libudev1", "libcap2"}

// PrepareRoot returns a root with packages of a suite, from the cache or from the Debian archive. It installs nothing.
func PrepareRoot(ctx context.Context, suite string, packages []string, cacheDir string, log Logf) (*Root, error) {
	all := append(slices.Clone(rootPackages), packages...)
	recipe := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(all, " "))))[:8]
	r := &Root{Suite: suite, Dir: filepath.Join(cacheDir, "root-"+suite+"-"+recipe)}
	if isDir(r.Dir) {
		return r, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(cacheDir, "making-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	a, err := openArchive(ctx, filepath.Join(work, "apt"), log, suite)
	if err != nil {
		return nil, err
	}
	if err := a.Use(ctx, suite); err != nil {
		return nil, err
	}
	names, err := a.currentNames(ctx, all)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(work, "root")
	if err := a.unpack(ctx, dir, names...); err != nil {
		return nil, err
	}
	for _, unread := range []string{"usr/share", libraryDir + "/gconv"} {
		if err := os.RemoveAll(filepath.Join(dir, unread)); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(dir, r.Dir); err != nil && !isDir(r.Dir) { // a concurrent process may have been first
		return nil, err
	}
	return r, nil
}

// Programs returns the root's programs as a map from name to path on the host.
func (r *Root) Programs() (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(r.Dir, "usr", "bin", "*"))
	if err != nil {
		return nil, err
	}
	// programs of packages from before /bin and /usr/bin were merged
	older, err := filepath.Glob(filepath.Join(r.Dir, "bin", "*"))
	if err != nil {
		return nil, err
	}
	administrators, err := filepath.Glob(filepath.Join(r.Dir, "usr", "sbin", "*"))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, file := range slices.Concat(files, older, administrators) {
		if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() && isELF(file) {
			all[filepath.Base(file)] = file
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no programs", r.Dir)
	}
	return all, nil
}

// Files returns the files that a guest needs to run the root's programs on Soft-RoCE, with dir as their root.
func (r *Root) Files(dir string) ([]File, error) {
	programs, err := r.Programs()
	if err != nil {
		return nil, err
	}
	providers, err := filepath.Glob(filepath.Join(r.Dir, libraryDir, "libibverbs", "librxe-*.so"))
	if err != nil {
		return nil, err
	}
	if len(providers) != 1 {
		return nil, fmt.Errorf("%s has %d providers for rxe instead of one", r.Dir, len(providers))
	}
	config := filepath.Join(r.Dir, "etc", "libibverbs.d", "rxe.driver")
	if _, err := os.Stat(config); err != nil {
		return nil, err
	}
	in := map[string]string{"etc/libibverbs.d/rxe.driver": config}
	in[path.Join(libraryDir, "libibverbs", filepath.Base(providers[0]))] = providers[0]
	for name, file := range programs {
		in[path.Join("usr/bin", name)] = file
	}
	if file := r.preload(); file != "" {
		in[preload] = file
	}
	libraries, err := r.Libraries()
	if err != nil {
		return nil, err
	}
	for name, file := range libraries {
		if strings.HasPrefix(name, "ld-linux") {
			in[path.Join("lib64", name)] = file
			continue
		}
		in[path.Join(libraryDir, name)] = file
	}
	var all []File
	for _, name := range slices.Sorted(maps.Keys(in)) {
		all = append(all, File{Name: path.Join(dir, name), Host: in[name], Whole: true})
	}
	return all, nil
}

// Libraries returns the libraries, including the loader, that the root's programs and its rxe provider need, as a map
// from name to path.
func (r *Root) Libraries() (map[string]string, error) {
	programs, err := r.Programs()
	if err != nil {
		return nil, err
	}
	files := slices.Collect(maps.Values(programs))
	if file := r.preload(); file != "" {
		files = append(files, file)
	}
	return closure(r.Dir, files, []string{"libgcc_s.so.1"})
}

// preload is the library that makes TCP programs use rsockets.
const preload = libraryDir + "/rsocket/librspreload.so"

// preload returns the library's path on the host, or "".
func (r *Root) preload() string {
	file, err := resolve(r.Dir, preload)
	if err != nil {
		return ""
	}
	return file
}

// parseRoot parses SUITE:PACKAGE,PACKAGE=DIRECTORY.
func parseRoot(s string) (suite string, packages []string, dir string, err error) {
	of, dir, _ := strings.Cut(s, "=")
	suite, names, _ := strings.Cut(of, ":")
	if suite == "" || names == "" || !path.IsAbs(dir) {
		return "", nil, "", errors.New("a root is SUITE:PACKAGE,PACKAGE=DIRECTORY, with an absolute path in the guest")
	}
	return suite, strings.Split(names, ","), dir, nil
}

// RootFiles prepares roots described as SUITE:PACKAGE,PACKAGE=DIRECTORY and returns their files.
func RootFiles(ctx context.Context, roots []string, cacheDir string, log Logf) (all []File, err error) {
	for _, text := range roots {
		suite, packages, dir, err := parseRoot(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		r, err := PrepareRoot(ctx, suite, packages, cacheDir, log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		files, err := r.Files(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}
