// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMatrix has each client with each server. Every object is right; those of protocols that both ends have move by
// RDMA, and all others by HTTP.
func TestMatrix(t *testing.T) {
	clients := map[string]Options{"HTTP": {Threshold: maxSize}, "hipobj-rc-v2": {}, "direct": {Direct: true},
		"dynamic": {Dynamic: true}}
	servers := map[string]*HandlerOptions{"HTTP": nil, "hipobj-rc-v2": {}, "direct": {Direct: true},
		"dynamic": {Dynamic: true}, "all": {Direct: true, Dynamic: true}}
	for client, o := range clients {
		for server, h := range servers {
			t.Run(client+" to "+server, func(t *testing.T) {
				if o.Threshold == 0 {
					o.Threshold = 1000
				}
				options := HandlerOptions{}
				if h != nil {
					options = *h
				}
				p := newPair(t, options, o, nil)
				if h == nil {
					p.server.Config.Handler = p.store
				}
				for i, size := range []int{1, 999, 1000, 70001, 1 << 20} {
					data := bytesOf(size, uint64(i))
					p.put("key", data)
					assert.True(t, bytes.Equal(data, p.get("key")), size)
				}
				stats, want := p.transport.Stats(), Stats{}
				byRDMA := client == server && client != "HTTP" || client != "HTTP" && server == "all" ||
					client == "hipobj-rc-v2" && server != "HTTP"
				switch {
				case byRDMA:
					want = Stats{Puts: 3, Gets: 3}
					if client == "direct" {
						want = stats // the first request of a lane uses HTTP
						assert.GreaterOrEqual(t, stats.Puts+stats.Gets, uint64(5))
					}
				case client != "HTTP":
					want.Declined = stats.Declined
					assert.NotZero(t, stats.Declined)
				}
				assert.Equal(t, want, stats)
			})
		}
	}
}

// TestIntoOverlapping has requests that overlap on one buffer: while a response lies there, another request fails.
func TestIntoOverlapping(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{Threshold: 1}, nil)
	b, err := NewBuffer(1 << 16)
	require.NoError(t, err)
	want := [2][]byte{bytesOf(50000, 1), bytesOf(60000, 2)}
	get := func(key int) (*http.Response, error) {
		r, err := http.NewRequestWithContext(Into(t.Context(), b), http.MethodGet,
			fmt.Sprintf("%s/bucket/%d", p.server.URL, key), nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", credential)
		return p.client.Do(r)
	}
	p.put("0", want[0])
	p.put("1", want[1])
	first, err := get(0)
	require.NoError(t, err)
	_, err = get(1)
	require.ErrorIs(t, err, errBusy)
	n, err := b.ReadFrom(first.Body)
	require.NoError(t, err)
	assert.EqualValues(t, len(want[0]), n)
	assert.True(t, bytes.Equal(want[0], b.Bytes()[:n]))
	require.NoError(t, first.Body.Close())

	var all sync.WaitGroup
	var done atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				response, err := get(i % 2)
				if err != nil {
					assert.ErrorIs(t, err, errBusy)
					continue
				}
				got, err := io.ReadAll(response.Body)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(want[i%2], got), "bytes of another object")
				assert.NoError(t, response.Body.Close())
				done.Add(1)
			}
		})
	}
	all.Wait()
	assert.NotZero(t, done.Load())
	require.NoError(t, b.Close())
}
