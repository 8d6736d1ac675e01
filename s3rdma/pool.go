// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/goverbs/goverbs/rdma"
)

// pool keeps buffers for reuse by size class. Sizes are powers of two.
type pool struct {
	keep int64 // maximum bytes of idle buffers

	mu      sync.Mutex
	idle    [33][]*rdma.Buffer
	held    int64
	blocked map[*rdma.Buffer]bool // buffers that a peer may still access, and whether put was called
	over    bool
}

// minBuffer is the logarithm of the minimum size.
const minBuffer = 12

func class(size int) int { return max(minBuffer, bits.Len(uint(size-1))) }

// get returns a buffer of at least size bytes, with arbitrary content.
func (p *pool) get(size int) (*rdma.Buffer, error) {
	c := class(size)
	p.mu.Lock()
	if n := len(p.idle[c]); n > 0 {
		b := p.idle[c][n-1]
		p.idle[c] = p.idle[c][:n-1]
		p.held -= int64(b.Len())
		p.mu.Unlock()
		return b, nil
	}
	p.mu.Unlock()
	return rdma.NewBuffer(1<<c, rdma.MapOptions{})
}

// put returns a buffer to the pool. A blocked buffer is not reused.
func (p *pool) put(b *rdma.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, blocked := p.blocked[b]; blocked {
		p.blocked[b] = true
		return
	}
	if p.over || p.held+int64(b.Len()) > p.keep {
		b.Close()
		return
	}
	p.held += int64(b.Len())
	c := class(b.Len())
	p.idle[c] = append(p.idle[c], b)
}

// block prevents a buffer from being reused.
func (p *pool) block(b *rdma.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked[b] = false
}

func (p *pool) isBlocked(b *rdma.Buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, blocked := p.blocked[b]
	return blocked
}

// unblock undoes block. It frees the buffer if put was called.
func (p *pool) unblock(b *rdma.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked[b] {
		b.Close()
	}
	delete(p.blocked, b)
}

func (p *pool) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for c, all := range p.idle {
		for _, b := range all {
			err = errors.Join(err, b.Close())
		}
		p.idle[c] = nil
	}
	return err
}
