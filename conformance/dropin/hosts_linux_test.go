// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHosts: threads with small stacks, signals, fork, and closing the library leave the program alive and right.
func TestHosts(t *testing.T) {
	dir := built(t)
	host := compile(t, "host", filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"), "-pthread")
	for _, name := range []string{"plain", "threads", "handlers", "interrupts", "forks", "opening"} {
		t.Run(name, func(t *testing.T) {
			out, err := with(t, dir, host, name).CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), name+": fine")
		})
	}
	t.Run("urgent", func(t *testing.T) {
		cmd := with(t, dir, host, "urgent")
		cmd.Env = append(cmd.Env, "GOGC=1") // collections stop threads
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "urgent: fine")
	})
	t.Run("close", func(t *testing.T) {
		out, err := with(t, dir, compile(t, "close", "-ldl")).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	t.Run("ulimit", func(t *testing.T) {
		out, err := with(t, dir, "bash", "-c", "ulimit -v 3000000; "+host+" plain").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
}

// TestCancel: pthread_cancel ends threads that wait.
func TestCancel(t *testing.T) {
	dir := built(t)
	cancel := compile(t, "cancel", filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"), "-pthread")
	for _, name := range []string{"events", "gone", "states", "synchronous", "sockets"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := freeAddress(t)
			cmd := with(t, dir, cancel, address, name)
			cmd.Env = append(cmd.Env, "GOVERBS_DEVICE=soft@"+address)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), name+": fine")
		})
	}
}

// TestARM64 runs programs for arm64 in an emulator.
func TestARM64(t *testing.T) {
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("it compiles Go's library once more: make test-all runs it")
	}
	dir := t.TempDir()
	build := exec.Command("../../dropin/build", dir)
	build.Env = append(os.Environ(), "CC=aarch64-linux-gnu-gcc", "GOARCH=arm64")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	headers := t.TempDir() // the emulated machine's own directories have none
	for _, of := range []string{"infiniband", "rdma"} {
		require.NoError(t, os.Symlink("/usr/include/"+of, filepath.Join(headers, of)))
	}
	host := filepath.Join(dir, "host")
	out, err = exec.Command("aarch64-linux-gnu-gcc", "-I"+headers, "-O1", "-o", host, "testdata/host.c",
		filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"), "-pthread").CombinedOutput()
	require.NoError(t, err, "%s", out)
	// the emulator itself does not survive fork
	for _, name := range []string{"plain", "threads", "handlers", "urgent", "interrupts"} {
		cmd := exec.Command("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", "LD_LIBRARY_PATH="+dir, host, name)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), name+": fine")
	}
}
