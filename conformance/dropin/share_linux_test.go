// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMeeting checks that programs without configured addresses find each other: two servers of different kinds that
// stay, and their clients.
func TestMeeting(t *testing.T) {
	dir := built(t)
	for _, name := range []string{"ibv_rc_pingpong", "rping"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed: make deps installs ibverbs-utils and rdmacm-utils", name)
		}
	}
	port, other := freePort(t), freePort(t)
	start := func(words string) (*exec.Cmd, *bytes.Buffer) {
		all := strings.Fields(words)
		var output bytes.Buffer
		cmd := with(t, dir, all[0], all[1:]...)
		cmd.Stdout, cmd.Stderr = &output, &output
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, &output
	}
	verbs, output := start("ibv_rc_pingpong -g 0 -p " + port)
	start("rping -s -P -a 0.0.0.0 -p " + other) // runs until it is killed
	client := func(words string) string {
		var out []byte
		all := strings.Fields(words)
		require.EventuallyWithT(t, func(c *assert.CollectT) { // until the server listens
			var err error
			out, err = with(t, dir, all[0], all[1:]...).CombinedOutput()
			require.NoError(c, err, "%s", out)
		}, time.Minute, 50*time.Millisecond)
		return string(out)
	}
	client("rping -c -a 127.0.0.1 -C 10 -V -p " + other)
	assert.Contains(t, client("ibv_rc_pingpong -g 0 -p "+port+" 127.0.0.1"), "1000 iters in")
	client("rping -c -a 127.0.0.1 -C 10 -V -p " + other)
	require.NoError(t, verbs.Wait())
	assert.Contains(t, output.String(), "1000 iters in")
}
