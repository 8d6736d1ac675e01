// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestSoftManyAtOnce: requests of many peers wait at a listener with a small Backlog. None may be dropped, because a
// dropped request is retransmitted only after 4 s, and Dial waits 5 s.
func TestSoftManyAtOnce(t *testing.T) {
	const peers = 300
	f := newFabric(t, soft.Options{})
	config := Config{Backend: f, Buffer: protocol.MinBuffer, HandshakeTimeout: tooLong}
	l, err := listening(config, 1).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	var dialing sync.WaitGroup
	for range peers {
		dialing.Go(func() {
			c, err := dialer(config).Dial(soon(t), l.Addr().String())
			if assert.NoError(t, err) {
				assert.NoError(t, c.Close())
			}
		})
	}
	for range peers {
		c, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		dialing.Go(func() { assert.NoError(t, c.Close()) })
	}
	dialing.Wait()
	assert.Zero(t, f.HWCounters("soft0")["rx_cm_backlog"], "dropped requests")
}
