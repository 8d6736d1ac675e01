// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/stream"
)

// relay accepts connections on one port, opens a connection to another port for each, and forwards data until both
// sides have closed. Go is thus the server of one program and the client of the other, whatever protocol they use.
// ignored lists errors of programs that exit with unread data.
func relay(t *testing.T, e ends, from, to uint16, ignored ...error) {
	l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), netip.AddrPortFrom(e.own, from).String())
	require.NoError(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		all.Wait()
	})
	pass := func(to, from *stream.Conn) {
		_, err := io.Copy(to, from)
		if !slices.ContainsFunc(ignored, func(left error) bool { return errors.Is(err, left) }) {
			assert.NoError(t, err)
		}
		_ = to.CloseWrite() // the peer may have exited
	}
	all.Go(func() {
		for {
			client, err := l.AcceptRDMA(t.Context())
			if err != nil {
				return
			}
			server, err := dialer(rsocketOn(e)).Dial(withTimeout(t), netip.AddrPortFrom(e.theirs, to).String())
			if !assert.NoError(t, err) {
				client.Close()
				return
			}
			all.Go(func() {
				var wg sync.WaitGroup
				wg.Go(func() { pass(server, client) })
				wg.Go(func() { pass(client, server) })
				wg.Wait()
				assert.NoError(t, client.Close())
				assert.NoError(t, server.Close())
			})
		}
	})
}

// TestRSocketRelaysRCopy copies a file from rcopy to rcopy through Go.
func TestRSocketRelaysRCopy(t *testing.T) {
	needTCPRoot(t)
	unchanged(t)
	want := make([]byte, 1_000_000)
	rand.NewChaCha8([32]byte{4}).Read(want)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, want, 0o600))
	onEnds(t, 2, func(t *testing.T, e ends) {
		if e.own.Is6() {
			return // rcopy splits the address at the first colon
		}
		server := run(t, "rcopy", "-p", "7540")
		defer func() {
			_ = server.cmd.Process.Kill() // the server does not exit
			<-server.done
		}()
		awaitListener(t, e, 7540)
		relay(t, e, 7541, 7540)
		out, err := exec.CommandContext(withTimeout(t), "rcopy", from, e.own.String()+":"+to, "-p", "7541").CombinedOutput()
		require.NoError(t, err, "%s\nserver: %s", out, &server.out)
		got, err := os.ReadFile(to)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, got), "%d bytes", len(got))
		require.NoError(t, os.Remove(to))
	})
}

// awaitListener waits until C's server accepts connections.
func awaitListener(t *testing.T, e ends, port uint16) {
	c := retry(t, func() (*stream.Conn, error) {
		return dialer(rsocketOn(e)).Dial(withTimeout(t), netip.AddrPortFrom(e.theirs, port).String())
	})
	require.NoError(t, c.Close())
}
