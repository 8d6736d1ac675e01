// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"context"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/stream"
)

// queue holds the connections of a listening socket that wait for raccept.
type queue struct {
	listener *stream.Listener
	served   sync.WaitGroup
	places   chan struct{} // a token for each connection in ready
	closed   chan struct{} // closed by close

	mu    sync.Mutex
	ready []*stream.Conn
	err   error
}

// maxReady is the number of connections that wait for raccept in addition to those that the listener holds.
const maxReady = 16

// listen implements rlisten.
func (k *socket) listen(backlog int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch k.state {
	case fresh, bound:
	case listening:
		return nil
	default:
		return unix.EINVAL
	}
	config, err := k.config()
	if err != nil {
		return err
	}
	if err := k.releasePort(); err != nil {
		return err
	}
	config.Maps = maxMaps // programs set RDMA_IOMAPSIZE after they listen
	lc := stream.ListenConfig{Config: config, Backlog: min(max(backlog, 1), stream.DefaultBacklog)}
	at := k.local
	if !at.IsValid() {
		at = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	l, err := lc.Listen(context.Background(), at.String())
	if err != nil {
		return err
	}
	k.queue = &queue{listener: l, places: make(chan struct{}, maxReady), closed: make(chan struct{})}
	k.state = listening
	if a, ok := l.Addr().(stream.Addr); ok {
		k.local = a.AddrPort
	}
	k.queue.served.Go(func() { k.queue.serve(k) })
	return nil
}

// serve accepts connections until the listener closes.
func (q *queue) serve(k *socket) {
	for {
		select {
		case q.places <- struct{}{}:
		case <-q.closed:
			return
		}
		c, err := q.listener.AcceptRDMA(context.Background())
		q.mu.Lock()
		if err != nil {
			q.err = err
		} else {
			q.ready = append(q.ready, c)
		}
		q.mu.Unlock()
		k.waiters.wake(unix.POLLIN)
		if err != nil {
			return
		}
	}
}

// take returns the next connection, or EAGAIN.
func (q *queue) take() (*stream.Conn, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.ready) > 0:
		c := q.ready[0]
		q.ready = q.ready[1:]
		<-q.places
		return c, nil
	case q.err != nil:
		return nil, q.err
	}
	return nil, unix.EAGAIN
}

// has reports whether take would return a connection or an error.
func (q *queue) has() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready) > 0 || q.err != nil
}

// close stops listening and closes the connections that the program has not accepted.
func (q *queue) close() {
	close(q.closed)
	_ = q.listener.Close()
	q.served.Wait()
	for _, c := range q.ready {
		_ = c.Close()
	}
}

// accept implements raccept.
func (k *socket) accept(address, length uint64) *call {
	k.mu.Lock()
	q, o := k.queue, k.options
	k.mu.Unlock()
	if q == nil {
		return done(0, unix.EINVAL)
	}
	return &call{waits: []awaited{{k, unix.POLLIN}}, try: func(interrupted error) (int, error) {
		c, err := q.take()
		switch {
		case err == unix.EAGAIN && interrupted != nil:
			return 0, interrupted
		case err == unix.EAGAIN && !k.nonblock.Load():
			return 0, errWait
		case err != nil:
			return 0, err
		}
		accepted, err := k.of.newSocket(k.family, o)
		if err != nil {
			_ = c.Close()
			return 0, err
		}
		accepted.takeConn(c)
		k.of.add(accepted)
		if address != 0 {
			err = accepted.peerName(address, length)
		}
		return accepted.fd, err
	}}
}
