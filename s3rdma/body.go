// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"io"
	"net/http"
	"sync"
)

// body is a payload in the transport's memory. Close waits for reads in progress and releases the memory.
type body struct {
	t       *Transport
	mu      sync.Mutex
	rest    []byte
	release func() // nil after Close
}

func (t *Transport) newBody(payload []byte, release func()) *body {
	t.running.Add(1)
	return &body{t: t, rest: payload, release: release}
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.release == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// WriteTo saves [io.Copy] its buffer.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.release == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(b.rest) == 0 {
		return 0, nil
	}
	n, err := w.Write(b.rest)
	b.rest = b.rest[n:]
	return int64(n), err
}

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.release != nil {
		b.release()
		b.release = nil
		b.t.running.Done()
	}
	return nil
}
