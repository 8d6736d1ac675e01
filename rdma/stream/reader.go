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

// reader is the read half of a connection.
type reader struct {
	turn     sync.Mutex // held by the reading goroutine, also while it uses borrowed memory
	memory   sync.Mutex // held inside turn while a Read uses the ring; Close waits for it
	deadline *deadline
	ready    chan struct{} // holds a token after data may have arrived
	learned  learned       // guarded by memory
}

// begin initializes the reader. The deadline calls interrupt.
func (r *reader) begin(interrupt func()) {
	r.deadline, r.ready = newDeadline(), make(chan struct{}, 1)
	r.deadline.expired = interrupt
}

// Read waits for data and reads it.
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
	n := c.protocol.CopyOut(p, unread) // without mu: the reader owns these bytes
	c.took(n)
	return n, nil
}

// mayRead returns the error that ends reading even if data is available, or nil.
func (c *Conn) mayRead() error {
	switch {
	case isDone(c.closed):
		return net.ErrClosed
	case isDone(c.reader.deadline.passed()):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// unread returns the number of unread bytes, or the error if there will be none.
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

// took returns the buffer space of n read bytes to the peer.
func (c *Conn) took(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol.Consumed(n)
	c.sendControl()
}

// awaitData waits for data. It polls first if LearnedBusyPoll has found that faster. The caller holds reader.memory.
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

// TryRead is Read that does not wait: it returns EAGAIN if there is no data.
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

// Peek is TryRead that leaves the data unread.
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

// ReadLent waits for data and calls use with some of it in place, in the memory that the device has written. use owns p
// until it returns. It returns how many bytes it consumed, from the start of p; the others stay unread and occupy
// buffer space. ReadLent returns that number and the error of use.
//
// Other readers wait until use returns. Close does not wait, and the memory stays valid. use may call Write and Close,
// but must not read.
//
// A hostile peer can change the bytes while use reads them. Copy data that you validate before using it, or that you
// read twice, as Read does.
func (c *Conn) ReadLent(use func(p []byte) (n int, err error)) (int, error) {
	n, end, err := c.lendOnce(use)
	if end != nil {
		return 0, end
	}
	return n, err
}

// lendOnce is ReadLent. end is the reason if use was not called.
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
		return 0, nil, c.opError("read", verberr.Invalid("ReadLent", "", "use consumed %d bytes of %d", n, len(p)))
	}
	c.took(n)
	return n, nil, err
}

// borrow waits for data, and returns some with a hold on its memory.
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

// WriteTo writes received data to w until io.EOF; io.Copy from a connection uses it. w.Write gets the bytes in place,
// as with [Conn.ReadLent].
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
