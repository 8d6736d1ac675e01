// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// deadline returns the end of a timed test, when waits end, or the zero time if the test is not timed.
func (t *test) deadline() time.Time {
	if t.o.Duration == 0 {
		return time.Time{}
	}
	time.AfterFunc(t.o.Duration, func() { t.expired.Store(true) })
	return time.Now().Add(t.o.Duration)
}

// errEnded reports that the deadline has passed.
var errEnded = errors.New("deadline reached")

// ended reports whether the test is complete so far: the deadline has passed or the user interrupted it.
func ended(err error) bool { return errors.Is(err, errEnded) || errors.Is(err, context.Canceled) }

// next waits for completions of a queue and stores them in t.wcs.
func (t *test) next(cq *rdma.CQ, deadline time.Time) (n int, err error) {
	switch {
	case t.stopped.Load():
		return 0, context.Cause(t.ctx)
	case t.expired.Load():
		return 0, errEnded
	}
	if t.o.Events {
		n, err = t.sleep(cq, deadline)
	} else {
		n, err = t.spin(cq, deadline)
	}
	if err == nil {
		err = t.check(n)
	}
	return n, err
}

// look polls without waiting.
func (t *test) look(cq *rdma.CQ) (n int, err error) {
	if n, err = cq.Poll(t.wcs); err == nil {
		err = t.check(n)
	}
	return n, err
}

// check returns the error of the first failed completion of n.
func (t *test) check(n int) error {
	for i := range t.wcs[:n] {
		if err := rdma.CompletionErr(&t.wcs[i]); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for an event.
func (t *test) sleep(cq *rdma.CQ, deadline time.Time) (int, error) {
	ctx := t.ctx
	t.alarm.Reset(t.timeout)
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	n, err := cq.Wait(ctx, t.wcs)
	if err != nil && t.ctx.Err() != nil {
		return 0, context.Cause(t.ctx)
	}
	if err != nil && ctx.Err() != nil {
		return 0, errEnded
	}
	return n, err
}

func (t *test) spin(cq *rdma.CQ, deadline time.Time) (int, error) {
	var since time.Time
	for empty := 0; ; empty++ {
		if n, err := cq.Poll(t.wcs); n != 0 || err != nil {
			return n, err
		}
		if empty&255 == 255 {
			if err := t.pause(deadline, &since); err != nil {
				return 0, err
			}
		}
	}
}

// pause yields to other goroutines and reports whether the wait has timed out; since is the start of the first pause.
func (t *test) pause(deadline time.Time, since *time.Time) error {
	runtime.Gosched()
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	now := time.Now()
	switch {
	case !deadline.IsZero() && now.After(deadline):
		return errEnded
	case since.IsZero():
		*since = now
	case now.Sub(*since) > t.timeout:
		return errSilentPeer
	}
	return nil
}
