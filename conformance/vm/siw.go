// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Drivers are the RDMA drivers of guests.
const (
	RXE = "rxe" // Soft-RoCE
	SIW = "siw" // Soft-iWARP
)

// siwTree is the module's directory in the kernel's source.
const siwTree = "drivers/infiniband/sw/siw"

// buildTools are the commands that build it, besides those that download it.
var buildTools = []string{"gcc", "make", "strip", "tar", "xz"}

// ErrNoSIW reports that Soft-iWARP cannot be built on this machine.
var ErrNoSIW = errors.New("no module siw for the guest")

// WithSIW returns the image with Soft-iWARP, from the cache. Otherwise it downloads the kernel's source, headers and
// build tools, 90 to 160 MB of which 300 kB are kept, and builds the module with this machine's gcc and make, because
// Debian's kernels do not include it. Errors are [ErrNoSIW].
func (i *Image) WithSIW(ctx context.Context, cacheDir string, log Logf) (*Image, error) {
	file := filepath.Join(cacheDir, "siw-"+i.Version+".ko")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := i.buildSIW(ctx, cacheDir, file, log); err != nil {
			return nil, fmt.Errorf("kernel %s: %w: %w", i.Kernel, ErrNoSIW, err)
		}
	} else if err != nil {
		return nil, err
	}
	module, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	hard, _, err := needs(module)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, name := range hard {
		if name = moduleName(name); !slices.Contains(i.Modules, name) {
			return nil, fmt.Errorf("kernel %s: %w: it needs module %s, which the image lacks", i.Kernel, ErrNoSIW, name)
		}
	}
	with := *i
	with.siw = file
	with.Modules = append(slices.Clip(i.Modules), SIW)
	return &with, nil
}

// buildSIW builds the module in a temporary directory of the cache, and moves it to file.
func (i *Image) buildSIW(ctx context.Context, cacheDir, file string, log Logf) error {
	for _, tool := range buildTools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("no command %s; install it (Debian: apt-get install binutils gcc make tar xz-utils)", tool)
		}
	}
	release, err := i.release()
	if err != nil {
		return err
	}
	k, err := find(i.Kernel)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(cacheDir, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	a, err := openArchive(ctx, filepath.Join(work, "apt"), log, append([]string{k.Library}, k.Suites...)...)
	if err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	if err := i.downloadSource(ctx, a, k, release, root); err != nil {
		return err
	}
	module := filepath.Join(work, "siw")
	if err := extractSIW(ctx, root, module); err != nil {
		return err
	}
	log.printf("building siw for Linux %s", release)
	built, err := i.makeSIW(ctx, root, module, release)
	if err != nil {
		return err
	}
	// A concurrent process may have been first. Its module is the same.
	return os.Rename(built, file)
}

// release returns the kernel's release, "6.1.0-50-amd64", which the modules record.
func (i *Image) release() (string, error) {
	data, err := os.ReadFile(i.moduleFile("ib_core"))
	if err != nil {
		return "", err
	}
	magic, err := vermagic(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", i.moduleFile("ib_core"), err)
	}
	release, _, _ := strings.Cut(magic, " ")
	return release, nil
}

// vermagic returns the version string of the kernel that a module is for.
func vermagic(module []byte) (string, error) {
	magic, err := modinfo(module, "vermagic")
	if err == nil && len(magic) != 1 {
		err = fmt.Errorf("%d entries vermagic in section .modinfo instead of one", len(magic))
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(magic[0]), nil
}

// downloadSource unpacks the kernel's source, in the image's version, its headers and its build tools.
func (i *Image) downloadSource(ctx context.Context, a *archive, k Kernel, release, root string) error {
	var errs []error
	for _, suite := range k.Suites {
		if err := a.Use(ctx, suite); err != nil {
			errs = append(errs, fmt.Errorf("suite %s: %w", suite, err))
			continue
		}
		packages, err := i.sourcePackages(ctx, a, release)
		if err != nil {
			errs = append(errs, fmt.Errorf("suite %s: %w", suite, err))
			continue
		}
		a.log.printf("downloading %s", strings.Join(packages, " "))
		for _, pkg := range packages {
			if err := a.UnpackVersion(ctx, root, pkg, i.Version); err != nil {
				return err
			}
		}
		if err := a.Use(ctx, k.Library); err != nil {
			return err
		}
		libraries, err := a.currentNames(ctx, []string{"libelf1", "zlib1g", "libzstd1"})
		if err != nil {
			return err
		}
		return a.unpack(ctx, filepath.Join(root, "libraries"), libraries...) // of objtool
	}
	return fmt.Errorf("%w; if the archive has a newer kernel, remove %s to use that one", errors.Join(errs...), i.dir)
}

// sourcePackages names the packages with the source and the headers. It fails unless the suite has all of them in the
// image's version.
func (i *Image) sourcePackages(ctx context.Context, a *archive, release string) ([]string, error) {
	headers := "linux-headers-" + release
	packages, err := a.Depends(ctx, headers, "linux-headers-", "linux-kbuild-")
	if err != nil {
		return nil, fmt.Errorf("no package %s", headers)
	}
	series := strings.Join(strings.SplitN(i.Version, ".", 3)[:2], ".")
	packages = append(packages, headers, "linux-source-"+series)
	for _, pkg := range packages {
		versions, err := a.Versions(ctx, pkg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(versions, i.Version) {
			return nil, fmt.Errorf("no package %s %s, only [%s]", pkg, i.Version, strings.Join(versions, " "))
		}
	}
	return packages, nil
}

// extractSIW extracts the module's directory from the source, which is a compressed archive in its package.
func extractSIW(ctx context.Context, root, to string) error {
	archives := glob(root, "usr/src/linux-source-*.tar.xz")
	if len(archives) != 1 {
		return fmt.Errorf("the source package has %d archives instead of one", len(archives))
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	top := strings.TrimSuffix(filepath.Base(archives[0]), ".tar.xz")
	return command(exec.CommandContext(ctx, "tar", "-xJf", archives[0], "--strip-components=5", "-C", to,
		top+"/"+siwTree))
}

// makeSIW builds the module and returns its file.
func (i *Image) makeSIW(ctx context.Context, root, module, release string) (string, error) {
	headers := filepath.Join(root, "usr", "src", "linux-headers-"+release)
	// The Makefile includes the common one by its installed path.
	makefile := filepath.Join(headers, "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return "", err
	}
	text = bytes.ReplaceAll(text, []byte("/usr/src/"), []byte(filepath.Join(root, "usr", "src")+"/"))
	if err := os.WriteFile(makefile, text, 0o644); err != nil {
		return "", err
	}
	// Without it there is no warning that the tool for debugging information is missing.
	if err := os.RemoveAll(filepath.Join(headers, "vmlinux")); err != nil {
		return "", err
	}
	if err := i.wrapTools(root); err != nil {
		return "", err
	}
	args := []string{"-C", headers, "M=" + module, "CONFIG_RDMA_SIW=m", "CC=gcc"}
	if exec.CommandContext(ctx, "gcc", "-fmin-function-alignment=16", "-E", "-x", "c", os.DevNull,
		"-o", os.DevNull).Run() != nil { // a kernel built with a newer compiler has this option in its configuration
		args = append(args, "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=")
	}
	if err := command(exec.CommandContext(ctx, "make", append(args, "modules")...)); err != nil {
		return "", err
	}
	file := filepath.Join(module, "siw.ko")
	if err := command(exec.CommandContext(ctx, "strip", "--strip-debug", file)); err != nil {
		return "", err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	magic, err := vermagic(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if got, _, _ := strings.Cut(magic, " "); got != release {
		return "", fmt.Errorf("the module was built for Linux %s instead of %s", got, release)
	}
	return file, nil
}

// wrapTools makes the programs of the build run with the C library of the guest, because this machine's may be older.
// Some consist of a program for each target, NAME.real-TARGET, which NAME finds by its own name: NAME stays as it is.
func (i *Image) wrapTools(root string) error {
	var loader string
	var path []string
	for _, dir := range searched {
		path = append(path, filepath.Join(i.root(), dir), filepath.Join(root, "libraries", dir))
		if file, err := resolve(i.root(), filepath.Join(dir, "ld-linux-x86-64.so.2")); err == nil {
			loader = file
		}
	}
	if loader == "" {
		return fmt.Errorf("%s has no ld-linux-x86-64.so.2", i.root())
	}
	const tools = "usr/lib/linux-kbuild-*/"
	for _, file := range glob(root, tools+"scripts/basic/fixdep", tools+"scripts/mod/modpost",
		tools+"scripts/mod/modpost.real-lsb-64", tools+"tools/objtool/objtool", tools+"tools/objtool/objtool.real-x86") {
		if targets, _ := filepath.Glob(file + ".real-*"); len(targets) > 0 {
			continue
		}
		program := file + ".program"
		if err := os.Rename(file, program); err != nil {
			return err
		}
		script := fmt.Sprintf("#!/bin/sh\nexec '%s' --library-path '%s' '%s' \"$@\"\n", loader, strings.Join(path, ":"),
			program)
		if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// command runs a command. The end of its output is part of the error.
func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, keep("", string(bytes.TrimSpace(out)), 2<<10))
	}
	return nil
}
