// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// A peer may be silent for Options.Silence when it is its turn; then the test fails. A server with nothing to do waits
// as long as the client is active.

// slowest is the minimum rate of a link in bytes per second, which extends timeouts for large messages.
const slowest = 10 << 20

// errSilentPeer reports that the peer is connected but silent.
var errSilentPeer = errors.New("peer is connected but silent; check that it runs the same test")

// withTimeout ends the test if a step takes too long.
func (r *session) withTimeout(limit time.Duration, step func() error) error {
	return r.withTimeoutOr(errSilentPeer, limit, step)
}

func (r *session) withTimeoutOr(reason error, limit time.Duration, step func() error) error {
	timer := time.AfterFunc(limit, func() { r.end(reason) })
	defer timer.Stop()
	return step()
}

// peerTimeout returns the peer timeout for a message of a size.
func (r *session) peerTimeout(size int) time.Duration {
	round := float64(size) * float64(r.o.QPs) * float64(r.o.Moderate)
	return r.o.Silence + time.Duration(round/slowest*float64(time.Second))
}

// explain adds the command that the peer needs to run if a different test may be the cause of an error.
func (r *session) explain(err error) error {
	var failed *rdma.CompletionError
	may := errors.As(err, &failed)
	for _, e := range []error{errGone, errSilentPeer, errOther} {
		may = may || errors.Is(err, e)
	}
	if may && !r.isGoverbs {
		return fmt.Errorf("%w; %s", err, r.o.task(r.gid != nil).needs())
	}
	return err
}

// errOther reports data that does not belong to this test.
var errOther = errors.New("peer runs another test or has other options")

// exchangeOutcomes exchanges outcomes of a test that a server only serves.
func (t *test) exchangeOutcomes(local outcome) error {
	return t.withTimeout(t.o.Silence, func() error {
		remote, err := swapOutcomes(t.l, t.o.client(), local)
		if err == nil && !t.o.client() && !slices.Contains(t.o.Sizes, int(remote.size)) { // servers send no size
			err = fmt.Errorf("%w: message size %d", errOther, remote.size)
		}
		return err
	})
}

// serve waits for the end of the client's test. This end has nothing to receive, so a receive shows that the client
// runs another test.
func (t *test) serve() error {
	for _, e := range t.ends {
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(quietTime)
		defer tick.Stop()
		counted, at := t.counters(), time.Now()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			n, _ := t.recvs.Poll(t.wcs)
			for _, wc := range t.wcs[:n] {
				if wc.Status != ibv.WC_WR_FLUSH_ERR { // the peer has gone
					t.session.end(fmt.Errorf("%w: unexpected send", errOther))
					return
				}
			}
			if t.runsOtherVerb() && time.Since(at) > t.o.Silence {
				now := t.counters()
				if len(changes(counted, now)) == 0 {
					t.session.end(errSilentPeer)
					return
				}
				counted, at = now, time.Now()
			}
		}
	})
	defer group.Wait()
	defer close(done)
	return t.wait(t.l)
}

// runsOtherVerb reports whether the client seems to run another verb. perftest requests more than one concurrent read
// or atomic operation if it uses them, unless the device or -o limits it to one. Such a client may never send anything,
// so the test fails when the device's counters stop.
func (t *test) runsOtherVerb() bool {
	return !t.isGoverbs && (t.o.Verb == "read" || t.o.Verb == "atomic") && t.ends[0].peer.reads <= 1
}
