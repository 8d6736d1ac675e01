// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
)

// breakDestroy makes an engine fail to close objects of type T while the result is true.
func breakDestroy[T io.Closer](e *engine) *atomic.Bool {
	broken := new(atomic.Bool)
	e.destroy = func(c io.Closer) error {
		if _, ok := c.(T); ok && broken.Load() {
			return syscall.EBUSY
		}
		return c.Close()
	}
	return broken
}

// TestStranded: if a client cannot close a queue pair or memory region after a GET, the object is correct, its memory
// is not reused, and Close releases the memory when that becomes possible.
func TestStranded(t *testing.T) {
	for name, breaks := range map[string]func(*engine) *atomic.Bool{
		"queue pair": breakDestroy[*rdma.QP], "memory region": breakDestroy[*rdma.MR],
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, HandlerOptions{}, Options{Threshold: 1}, nil)
			broken := breaks(p.transport.engine)
			data := bytesOf(5000, 1)
			p.put("key", data) // leaves 8192 bytes of idle memory
			memory, err := p.transport.engine.pool.get(5000)
			require.NoError(t, err)
			p.transport.engine.pool.put(memory)
			broken.Store(true)
			assert.Equal(t, data, p.get("key"))
			broken.Store(false)
			stats := p.transport.Stats()
			assert.EqualValues(t, 1, stats.Discarded)
			assert.EqualValues(t, 0, stats.Gets, "delivered by RDMA although a peer may still write to the memory")
			other, err := p.transport.engine.pool.get(5000)
			require.NoError(t, err)
			assert.NotSame(t, memory, other)
			p.transport.engine.pool.put(other)
			assert.Equal(t, data, p.get("key"))
			assert.EqualValues(t, 1, p.transport.Stats().Gets)
		})
	}
}

// TestStrandedForGood: Close reports memory that cannot be released, and does not wait.
func TestStrandedForGood(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{Threshold: 1}, nil)
	broken := breakDestroy[*rdma.QP](p.transport.engine)
	broken.Store(true)
	p.put("key", bytesOf(5000, 1))
	require.ErrorIs(t, p.transport.Close(), syscall.EBUSY)
	broken.Store(false)
	require.NoError(t, p.transport.engine.close())
}

// TestStrandedInto: if a peer may still write to a program's buffer, the result is an error instead of data.
func TestStrandedInto(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{Threshold: 1}, nil)
	p.put("key", bytesOf(5000, 1))
	b, err := NewBuffer(5000)
	require.NoError(t, err)
	broken := breakDestroy[*rdma.MR](p.transport.engine)
	broken.Store(true)
	_, err = p.do(Into(t.Context(), b), http.MethodGet, "key", nil)
	require.ErrorIs(t, err, errLost)
	broken.Store(false)
	assert.ErrorIs(t, b.Close(), errLost)
	_, err = b.ReadFrom(http.NoBody)
	assert.ErrorIs(t, err, errLost)
}

// TestStrandedServer: if a server cannot revoke the key of a PUT, it neither stores data that the client can still
// change nor reuses the memory.
func TestStrandedServer(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{Threshold: 1}, nil)
	broken := breakDestroy[*rdma.MR](p.handler.engine)
	broken.Store(true)
	data := bytesOf(5000, 1)
	p.put("key", data) // by HTTP
	broken.Store(false)
	stats := p.handler.Stats()
	assert.Equal(t, 1, stats.Discarded)
	assert.Zero(t, stats.Puts)
	assert.EqualValues(t, 1, stats.Declined["device"])
	assert.Equal(t, Stats{Declined: 1}, p.transport.Stats())
	assert.Empty(t, p.handler.engine.pool.idle[class(5000)])
	assert.Equal(t, data, p.get("key"))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestStrandedReceive: if a queue pair with a posted receive cannot be closed, nothing waits for the receive.
func TestStrandedReceive(t *testing.T) {
	p := newPair(t, HandlerOptions{SessionLifetime: 50 * time.Millisecond}, Options{Threshold: 1},
		func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && r.URL.Path == pathReady {
					return nil, syscall.ECONNRESET
				}
				return base.RoundTrip(r)
			})
		})
	p.put("key", bytesOf(5000, 1))
	broken := breakDestroy[*rdma.QP](p.transport.engine)
	broken.Store(true)
	done := make(chan []byte, 1)
	go func() { done <- p.get("key") }()
	select {
	case got := <-done:
		assert.Equal(t, bytesOf(5000, 1), got)
	case <-time.After(20 * time.Second):
		require.Fail(t, "the client waits for a receive on a queue pair that cannot be closed")
	}
	assert.EqualValues(t, 1, p.transport.Stats().Discarded)
	broken.Store(false)
}
