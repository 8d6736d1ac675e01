// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

// TestInterrupt checks that an interrupt ends commands behind a firewall that drops their packets, although Linux 6.1
// does not close such a connection.
func TestInterrupt(t *testing.T) {
	root := os.Getenv("GOVERBS_NFT")
	if root == "" {
		t.Skip("nft is not in this guest: make vm WHAT=doctor")
	}
	h := &hosts{Across: testbed.OpenAcross(t), root: root}
	wall := h.filtered(t, false, "output", "drop")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	peer := h.Soft4.String()
	for _, test := range []struct {
		name         string
		onPeer, here []string
	}{
		{"perf", nil, []string{"perf", "send", "-R", "-d", h.Device, peer}},
		{"perf-server", []string{"perf", "send", "-R", "-d", "soft@" + peer, h.Kernel4.String()},
			[]string{"perf", "send", "-R", "-d", h.Device}},
		{"cp", nil, []string{"cp", file, peer}},
		{"echo", nil, []string{"echo", peer}},
	} {
		t.Run(test.name, func(t *testing.T) {
			wall.inject()
			defer wall.undo()
			var printed bytes.Buffer
			cmd := exec.Command("goverbs", test.here...)
			cmd.Stdout, cmd.Stderr = &printed, &printed
			cmd.WaitDelay = time.Second
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			defer in.Close()
			require.NoError(t, cmd.Start())
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			time.Sleep(3 * time.Second)
			if test.onPeer != nil {
				require.NoError(t, h.Inside(func() error {
					other := exec.Command("goverbs", test.onPeer...)
					other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
					h.serving = other
					return other.Start()
				}))
				defer h.stop()
				time.Sleep(3 * time.Second)
			}
			begun := time.Now()
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				require.Fail(t, "the command does not exit", "%v: %s", test.here, &printed)
			}
			t.Logf("ended %v after the interrupt: %s", time.Since(begun), &printed)
			assert.Equal(t, 130, cmd.ProcessState.ExitCode())
		})
	}
}
