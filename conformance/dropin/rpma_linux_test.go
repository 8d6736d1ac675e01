// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRPMA runs librpma on the libraries in two processes, with every operation, private data, a rejection, a shared
// receive queue and a shared completion channel. It finds its device through an identifier without a channel.
func TestRPMA(t *testing.T) {
	dir := built(t)
	if _, err := os.Stat("/usr/include/librpma.h"); err != nil {
		t.Skip("librpma is not installed: make deps installs librpma-dev")
	}
	peer := filepath.Join(t.TempDir(), "rpmapeer")
	out, err := exec.Command("cc", "-O1", "-o", peer, "../vm/rpma/peer/rpmapeer.c", "-lrpma",
		"-libverbs").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range []struct {
		passive, active string
		seen, asked     string // observations of each
	}{
		{"y", "x", "written written by x, written by x, 8 bytes!, written\nreceived a message, message\n",
			"received an answer,  answer\nevent 1\n"},
		{"r", "s", "received a message, message\n",
			"wait of a queue that shares its channel: -100008\nreceived an answer\n"},
		{"serve", "errors", "event 1\n", "wait of a shared channel: -100009\nno event: -100006\n"},
		{"serve", "full", "event 1\n", "room for 16 receives: 1, then -100002\nall have ended\n"},
	} {
		t.Run(c.active, func(t *testing.T) {
			serverAddr, port := freeAddress(t), freePort(t)
			var seen, ready bytes.Buffer
			listens := with(t, dir, peer, c.passive, serverAddr, port)
			listens.Env = append(listens.Env, "GOVERBS_DEVICE=soft@"+serverAddr)
			listens.Stdout = &seen
			output, err := listens.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, listens.Start())
			line := make([]byte, len("ready\n"))
			_, err = output.Read(line)
			require.NoError(t, err, "%s", &seen)
			require.Equal(t, "ready\n", string(line))
			asks := with(t, dir, peer, c.active, serverAddr, port)
			asks.Env = append(asks.Env, "GOVERBS_DEVICE=soft@"+freeAddress(t))
			asks.Stderr = &ready
			clientOutput, err := asks.Output()
			assert.NoError(t, err, "%s%s", clientOutput, &ready)
			assert.Contains(t, string(clientOutput), c.asked)
			ends := time.AfterFunc(20*time.Second, func() { listens.Process.Kill() })
			defer ends.Stop()
			require.NoError(t, listens.Wait(), "%s", &seen)
			assert.Contains(t, seen.String(), c.seen)
		})
	}
}
