// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// places counts the bytes that are copied, and the addresses where they were.
type places struct {
	copied      int
	first, last uintptr
}

func (p *places) add(b []byte) {
	if len(b) == 0 {
		return
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if p.copied == 0 {
		p.first = at
	}
	p.copied, p.last = p.copied+len(b), at+uintptr(len(b))
}

// within expects that size bytes were copied once, to or from registered memory of an engine.
func (p *places) within(t *testing.T, e *engine, size int) {
	t.Helper()
	assert.Equal(t, size, p.copied, "bytes copied")
	assert.EqualValues(t, size, p.last-p.first, "in one piece")
	assert.Eventually(t, func() (found bool) { // after the reply, the handler puts it back
		e.pool.mu.Lock()
		defer e.pool.mu.Unlock()
		for _, idle := range e.pool.idle {
			for _, b := range idle {
				found = found || uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))) == p.first
			}
		}
		return found
	}, 10*time.Second, time.Millisecond, "the memory is not that of transfers")
}

// placedReader counts the destinations of reads.
type placedReader struct {
	io.Reader
	at places
}

func (r *placedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.at.add(b[:n])
	return n, err
}

// placedWriter counts the sources of writes.
type placedWriter struct{ at places }

func (w *placedWriter) Write(b []byte) (int, error) {
	w.at.add(b)
	return len(b), nil
}

// TestCopies counts the copies of payload between the memory of programs and that of transfers. The client's body is
// read into registered memory, and a response is read from it, or lies in the program's buffer; the S3 server writes an
// object into registered memory, and reads a PUT from it.
func TestCopies(t *testing.T) {
	for name, o := range map[string]Options{"hipobj-rc-v2": {}, "direct": {Direct: true}, "dynamic": {Dynamic: true}} {
		t.Run(name, func(t *testing.T) {
			const size = 3<<20 + 1
			data := bytesOf(size, 1)
			o.Threshold = 1
			p := newPair(t, HandlerOptions{Direct: o.Direct, Dynamic: o.Dynamic}, o, nil)
			p.put("lane", data) // a direct connection declines its first request
			var taken placedWriter
			var given []byte
			inner := p.store
			p.handler.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					taken = placedWriter{}
					_, err := io.Copy(&taken, r.Body)
					assert.NoError(t, err)
					r.Body = io.NopCloser(bytes.NewReader(data))
				}
				inner.ServeHTTP(w, r)
				if into, ok := w.(*recorder); ok && r.Method == http.MethodGet {
					given = into.body
					assert.Len(t, into.body, size)
					assert.LessOrEqual(t, cap(into.body), size, "the memory of the transfer, in its length")
				}
			})
			before := p.transport.Stats()
			sent := &placedReader{Reader: bytes.NewReader(data)}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.server.URL+"/bucket/key", sent)
			require.NoError(t, err)
			r.ContentLength = size
			r.Header.Set("Authorization", credential)
			response, err := p.client.Do(r)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			sent.at.within(t, p.transport.engine, size)
			taken.at.within(t, p.handler.engine, size)

			get := func(ctx context.Context) *http.Response {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server.URL+"/bucket/key", nil)
				require.NoError(t, err)
				r.Header.Set("Authorization", credential)
				response, err := p.client.Do(r)
				require.NoError(t, err)
				return response
			}
			response = get(t.Context())
			var from places
			from.add(given)
			from.within(t, p.handler.engine, size)
			rest := response.Body.(*body).rest
			require.Len(t, rest, size)
			from = places{}
			from.add(rest)
			got, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.True(t, bytes.Equal(data, got))
			from.within(t, p.transport.engine, size)

			b, err := NewBuffer(size)
			require.NoError(t, err)
			response = get(Into(t.Context(), b))
			assert.True(t, bytes.Equal(data, b.Bytes()[:size]), "no copy at all")
			require.NoError(t, response.Body.Close())
			require.NoError(t, b.Close())
			after := p.transport.Stats()
			assert.Equal(t, before.Puts+1, after.Puts)
			assert.Equal(t, before.Gets+2, after.Gets)
		})
	}
}

// TestAbortedMemory has a client that ends a GET into its buffer before the server writes. When the client returns, its
// memory belongs to the program: the server's later write fails.
func TestAbortedMemory(t *testing.T) {
	for name, o := range map[string]Options{"hipobj-rc-v2": {}, "direct": {Direct: true}, "dynamic": {Dynamic: true}} {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			o.Threshold = 1
			var cancel context.CancelFunc
			armed := false
			returned, wrote := make(chan struct{}), make(chan struct{})
			p := newPair(t, HandlerOptions{Direct: o.Direct, Dynamic: o.Dynamic, TransferTimeout: 2 * time.Second}, o,
				func(base http.RoundTripper) http.RoundTripper {
					return roundTripper(func(r *http.Request) (*http.Response, error) {
						last := r.URL.Path == pathReady || r.Method == http.MethodGet
						if !armed || !last {
							return base.RoundTrip(r)
						}
						armed = false
						retried := r.Clone(context.WithoutCancel(r.Context()))
						go func() { // the request reaches the server when the client has returned
							defer close(wrote)
							<-returned
							if response, err := base.RoundTrip(retried); err == nil {
								response.Body.Close()
							}
						}()
						cancel()
						return nil, context.Canceled
					})
				})
			p.put("key", bytesOf(size, 1))
			assert.Equal(t, bytesOf(size, 1), p.get("key"))
			b, err := NewBuffer(size)
			require.NoError(t, err)
			var ctx context.Context
			ctx, cancel = context.WithCancel(Into(t.Context(), b))
			defer cancel()
			armed = true
			_, err = p.do(ctx, http.MethodGet, "key", nil)
			require.ErrorIs(t, err, context.Canceled)
			own := bytesOf(size, 2)
			copy(b.Bytes(), own)
			close(returned)
			<-wrote
			assert.Eventually(t, func() bool { return p.handler.Sessions() == 0 }, 10*time.Second, 5*time.Millisecond)
			assert.True(t, bytes.Equal(own, b.Bytes()[:size]), "the server wrote to memory of the program")
			assert.NoError(t, b.Close())
			assert.Equal(t, bytesOf(size, 1), p.get("key"))
		})
	}
}
