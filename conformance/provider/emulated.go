// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed c
var source embed.FS

var flags = []string{"-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-parentheses",
	"-Wno-address-of-packed-member"}

// Emulated is an emulated kernel with the libraries that run over it.
type Emulated struct {
	libraries    *Libraries
	dir, library string
	adapter      Adapter
}

// Build compiles the emulated kernel into dir and writes the sysfs files there. The kernel headers are those of the C
// library's package, the adapters' headers those of the release.
func Build(ctx context.Context, libraries *Libraries, dir string) (*Emulated, error) {
	e := &Emulated{libraries: libraries, dir: dir, library: filepath.Join(dir, "emulated.so"), adapter: MLX5}
	sources := filepath.Join(dir, "c")
	if err := os.CopyFS(dir, source); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(sources, "*.c"))
	if err != nil {
		return nil, err
	}
	if err := e.Compile(ctx, e.library, append([]string{"-shared"}, files...)...); err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range adapters {
		errs = append(errs, a.writeSysfs(e.sysfs(a)))
	}
	return e, errors.Join(errs...)
}

func (e *Emulated) sysfs(a Adapter) string { return filepath.Join(e.dir, "sys", a.Name) }

// As returns the same kernel with a different adapter.
func (e *Emulated) As(a Adapter) *Emulated {
	as := *e
	as.adapter = a
	return &as
}

// Compile runs the C compiler with the headers of the release.
func (e *Emulated) Compile(ctx context.Context, out string, args ...string) error {
	args = append(append(append([]string{}, flags...), "-isystem", e.libraries.include(), "-o", out), args...)
	cc := e.libraries.compiler()
	if text, err := exec.CommandContext(ctx, cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, text)
	}
	return nil
}

// Libverbs returns the path of libibverbs, for linking.
func (e *Emulated) Libverbs() string { return filepath.Join(e.libraries.dir(), "libibverbs.so.1") }

// Command returns the command of a program for the libraries' architecture. The program sees only the emulated device
// and the libraries of the release.
func (e *Emulated) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	words := e.words(program, args...)
	if e.libraries.foreign() {
		words = append([]string{machines[e.libraries.Arch].emulator}, words...)
	}
	return e.command(ctx, words[0], words[1:]...)
}

// words returns the command line that runs a program with the loader of the release.
func (e *Emulated) words(program string, args ...string) []string {
	return append([]string{e.libraries.loader(), "--library-path", e.libraries.path(), "--preload", e.library, program},
		args...)
}

// command returns the command of a program of this machine, with the environment for the programs that it starts with
// the loader.
func (e *Emulated) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "SYSFS_PATH="+e.sysfs(e.adapter), "GOVERBS_EMULATED="+e.adapter.Name,
		"RDMAV_DRIVERS="+filepath.Join(e.libraries.dir(), "libibverbs", "lib"+e.adapter.Name))
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
