// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
)

// chunk is the number of bytes after which a direct transfer starts. The rest follows while the S3 server still writes
// the object of a GET, or already reads the body of a PUT. Smaller chunks cost more completions, larger ones overlap
// less.
const chunk = 512 << 10

// maxChunk limits the size of a request of a PUT.
const maxChunk = 8 * chunk

// pipe is a payload in memory that one goroutine fills while another consumes it. One of them is the S3 server's, the
// other transfers the payload by RDMA.
type pipe struct {
	mu     sync.Mutex
	change sync.Cond
	filled int   // bytes
	over   bool  // filled is final
	err    error // why filled is final, if the payload is incomplete

	done chan struct{} // closed when the goroutine that uses RDMA has ended
}

// newPipe starts a goroutine with the RDMA side of a pipe. The pipe's error is that of transfer.
func newPipe(transfer func(p *pipe) error) *pipe {
	p := &pipe{done: make(chan struct{})}
	p.change.L = &p.mu
	go func() {
		defer close(p.done)
		p.end(transfer(p))
	}()
	return p
}

// advance adds bytes up to a total of n.
func (p *pipe) advance(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filled = n
	p.change.Broadcast()
}

// end makes the number of bytes final. An earlier error remains.
func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.err == nil {
		p.err = err
	}
	p.change.Broadcast()
}

// wait waits until more than n bytes are filled or their number is final, and returns it.
func (p *pipe) wait(n int) (filled int, over bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.filled <= n && !p.over {
		p.change.Wait()
	}
	return p.filled, p.over, p.err
}

// close ends the transfer after its current request, waits for that, and returns the transfer's error.
func (p *pipe) close() error {
	p.end(nil)
	<-p.done
	return p.err
}

// writeTo writes the payload to the peer's memory while the pipe is filled.
func (l *link) writeTo(ctx context.Context, peer token) *pipe {
	return newPipe(func(p *pipe) error {
		for sent := 0; ; {
			filled, _, err := p.wait(sent)
			if err != nil || filled == sent {
				return err
			}
			if err := l.move(ctx, peer, ibv.WR_RDMA_WRITE, sent, filled); err != nil {
				return err
			}
			sent = filled
		}
	})
}

// errStopped is the error of a pipe whose payload the S3 server has not read to the end.
var errStopped = errors.New("s3rdma: the S3 server has replied before the end of the body")

// readFrom fills a pipe with size bytes of the peer's memory.
func (l *link) readFrom(ctx context.Context, peer token, size int) *pipe {
	return newPipe(func(p *pipe) error {
		for read := 0; read < size; {
			p.mu.Lock()
			over := p.over
			p.mu.Unlock()
			if over {
				return errStopped
			}
			to := min(size, read+min(max(read, chunk), maxChunk))
			if err := l.move(ctx, peer, ibv.WR_RDMA_READ, read, to); err != nil {
				return err
			}
			read = to
			p.advance(read)
		}
		return nil
	})
}

// pipeReader reads the payload of a pipe.
type pipeReader struct {
	p    *pipe
	rest []byte // the memory that has not been read
	read int
}

// next waits for bytes that have not been read.
func (r *pipeReader) next() ([]byte, error) {
	filled, _, err := r.p.wait(r.read)
	switch {
	case filled > r.read:
		return r.rest[:filled-r.read], nil
	case err != nil:
		return nil, err
	}
	return nil, io.EOF
}

func (r *pipeReader) skip(n int) {
	r.rest, r.read = r.rest[n:], r.read+n
}

func (r *pipeReader) Read(b []byte) (int, error) {
	ready, err := r.next()
	n := copy(b, ready)
	r.skip(n)
	return n, err
}

// WriteTo saves [io.Copy] its buffer.
func (r *pipeReader) WriteTo(w io.Writer) (total int64, err error) {
	for {
		ready, err := r.next()
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(ready)
		r.skip(n)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}
