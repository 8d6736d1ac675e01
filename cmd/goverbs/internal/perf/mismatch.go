// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// An end with -R and one without cannot connect: one waits on a TCP port, the other on a port of the connection
// manager. An end with -R therefore uses TCP, too: a server detects clients without -R, and a client checks whether the
// server has no -R. Both ends then exchange their commands and stop.

// exchangeTimeout bounds the exchange over TCP.
const exchangeTimeout = 5 * time.Second

// rejectTCP ends the test when a client connects over TCP, until it is stopped. It ignores connections from other
// programs.
func (r *session) rejectTCP(ctx context.Context) (stop func()) {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(r.o.Port)))
	if err != nil {
		return func() {} // another program has the port
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if reason := r.exchangeCommands(ctx, c); reason != nil {
				r.end(reason)
				return
			}
		}
	})
	return func() {
		cancel()
		_ = l.Close()
		group.Wait()
	}
}

// tryTCP returns an error if the server waits without -R.
func (r *session) tryTCP(ctx context.Context) error {
	d := net.Dialer{Timeout: exchangeTimeout}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(r.o.Peer, strconv.Itoa(r.o.Port)))
	if err != nil {
		return nil
	}
	return r.exchangeCommands(ctx, c)
}

// exchangeCommands sends this end's command to a peer that connected over TCP. It returns nil if that is not a peer.
func (r *session) exchangeCommands(ctx context.Context, c net.Conn) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	timer := time.AfterFunc(exchangeTimeout, func() { end(errSilentPeer) })
	defer timer.Stop()
	l := overTCP(ctx, end, c)
	defer l.Close()
	t, err := agree(l, r.o, r.mtu)
	if t.goverbs && err == nil {
		err = compare(l, r.o.client(), r.o.task(r.gid != nil))
	}
	if err == nil { // the peer is perftest: goverbs would have reported a difference
		err = fmt.Errorf("%w: -R only on this end (peer: perftest %s); use it on both ends or neither", errDiffer,
			t.version)
	}
	if !errors.Is(err, errDiffer) {
		return nil
	}
	return err
}
