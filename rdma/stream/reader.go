// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// reader is the half of a connection that reads.
type reader struct {
	turn     sync.Mutex // of the goroutine that reads, also while it looks at what it has borrowed
	memory   sync.Mutex // inside turn, while a Read uses the ring: Close waits for it
	deadline *deadline
	ready    chan struct{} // holds a token after there may be something to read
	learned  learned       // guarded by memory
}

// begin makes the reader ready. interrupt is called when the deadline comes.
func (r *reader) begin(interrupt func()) {
	r.deadline, r.ready = newDeadline(), make(chan struct{}, 1)
	r.deadline.came = interrupt
}

// Read waits until data has arrived, and reads it.
func (c *Conn) Read(p []byte) (int, error) {
	c.reader.turn.Lock()
	defer c.reader.turn.Unlock()
	c.reader.memory.Lock()
	defer c.reader.memory.Unlock()
	defer c.reader.learned.end()
	for {
		n, err := c.tryRead(p)
		switch {
		case err == io.EOF:
			return 0, err
		case err != nil:
			return n, c.opError("read", err)
		case n > 0 || len(p) == 0:
			return n, nil
		}
		c.awaitData()
	}
}

func (c *Conn) tryRead(p []byte) (int, error) {
	if err := c.mayRead(); err != nil || len(p) == 0 {
		return 0, err
	}
	unread, err := c.unread()
	if unread == 0 {
		return 0, err
	}
	n := c.protocol.CopyOut(p, unread) // these bytes belong to the reader
	c.took(n)
	return n, nil
}

// mayRead returns why reading is over, whatever has arrived, or nil.
func (c *Conn) mayRead() error {
	switch {
	case isDone(c.closed):
		return net.ErrClosed
	case isDone(c.reader.deadline.passed()):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// unread returns how many bytes wait for a reader, or else why no more will come.
func (c *Conn) unread() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.protocol.Unread()
	switch {
	case n > 0:
		return n, nil
	case c.peerFin&protocol.Fin != 0:
		return 0, io.EOF
	}
	return 0, c.err
}

// took gives the peer room for bytes that were read.
func (c *Conn) took(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol.Took(n)
	c.sendControl()
}

// awaitData returns when there may be something to read. It polls first if that was seen to pay. The caller holds
// reader.memory.
func (c *Conn) awaitData() {
	if c.config.BusyPoll == LearnedBusyPoll {
		c.reader.learned.begin()
		if c.reader.learned.polls() && c.poller.poll(func() bool {
			c.mu.Lock()
			now := c.canRead()
			c.mu.Unlock()
			return now || !c.reader.learned.polls() || isDone(c.reader.deadline.passed()) || isDone(c.closed)
		}) {
			return
		}
	}
	c.await(c.reader.deadline, c.reader.ready, c.canRead)
}

// TryRead is Read that does not wait: its error is EAGAIN while nothing has arrived.
func (c *Conn) TryRead(p []byte) (int, error) {
	c.reader.turn.Lock()
	defer c.reader.turn.Unlock()
	c.reader.memory.Lock()
	defer c.reader.memory.Unlock()
	n, err := c.tryRead(p)
	if err == nil && n == 0 && len(p) > 0 {
		c.Poll()
		n, err = c.tryRead(p)
	}
	switch {
	case err == nil && n == 0 && len(p) > 0:
		return 0, syscall.EAGAIN
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, c.opError("read", err)
}

// Peek copies what Read would return next, and leaves it there. It does not wait: its error is EAGAIN while nothing has
// arrived.
func (c *Conn) Peek(p []byte) (int, error) {
	c.reader.turn.Lock()
	defer c.reader.turn.Unlock()
	c.reader.memory.Lock()
	defer c.reader.memory.Unlock()
	if _, err := c.tryRead(nil); err != nil {
		return 0, c.opError("read", err)
	}
	c.mu.Lock()
	unread, may, err := c.protocol.Unread(), c.canRead(), c.err
	c.mu.Unlock()
	switch {
	case unread > 0:
		return c.protocol.CopyOut(p, unread), nil
	case !may:
		return 0, syscall.EAGAIN
	case err != nil:
		return 0, c.opError("read", err)
	}
	return 0, io.EOF
}

// ReadLent waits until data has arrived, and calls use with some of it, which is not copied: it lies in memory that the
// device writes into, and belongs to use until use returns. use says how many bytes it has taken, from the first on;
// the others come again. ReadLent returns that number, and the error of use. Until then they take up the peer's room.
//
// Other readers wait for use. Close does not: the memory stays until use returns. use may Write, and Close, but not
// read.
//
// A hostile peer can change the bytes while use looks at them. What is checked and then used, or looked at twice, has
// to be copied first, as Read does.
func (c *Conn) ReadLent(use func(p []byte) (n int, err error)) (int, error) {
	n, end, err := c.lendOnce(use)
	if end != nil {
		return 0, end
	}
	return n, err
}

// lendOnce is ReadLent; end is why use was not called.
func (c *Conn) lendOnce(use func(p []byte) (int, error)) (n int, end, err error) {
	c.reader.turn.Lock()
	defer c.reader.turn.Unlock()
	p, hold, err := c.borrow()
	if err == io.EOF {
		return 0, err, nil
	} else if err != nil {
		return 0, c.opError("read", err), nil
	}
	defer hold.Release()
	n, err = use(p)
	if n < 0 || n > len(p) {
		return 0, nil, c.opError("read", verberr.Invalid("ReadLent", "", "%d bytes were taken of %d", n, len(p)))
	}
	c.took(n)
	return n, nil, err
}

// borrow waits until data has arrived, and holds it.
func (c *Conn) borrow() ([]byte, protocol.Hold, error) {
	c.reader.memory.Lock()
	defer c.reader.memory.Unlock()
	defer c.reader.learned.end()
	for {
		err := c.mayRead()
		var n uint64
		if err == nil {
			n, err = c.unread()
		}
		if n > 0 {
			return c.protocol.Front(n), c.link.Hold(), nil
		}
		if err != nil {
			return nil, protocol.Hold{}, err
		}
		c.awaitData()
	}
}

// WriteTo writes what arrives into w until the peer ends: io.Copy from a connection uses it. w gets the bytes where
// they lie, as [Conn.ReadLent] lends them.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	for {
		n, end, err := c.lendOnce(func(p []byte) (int, error) {
			n, err := w.Write(p)
			if n < len(p) && err == nil {
				err = io.ErrShortWrite
			}
			return n, err
		})
		total += int64(n)
		switch {
		case end == io.EOF:
			return total, nil
		case end != nil:
			return total, end
		case err != nil:
			return total, err
		}
	}
}
