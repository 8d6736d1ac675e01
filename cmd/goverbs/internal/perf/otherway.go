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

// Where one end has -R and the other has not, they do not meet: one waits at a port of TCP, the other at one of the
// connection manager. So an end with -R looks at TCP, too: a server there hears clients that come the other way, and a
// client asks whether a server waits the other way. Both exchange what they are, and both end.

// soon is how long what is asked over TCP may take, for which nobody waits.
const soon = 5 * time.Second

// refuseTCP has the test end when a client comes over TCP, until it is stopped. What is no client is not answered.
func (r *rig) refuseTCP(ctx context.Context) (stop func()) {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(r.o.Port)))
	if err != nil {
		return func() {} // somebody else has the port, which is well
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if why := r.otherWay(ctx, c); why != nil {
				r.end(why)
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

// tryTCP says why a client finds nobody at the connection manager's port, if that is that the server has no -R.
func (r *rig) tryTCP(ctx context.Context) error {
	d := net.Dialer{Timeout: soon}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(r.o.Peer, strconv.Itoa(r.o.Port)))
	if err != nil {
		return nil
	}
	return r.otherWay(ctx, c)
}

// otherWay tells a peer that came over TCP what this end runs. It is nil if that is no peer.
func (r *rig) otherWay(ctx context.Context, c net.Conn) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	late := time.AfterFunc(soon, func() { end(errQuiet) })
	defer late.Stop()
	l := overTCP(ctx, end, c)
	defer l.Close()
	t, err := agree(l, r.o, r.mtu)
	if t.goverbs && err == nil {
		err = compare(l, r.o.client(), r.o.task(r.gid != nil))
	}
	if err == nil { // the peer is perftest, for those of goverbs differ
		err = fmt.Errorf("%w: this end has -R, the peer (perftest %s) has not; give it to both or to none", errDiffer,
			t.version)
	}
	if !errors.Is(err, errDiffer) {
		return nil
	}
	return err
}
