// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On arm64, glibc's mutex is larger than musl's, and some objects embed one.
const armProgram = `package main

import (
	"fmt"
	"os"

	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

func main() {
	if len(os.Args) > 1 {
		runtime.GNU = func() bool { return false } // as in a process with musl
	}
	_, err := libibverbs.GetDeviceList(nil)
	fmt.Println(err)
}
`

// TestOtherCLibrary checks that on arm64 a process with a C library other than glibc gets an error before it can
// misread an object. Any library can replace libibverbs here, as it is rejected before symbol lookup.
func TestOtherCLibrary(t *testing.T) {
	const root64 = "/usr/aarch64-linux-gnu"
	var run []string
	if out, err := exec.Command("go", "env", "GOHOSTARCH").Output(); err != nil || string(out) != "arm64\n" {
		qemu, err := exec.LookPath("qemu-aarch64")
		if err != nil {
			t.Skip("it needs an arm64 machine, or qemu-aarch64 (package qemu-user)")
		}
		if _, err := os.Stat(filepath.Join(root64, "lib", "libc.so.6")); err != nil {
			t.Skip("it needs an arm64 machine, or the GNU C library for arm64 (package libc6-arm64-cross)")
		}
		run = []string{qemu, "-L", root64}
	}
	dir := t.TempDir()
	main, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(main, []byte(armProgram), 0o644))
	build := exec.Command("go", "build", "-o", program, main)
	build.Dir = root
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	open := func(args ...string) string {
		args = append(append(run[:len(run):len(run)], program), args...)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "GOVERBS_LIBIBVERBS=libm.so.6")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	assert.Equal(t, "ibv_get_device_list: libm.so.6 does not export it\n", open())
	assert.Equal(t,
		"ibv_get_device_list: libm.so.6 cannot be used: libibverbs.so.1: pthread_mutex_t has 48 bytes in the "+
			"layouts (GNU C library) but 40 in this process\n", open("musl"))
}
