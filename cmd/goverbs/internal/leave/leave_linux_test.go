// SPDX-License-Identifier: BSD-2-Clause

package leave

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leaveEnv is an environment variable that makes the test binary leave a descriptor.
const leaveEnv = "GOVERBS_TEST_LEAVES"

func TestMain(m *testing.M) {
	switch {
	case Holds(os.Args[1:]):
	case os.Getenv(leaveEnv) != "":
		managers = []string{os.Getenv(leaveEnv)} // not a path in one of the tests
		left, err := Manager()
		if !left {
			err = Descriptors(3)
		}
		if err != nil || left != (os.Getenv(leaveEnv) != "1") {
			panic(fmt.Sprint(left, err))
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test continues
	default:
		os.Exit(m.Run())
	}
}

// TestDescriptors checks that the second process holds the descriptor until shortly after the first has exited.
func TestDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	checkOpen(t, r, w, "1")
}

// TestManager checks that descriptors are found by device name, with a named pipe as the device.
func TestManager(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rdma_cm")
	require.NoError(t, unix.Mkfifo(name, 0o600))
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	r, err := os.Open(name)
	require.NoError(t, err)
	w, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	checkOpen(t, r, w, name)
}

// checkOpen runs a process that leaves the end w of a pipe, and measures at the other end how long it stays open.
func checkOpen(t *testing.T, r, w *os.File, leaving string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), leaveEnv+"="+leaving), []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	done := make(chan time.Time, 1)
	go func() {
		_, _ = r.Read(make([]byte, 1))
		done <- time.Now()
	}()
	select {
	case <-done:
		t.Error("the descriptor is closed")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, in.Close())
	_, err = io.Copy(io.Discard, out) // the second process does not hold stdout
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		assert.Fail(t, "the descriptor stays open")
	}
}
