// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
)

// TestSoftRSocketIsANetConn: both ends are of this package.
func TestSoftRSocketIsANetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := softPipe(t, Config{Protocol: RSocket, Buffer: 64 << 10})
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// TestSoftRSocketDelivers: more than the ring has room for, in pieces of any size, and then the end.
func TestSoftRSocketDelivers(t *testing.T) {
	for _, buffer := range []int{protocol.MinBuffer, 64 << 10, DefaultBuffer} {
		a, b := softPipe(t, Config{Protocol: RSocket, Buffer: buffer})
		want := make([]byte, 5*buffer+rand.IntN(1000))
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		go func() {
			for rest := want; len(rest) > 0; {
				n, err := a.Write(rest[:min(len(rest), 1+rand.IntN(2*buffer))])
				if !assert.NoError(t, err) {
					return
				}
				rest = rest[n:]
			}
			assert.NoError(t, a.CloseWrite())
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%d bytes of %d", len(got), len(want))
		_, err = b.Write([]byte("the other way"))
		require.NoError(t, err)
		require.NoError(t, b.Close())
		got, err = io.ReadAll(a)
		require.NoError(t, err)
		assert.Equal(t, "the other way", string(got))
		require.NoError(t, a.Close())
	}
}
