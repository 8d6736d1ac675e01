package wq

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Exclusive gives a handle of the queue that is for one goroutine, the fastest way to post. The queue itself must not be
// posted to until the handle is closed; a checked one refuses.
func (q *SendQueue) Exclusive() (*ExclusiveSendQueue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return nil, q.refusal
	}
	x := &ExclusiveSendQueue{q: q}
	var err error
	if x.stack, err = q.newStack(); err != nil {
		return nil, err
	}
	x.poster = runtime.NewPosterOn(x.stack, q.fn, q.object, x.stack != nil)
	x.poster.Unusual, x.poster.Failed = postBy(x.PostRange), q.failure
	if q.checks != nil {
		x.behind = x.poster
		x.behind.Unusual = q.postOn(x.stack)
		x.poster = runtime.NewPosterOn(nil, 0, 0, false)
		x.poster.Unusual = x.postAll
	}
	q.refusal = errExclusive
	return x, nil
}

// ExclusiveSendQueue is a [SendQueue] for the goroutine that uses it first, until that says Release. In another one its methods panic
// with runtime.ErrNotOwner, but only where calls are on a private stack: where Way is not exclusive, or runtime.PrivateStacks says no,
// nothing detects another goroutine, and what it does is a data race.
type ExclusiveSendQueue struct {
	poster runtime.Poster // these two as in SendQueue
	behind runtime.Poster
	exclusive
	q *SendQueue
}

// Way is how the queue is called.
func (x *ExclusiveSendQueue) Way() runtime.Way { return x.q.way }

// Provider is [SendQueue.Provider].
func (x *ExclusiveSendQueue) Provider() string { return x.q.provider }

// Post is [SendQueue.Post].
func (x *ExclusiveSendQueue) Post(b *SendBatch) (posted int, err error) {
	err = x.poster.PostOwned(&b.chain)
	return b.posted, err
}

// PostRange is [SendQueue.PostRange].
func (x *ExclusiveSendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	if b.chain.Len >= len(b.wrs) || b.lacks != 0 || from == to {
		return 0, b.Err()
	}
	if x.closed {
		return 0, errClosed
	}
	own(x.stack)
	b.endAt(from, to)
	if x.q.checks != nil {
		return x.q.postChecked(x.stack, b, from, to)
	}
	return x.q.post(x.stack, b, from, to)
}

// postAll is [SendQueue.postAll], for the owner alone.
func (x *ExclusiveSendQueue) postAll(c *runtime.Chain) error {
	b := sendBatchOf(c)
	if c.Len != c.Closed || x.closed {
		posted, err := x.PostRange(b, 0, c.Len)
		b.took(posted)
		return err
	}
	own(x.stack)
	m, ok := x.q.take(b.wrs[:c.Len])
	if !ok {
		b.took(0)
		return x.q.explain(b.wrs[:c.Len], 0)
	}
	err := x.behind.PostOwned(c)
	if err != nil {
		x.q.undo(m, b.posted, err)
	}
	return err
}

// Retire is [SendQueue.Retire]; any goroutine may call it.
func (x *ExclusiveSendQueue) Retire(wcs []ibv.WC) { x.q.Retire(wcs) }

// Close gives the queue back. No call may be under way. A second Close does nothing.
func (x *ExclusiveSendQueue) Close() error { return x.giveBack(&x.q.mu, &x.q.refusal) }
