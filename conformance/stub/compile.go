// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

//go:embed c
var source embed.FS

// flags are for careful compilation. Unset stack memory in C is zeroed, as in Go: padding, and members that an opcode
// does not use.
var flags = []string{
	"-std=gnu11", "-O2", "-fPIC", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-Wno-address-of-packed-member",
	"-Wno-array-parameter", "-ftrivial-auto-var-init=zero",
}

// compile returns the path of the shared library. It is cached in the user's cache directory under a name derived from
// all its inputs, so that test binaries share it.
func compile() (path, release string, names []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cc, err := verbsabi.FindCompiler(goruntime.GOARCH)
	if err != nil {
		return "", "", nil, fmt.Errorf("the stub provider is written in C: %w (make deps installs a compiler)", err)
	}
	include, r, err := findHeaders(ctx, cc)
	if err != nil {
		return "", "", nil, err
	}
	texts, names, err := files(r)
	if err != nil {
		return "", "", nil, err
	}
	entries, err := source.ReadDir("c")
	if err != nil {
		return "", "", nil, err
	}
	for _, e := range entries {
		b, err := source.ReadFile("c/" + e.Name())
		if err != nil {
			return "", "", nil, err
		}
		texts[e.Name()] = string(b)
	}
	version, err := exec.CommandContext(ctx, cc[0], append(slices.Clone(cc[1:]), "--version")...).Output()
	if err != nil {
		return "", "", nil, fmt.Errorf("%s --version: %w", cc, err)
	}
	sum := sha256.New()
	fmt.Fprintln(sum, cc, string(version), include, r.Name, flags)
	for _, name := range sorted(texts) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(texts[name]), texts[name])
	}
	for _, h := range r.Headers { // changed inline code needs another stub
		if b, err := os.ReadFile(filepath.Join(include, h.Name)); err == nil && !h.Support {
			fmt.Fprintf(sum, "%s %d\n%s", h.Name, len(b), b)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "goverbs-stub")
	path = filepath.Join(cache, fmt.Sprintf("%x.so", sum.Sum(nil)[:12]))
	if _, err := os.Stat(path); err == nil {
		return path, r.Name, names, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", "", nil, err
	}
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", "", nil, err
	}
	defer os.RemoveAll(dir)
	if err := run(ctx, cc, dir, include, texts); err != nil {
		return "", "", nil, err
	}
	// appears atomically, even if another process builds it concurrently
	return path, r.Name, names, os.Rename(filepath.Join(dir, "stub.so"), path)
}

// run compiles the files in parallel and links them.
func run(ctx context.Context, cc verbsabi.Compiler, dir, include string, texts map[string]string) error {
	gcc := func(args ...string) error {
		cmd := exec.CommandContext(ctx, cc[0], append(slices.Clone(cc[1:]), args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the stub provider: %s: %w\n%s", cc, err, out)
		}
		return nil
	}
	var objects []string
	for _, name := range sorted(texts) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(texts[name]), 0o644); err != nil {
			return err
		}
		if strings.HasSuffix(name, ".c") {
			objects = append(objects, strings.TrimSuffix(name, ".c")+".o")
		}
	}
	errs := make([]error, len(objects))
	var wait sync.WaitGroup
	for i, o := range objects {
		wait.Go(func() {
			errs[i] = gcc(append(slices.Clone(flags), "-isystem", include, "-c", "-o", o,
				strings.TrimSuffix(o, ".o")+".c")...)
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	// -Bsymbolic: C calls the stub's ibv_reg_mr even if libibverbs is loaded
	return gcc(append([]string{"-shared", "-Wl,-Bsymbolic", "-o", "stub.so"}, objects...)...)
}

// EnvHeaders is the environment variable with the include directory for compiling the stub. With an older release's
// headers, it is a provider of that release.
const EnvHeaders = "GOVERBS_STUB_HEADERS"

// rdmaCore is the project of the emulated provider.
var rdmaCore = project.Named("rdma-core")

// packages returns the packages generated from its headers.
func packages() []rules.Package {
	return slices.DeleteFunc(slices.Clone(rules.Packages),
		func(p rules.Package) bool { return p.Project() != rdmaCore.Name })
}

// findHeaders returns the include directory and its model: of EnvHeaders, of the primary release if its headers are in
// headers/cache, or of the installed headers.
func findHeaders(ctx context.Context, cc verbsabi.Compiler) (include string, r *model.Release, err error) {
	if include = os.Getenv(EnvHeaders); include != "" {
		r, err = verbsabi.ReadHeaders(include, goruntime.GOARCH, packages())
		return include, r, err
	}
	if root, err := moduleRoot(); err == nil {
		include = filepath.Join(root, "headers", "cache", headers.Primary("rdma-core"), "include")
		if _, err := os.Stat(filepath.Join(include, "infiniband", "verbs.h")); err == nil {
			data, err := headers.Model(headers.Primary("rdma-core"))
			if err != nil {
				return "", nil, err
			}
			r, err = model.Decode(headers.Primary("rdma-core"), data)
			return include, r, err
		}
	}
	if include, err = verbsabi.FindHeaders(ctx, cc, rdmaCore); err != nil {
		return "", nil,
			fmt.Errorf("the stub provider needs rdma-core's headers: %w (make headers downloads those of %s)",
				err, headers.Primary("rdma-core"))
	}
	r, err = verbsabi.ReadHeaders(include, goruntime.GOARCH, packages())
	if err != nil {
		return "", nil, err
	}
	if stated := verbsabi.StatedRelease(include, rdmaCore); stated != "" {
		r.Name = stated
	}
	return include, r, nil
}

// moduleRoot returns the directory of go.mod above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", os.ErrNotExist
		}
	}
	return "", err
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
