// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHosts checks that small thread stacks, signals, fork and closing the library do not break the program.
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

// TestCancel checks that pthread_cancel ends waiting threads.
func TestCancel(t *testing.T) {
	dir := built(t)
	cancel := compile(t, "cancel", filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"),
		"-pthread")
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

// TestLimits checks that a program that runs out of descriptors, memory or file size gets an errno and continues.
func TestLimits(t *testing.T) {
	dir := built(t)
	limits := compile(t, "limits", filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"))
	for _, name := range []string{"descriptors", "addresses", "data", "files", "later", "few"} {
		t.Run(name, func(t *testing.T) {
			out, err := with(t, dir, limits, name).CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.LessOrEqual(t, bytes.Count(out, []byte("goverbs:")), 1, "%s", out)
		})
	}
	t.Run("few from the start", func(t *testing.T) {
		out, err := with(t, dir, "bash", "-c", "ulimit -n 34; exec "+limits+" open").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
}

// TestOrphans checks that a child of fork does not keep its parent's claim on a shared address, even if it cannot list
// its descriptors because /proc is not mounted or no descriptor is left.
func TestOrphans(t *testing.T) {
	dir := built(t)
	limits := compile(t, "limits", filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"))
	for name, words := range map[string][]string{
		"plain":           {limits, "orphan"},
		"full":            {limits, "full"},
		"without a /proc": {"unshare", "-m", "sh", "-c", "umount -l /proc && exec " + limits + " orphan"},
	} {
		t.Run(name, func(t *testing.T) {
			if words[0] == "unshare" && os.Geteuid() != 0 {
				t.Skip("umount is for root")
			}
			address := freeAddress(t)
			parent := with(t, dir, words[0], words[1:]...)
			parent.Env = append(parent.Env, "GOVERBS_DEVICE=soft@"+address)
			in, err := parent.StdinPipe() // the child exits when it is closed
			require.NoError(t, err)
			defer in.Close()
			var output bytes.Buffer
			parent.Stderr = &output
			require.NoError(t, parent.Start())
			_, err = parent.Process.Wait()
			require.NoError(t, err)
			assert.Empty(t, output.String())
			next := with(t, dir, limits, "open")
			next.Env = append(next.Env, "GOVERBS_DEVICE=soft@"+address)
			out, err := next.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}

// TestARM64 runs programs for arm64 in an emulator.
func TestARM64(t *testing.T) {
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("recompiles Go's library: make test-all runs it")
	}
	dir := t.TempDir()
	build := exec.Command("../../dropin/build", dir)
	build.Env = append(os.Environ(), "CC=aarch64-linux-gnu-gcc", "GOARCH=arm64")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	headers := t.TempDir() // the emulated machine's directories have none
	for _, of := range []string{"infiniband", "rdma"} {
		require.NoError(t, os.Symlink("/usr/include/"+of, filepath.Join(headers, of)))
	}
	host := filepath.Join(dir, "host")
	out, err = exec.Command("aarch64-linux-gnu-gcc", "-I"+headers, "-O1", "-o", host, "testdata/host.c",
		filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1"), "-pthread").CombinedOutput()
	require.NoError(t, err, "%s", out)
	// the emulator itself fails after fork
	for _, name := range []string{"plain", "threads", "handlers", "urgent", "interrupts"} {
		cmd := exec.Command("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", "LD_LIBRARY_PATH="+dir, host, name)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), name+": fine")
	}
}
