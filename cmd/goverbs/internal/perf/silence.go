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

// A peer may be silent for Options.Silence where it has something to say. A server waits for a test in which it has
// nothing to do for as long as that takes; whatever else does not go on is given up.

// slowest is how many bytes a second a link has at least: large messages take their time.
const slowest = 10 << 20

// errQuiet says that the peer is there, and nothing goes on.
var errQuiet = errors.New("nothing comes from the peer any more, which is still connected: it runs another test, " +
	"or hangs")

// within ends the test if a step takes longer, which only the peer can be the cause of.
func (r *rig) within(limit time.Duration, step func() error) error {
	return r.withinOr(errQuiet, limit, step)
}

func (r *rig) withinOr(why error, limit time.Duration, step func() error) error {
	late := time.AfterFunc(limit, func() { r.end(why) })
	defer late.Stop()
	return step()
}

// silence is how long no message of a size may complete.
func (r *rig) silence(size int) time.Duration {
	round := float64(size) * float64(r.o.QPs) * float64(r.o.Moderate)
	return r.o.Silence + time.Duration(round/slowest*float64(time.Second))
}

// explained says what the peer needs to run, where an error may come from its running something else.
func (r *rig) explained(err error) error {
	var failed *rdma.CompletionError
	may := errors.As(err, &failed)
	for _, e := range []error{errGone, errQuiet, errOther} {
		may = may || errors.Is(err, e)
	}
	if may && !r.alike {
		return fmt.Errorf("%w; %s", err, r.o.task(r.gid != nil).needs())
	}
	return err
}

// errOther says that the peer says or does what does not belong to this test.
var errOther = errors.New("the peer runs another test, or has other options")

// tell exchanges outcomes of a test that a server only serves.
func (t *test) tell(mine outcome) error {
	return t.within(t.o.Silence, func() error {
		theirs, err := tell(t.l, t.o.client(), mine)
		if err == nil && !t.o.client() && !slices.Contains(t.o.Sizes, int(theirs.size)) { // servers say no size
			err = fmt.Errorf("%w: its messages had %d bytes", errOther, theirs.size)
		}
		return err
	})
}

// serve waits for as long as the client's test takes, in which this end has nothing to do. What it receives shows that
// the client runs another test: there is nothing to receive in this one.
func (t *test) serve() error {
	for _, e := range t.ends {
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(quiet)
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
				if wc.Status != ibv.WC_WR_FLUSH_ERR { // of a peer that is gone
					t.rig.end(fmt.Errorf("%w: it sends", errOther))
					return
				}
			}
			if t.stranger() && time.Since(at) > t.o.Silence {
				now := t.counters()
				if len(changes(counted, now)) == 0 {
					t.rig.end(errQuiet)
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

// stranger says if a client seems to run a test of another verb. perftest's ask for more than one read or atomic
// operation at a time if they do any, unless the device or the option -o has no more. Such a client may never say
// anything: so it is given up when the device counts nothing.
func (t *test) stranger() bool {
	return !t.alike && (t.o.Verb == "read" || t.o.Verb == "atomic") && t.ends[0].peer.reads <= 1
}
