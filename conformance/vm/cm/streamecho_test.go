// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/stream"
)

// TestStreamEchoes checks that a reply wakes the waiting goroutine if it arrives at any point between polling and
// sleeping.
func TestStreamEchoes(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		for _, busy := range []time.Duration{0, 50 * time.Microsecond} {
			a, b := pipe(t, stream.Config{Protocol: protocol, Buffer: 64 << 10, BusyPoll: busy})
			limit := time.Now().Add(2 * time.Minute)
			require.NoError(t, a.SetDeadline(limit))
			require.NoError(t, b.SetDeadline(limit))
			done := make(chan error, 1)
			go func() {
				p := make([]byte, 64)
				for {
					if _, err := io.ReadFull(b, p); err != nil {
						if err == io.EOF {
							err = nil
						}
						done <- err
						return
					}
					if _, err := b.Write(p); err != nil {
						done <- err
						return
					}
				}
			}()
			p := make([]byte, 64)
			for i := range 3000 {
				p[0], p[63] = byte(i), byte(i>>8)
				_, err := a.Write(p)
				require.NoError(t, err, i)
				clear(p)
				_, err = io.ReadFull(a, p)
				require.NoError(t, err, "reply %d does not arrive", i)
				require.Equal(t, [2]byte{byte(i), byte(i >> 8)}, [2]byte{p[0], p[63]})
			}
			require.NoError(t, a.CloseWrite())
			assert.NoError(t, <-done)
		}
	})
}
