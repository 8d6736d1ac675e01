// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Run runs a test with a peer until ctx ends. A server waits for one.
func Run(ctx context.Context, o *Options) (report *Report, err error) {
	r, err := open(o)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r.end = end
	var l link
	defer func() { err = errors.Join(err, r.leave(err, l)) }()
	if l, err = r.connectLink(ctx, end); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	report, err = r.run(ctx, l)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // the cause takes precedence over its consequences
	}
	err = r.explain(err)
	if report != nil {
		report.Interrupted = errors.Is(err, context.Canceled)
	}
	return report, err
}

// leave closes everything, or passes descriptors to another process: closing a failed connection of the kernel's
// connection manager may take long.
func (r *session) leave(failed error, l link) error {
	if failed != nil && r.o.Manager && r.o.Leave != nil {
		if left, err := r.o.Leave(); left {
			return err
		}
	}
	err := r.Close() // before the link, which queue pairs may belong to
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return err
}

var errSilent = errors.New("peer did not identify itself; check that it is perftest or goverbs perf")

func (r *session) run(ctx context.Context, l link) (*Report, error) {
	o := r.o
	t, err := r.negotiate(l)
	if err != nil {
		return nil, err
	}
	if o.Connection == "UD" {
		mtu := rdma.MTUBytes(t.mtu)
		o.Sizes = slices.DeleteFunc(slices.Clone(o.Sizes), func(n int) bool { return o.All && n > mtu })
		if o.Sizes[0] > mtu && o.Sizes[0] != defaultBandwidth {
			return nil, fmt.Errorf("message size %d exceeds the MTU, %d bytes", o.Sizes[0], mtu)
		}
		o.Sizes[0] = min(o.Sizes[0], mtu)
	}
	tcp, reason, err := r.tcpRows(ctx, l, t)
	if err != nil {
		return nil, err
	}
	if err := r.setup(t); err != nil {
		return nil, err
	}
	if err := r.newEnds(l); err != nil {
		return nil, err
	}
	if err := r.connectQPs(l, t); err != nil {
		return nil, err
	}
	report := &Report{Test: o.String(), Connection: o.Connection, QPs: o.QPs, Device: r.device.Name(),
		MTU: rdma.MTUBytes(t.mtu), PeerVersion: t.version, Client: o.client(), Latency: o.Latency, Both: o.Both,
		Peer: l.remote(), Rows: []Row{}, PeerIsOurs: t.goverbs, NoTCP: reason}
	progress, stop := watch(o)
	defer stop()
	before := r.counters()
	test := &test{session: r, ctx: ctx, l: l, have: make([]int, o.QPs), progress: progress}
	defer context.AfterFunc(ctx, func() { test.stopped.Store(true) })()
	test.alarm = time.AfterFunc(math.MaxInt64, func() { r.end(errSilentPeer) })
	defer test.alarm.Stop()
	err = test.all(report)
	test.alarm.Stop()
	if err == nil {
		err = test.end(report)
	}
	report.Counters = changes(before, r.counters())
	report.addBaseline(tcp)
	return report, err
}

// negotiate exchanges terms and compares the options of both ends.
func (r *session) negotiate(l link) (t terms, err error) {
	o := r.o
	return t, r.withTimeoutOr(errSilent, o.Silence, func() error {
		if t, err = agree(l, o, r.mtu); err != nil || !t.goverbs {
			return err
		}
		err = compare(l, o.client(), o.task(r.gid != nil))
		r.isGoverbs = err == nil
		return err
	})
}

// connectQPs exchanges the keys of all queue pairs and connects them, in perftest's order.
func (r *session) connectQPs(l link, t terms) error {
	one := func() error { return r.exchangeKeys(l) }
	all := func() error {
		for _, e := range r.ends {
			known := e.peer
			err := r.withTimeout(r.o.Silence, func() error { return r.swapKeys(l, e, &e.peer) })
			if err != nil {
				return err
			}
			e.peerQPN = e.peer.qpn
			if e.peer.qkey = qkey; e.ah != nil { // the connection manager provided the address
				e.peer.qpn, e.peer.qkey = known.qpn, known.qkey
			}
		}
		return nil
	}
	connect := func() error {
		if r.o.Manager {
			return nil // already connected
		}
		return r.connect(t)
	}
	steps := []func() error{all, connect, all, one}
	switch {
	case r.o.Verb == "send":
		steps = []func() error{all, connect, one, all}
	case r.o.Latency:
		steps = []func() error{one, all, connect, all, one}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("exchange of queue pairs: %w", err)
		}
	}
	return nil
}

// test is a running test between connected ends.
type test struct {
	*session
	ctx      context.Context
	l        link
	have     []int // posted receives of each queue pair
	progress *progress
	finished bool // the client has reported its end and received the acknowledgement
	// Flags of deadlines: a loop that never waits must not check a context or a clock each time.
	stopped, expired atomic.Bool
	bytes            uint32        // size of an incoming message
	timeout          time.Duration // of a wait for a completion
	alarm            *time.Timer   // wakes sleepers at the deadline
}

// sync synchronizes with the peer, within the peer timeout.
func (t *test) sync() error { return t.exchangeKeys(t.l) }

// exchangeKeys exchanges keys of the first queue pair to synchronize both ends.
func (r *session) exchangeKeys(l link) error {
	return r.withTimeout(r.o.Silence, func() error { return r.wait(l) })
}

// wait is exchangeKeys without a timeout.
func (r *session) wait(l link) error { return r.swapKeys(l, r.ends[0], &keys{}) }

// swapKeys exchanges keys of a queue pair. Both ends do so several times for each, with the same keys.
func (r *session) swapKeys(l link, e *end, remote *keys) (err error) {
	if *remote, err = exchangeKeys(l, r.o.client(), &e.keys); err == nil && e.peerQPN != 0 && remote.qpn != e.peerQPN {
		err = errPairs
	}
	return err
}

// all runs all sizes.
func (t *test) all(report *Report) error {
	for _, size := range t.o.Sizes {
		if err := t.setRequests(size); err != nil {
			return err
		}
		t.progress.next(size)
		t.timeout, t.bytes = t.peerTimeout(size), uint32(size)
		if t.o.Connection == "UD" {
			t.bytes += uint32(grh)
		}
		result, err := t.one(size)
		if err != nil {
			return fmt.Errorf("message size %d: %w", size, err)
		}
		if result != nil && (result.Messages > 0 || t.ctx.Err() == nil) {
			report.Rows = append(report.Rows, *result)
		}
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		if !t.o.client() && t.o.oneSided() && !t.o.Both {
			break // the peer runs all sizes
		}
	}
	return nil
}

// one runs one size. It returns nil on a server that only serves.
func (t *test) one(size int) (*Row, error) {
	o := t.o
	if o.Verb == "send" {
		if o.Latency || o.Both || !o.client() {
			if err := t.postReceives(t.have); err != nil {
				return nil, err
			}
		}
		if err := t.sync(); err != nil {
			return nil, err
		}
	}
	switch {
	case o.Both:
		return t.both(size)
	case o.Latency && o.Verb == "send":
		return t.pingPong(size, t.waitMessage)
	case o.Latency && o.Verb == "write":
		return t.pingPong(size, t.written(size))
	case !o.client() && o.oneSided():
		return nil, nil
	case o.Latency:
		return t.roundTrips(size)
	case o.client():
		row, err := t.stream(size)
		if err == nil && o.All && o.Verb == "send" && t.ctx.Err() == nil {
			err = t.sync()
		}
		return row, err
	}
	return t.receiveAll(size)
}

// end reports the end of the test to the peer.
func (t *test) end(report *Report) error {
	o := t.o
	if o.Latency && o.Verb == "write" {
		return nil
	}
	sync := t.sync
	if !o.client() && o.oneSided() && !o.Both {
		sync = t.serve
	}
	if !o.Latency && !o.Both && o.Verb != "send" {
		if err := sync(); err != nil {
			return err
		}
		sync = t.sync
		local := outcome{}
		if n := len(report.Rows); n > 0 {
			local = report.Rows[n-1].outcome()
		}
		if err := t.exchangeOutcomes(local); err != nil {
			return err
		}
	}
	if !t.finished {
		if err := sync(); err != nil {
			return err
		}
	}
	t.l.finish()
	return nil
}

// post posts the requests of a queue pair, signaling every o.Moderate-th and the last one.
func (t *test) post(e *end, last int) error {
	wrs := e.batch.WRs()
	for i := range wrs {
		wrs[i].SendFlags &^= ibv.SEND_SIGNALED
		if n := e.posted + i + 1; n%t.o.Moderate == 0 || n == last {
			wrs[i].SendFlags |= ibv.SEND_SIGNALED
		}
	}
	_, err := e.qp.PostSend(e.batch)
	e.posted += len(wrs)
	return err
}
