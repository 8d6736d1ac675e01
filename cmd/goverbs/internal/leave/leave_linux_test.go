// SPDX-License-Identifier: BSD-2-Clause

package leave

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// leaves is the variable with which this test's program is one that leaves a descriptor.
const leaves = "GOVERBS_TEST_LEAVES"

func TestMain(m *testing.M) {
	switch {
	case Holds(os.Args[1:]):
	case os.Getenv(leaves) != "":
		if err := Descriptors(3); err != nil {
			panic(err)
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test says so
	default:
		os.Exit(m.Run())
	}
}

// TestDescriptors: another process has the descriptor as long as the one that left it, and little longer.
func TestDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), leaves+"=1"), []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	ended := make(chan time.Time, 1)
	go func() {
		_, _ = r.Read(make([]byte, 1))
		ended <- time.Now()
	}()
	select {
	case <-ended:
		t.Error("nobody has the descriptor")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, in.Close())
	_, err = io.Copy(io.Discard, out) // whoever reads what it prints does not wait for the other one
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		assert.Fail(t, "the descriptor stays open")
	}
}
