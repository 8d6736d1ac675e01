// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/goverbs/goverbs/rdma"
)

// Buffer is memory that receives objects without a copy:
//
//	out, err := client.GetObject(s3rdma.Into(ctx, buffer), …)
//	n, err := buffer.ReadFrom(out.Body)
//	use(buffer.Bytes()[:n])
//
// Only one request at a time may use it: another GetObject fails until the body of the first is closed.
type Buffer struct {
	memory *rdma.Buffer
	filled atomic.Int64 // number of bytes that a response placed here by RDMA
	busy   atomic.Bool  // a transfer uses it until its response is closed
	lost   atomic.Bool  // its key could not be revoked, so a peer may still write here
}

var errLost = errors.New("s3rdma: the key of the buffer's memory could not be revoked; a peer may still write to it")

// NewBuffer returns a buffer of size bytes. Close it after use.
func NewBuffer(size int) (*Buffer, error) {
	memory, err := rdma.NewBuffer(size, rdma.MapOptions{})
	if err != nil {
		return nil, err
	}
	return &Buffer{memory: memory}, nil
}

// Bytes returns the memory.
func (b *Buffer) Bytes() []byte { return b.memory.Bytes() }

// Close releases the memory. Close the bodies of responses before it. If a transfer to the buffer failed and the peer
// may still write to it, Close fails and keeps the memory.
func (b *Buffer) Close() error {
	if b.lost.Load() {
		return errLost
	}
	return b.memory.Close()
}

// ReadFrom reads a response's body to its end, so that the SDK can verify checksums. It copies the body into the buffer
// unless RDMA has already placed it there. It fails with [io.ErrShortBuffer] if the buffer is too small.
func (b *Buffer) ReadFrom(body io.Reader) (int64, error) {
	if b.lost.Load() {
		return 0, errLost
	}
	if b.filled.Swap(0) > 0 {
		return io.Copy(io.Discard, body)
	}
	all := b.memory.Bytes()
	n, err := io.ReadFull(body, all)
	switch err {
	case io.EOF, io.ErrUnexpectedEOF:
		return int64(n), nil
	case nil:
		var more [1]byte
		if m, _ := io.ReadFull(body, more[:]); m > 0 {
			err = io.ErrShortBuffer
		}
	}
	return int64(n), err
}

var errBusy = errors.New("s3rdma: the buffer is in use by another request; close that response first")

type intoKey struct{}

// Into returns a context for GetObject that makes RDMA write the object into the buffer, if it fits.
func Into(ctx context.Context, b *Buffer) context.Context {
	return context.WithValue(ctx, intoKey{}, b)
}

// bufferOf returns the context's buffer if it has at least size bytes, and nil otherwise.
func bufferOf(ctx context.Context, size int) *Buffer {
	if b, ok := ctx.Value(intoKey{}).(*Buffer); ok && b != nil && len(b.Bytes()) >= size && !b.lost.Load() {
		return b
	}
	return nil
}

// destination returns memory for a response, and a function that releases it.
func (t *Transport) destination(ctx context.Context, size int) (*rdma.Buffer, func(), error) {
	if b := bufferOf(ctx, size); b != nil {
		if b.busy.Swap(true) {
			return nil, nil, errBusy
		}
		return b.memory, func() {
			b.lost.Store(t.engine.pool.isBlocked(b.memory))
			b.busy.Store(false)
		}, nil
	}
	memory, err := t.engine.pool.get(size)
	if err != nil {
		return nil, nil, err
	}
	return memory, func() { t.engine.pool.put(memory) }, nil
}
