package rdma

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/readiness"
)

// CompChannel is a completion channel: what says that one of its completion queues has something to poll. Goroutines wait for it on Go's
// netpoller; no thread is blocked. Its descriptor, which C made, does not block from then on.
//
// Man: ibv_create_comp_channel(3)
type CompChannel struct {
	object
	c      *ibv.CompChannel
	device *Device
	ready  *readiness.FD

	// of who holds ready's turn
	get     func() bool
	cq      *ibv.Ptr[ibv.CQ] // these two are where C puts its answer
	context *uintptr
	failure error
}

// CreateCompChannel makes a completion channel. Any number of completion queues may share it.
//
// C: ibv_create_comp_channel
//
// Man: ibv_create_comp_channel(3)
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{device: d, cq: new(ibv.Ptr[ibv.CQ]), context: new(uintptr)}
	ch.get = func() bool {
		ch.failure = libibverbs.GetCQEvent(ch.c, ch.cq, ch.context)
		return !errors.Is(ch.failure, eagain)
	}
	create := func() (*ibv.CompChannel, error) {
		c, err := libibverbs.CreateCompChannel(d.c)
		if err != nil {
			return nil, err
		}
		if ch.ready, err = readiness.New(c.FD, d.name+": completion channel"); err != nil {
			libibverbs.DestroyCompChannel(c)
			return nil, fmt.Errorf("its descriptor cannot be waited for: %w", err)
		}
		return c, nil
	}
	destroy := func(c *ibv.CompChannel) error {
		if err := libibverbs.DestroyCompChannel(c); err != nil {
			return err
		}
		ch.ready.Close()
		return nil
	}
	ch.life.Wake = func() { ch.ready.Poke() }
	return made(ch, birth(d, &ch.object, &ch.c, ch, "completion channel", "ibv_create_comp_channel", create, destroy,
		func(c *ibv.CompChannel) string { return fmt.Sprintf("completion channel %d of %s", c.FD, d.name) }))
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the CompChannel.
func (ch *CompChannel) C() *ibv.CompChannel { return whileOpen(&ch.object, ch.c) }

// alone says that the channel has one completion queue.
func (ch *CompChannel) alone() bool { return ch.life.Children() == 1 }

// Ptr is the channel as attributes name it.
func (ch *CompChannel) Ptr() ibv.Ptr[ibv.CompChannel] { return ptrWhileOpen(&ch.object, ch.c) }

// taken acknowledges the event that get took, and says of which queue it is; nil: of one that is closed. The caller holds ready's turn.
func (ch *CompChannel) taken() (*CQ, error) {
	if ch.failure != nil {
		return nil, wrap("ibv_get_cq_event", ch.name, ch.failure)
	}
	cq, _ := ch.device.objects.find(uintptr(*ch.cq)).(*CQ)
	if cq == nil { // of no object of ours, which C wants acknowledged all the same
		return nil, libibverbs.AckCQEvents(ch.cq.Deref(), 1)
	}
	cq.acknowledge()
	return cq, nil
}

// Wait waits for an event of any of the channel's completion queues, and says of which one. It has to be armed, and armed again, with
// CQ.ReqNotify, and polled after that: what came before makes no event. This is for who serves many queues in one goroutine; CQ.Wait
// does all that by itself, and the two do not go together on one channel. Any number of goroutines may wait; each event goes to one of them.
// It fails when ctx ends, when the channel is closed, and when the device is gone.
//
// C: ibv_get_cq_event
//
// Man: ibv_get_cq_event(3)
func (ch *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	const verb = "ibv_get_cq_event"
	if err := ch.use(verb); err != nil {
		return nil, err
	}
	defer ch.done()
	select {
	case ch.ready.Turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-ch.ready.Turn }()
	for {
		var cq *CQ
		got, err := ch.ready.Wait(ctx, ch.get, func() bool { return ch.isClosed() || ch.device.Err() != nil })
		switch {
		case err != nil:
			err = wrap(verb, ch.name, err)
		case got:
			cq, err = ch.taken()
		}
		gone := ch.device.Err()
		switch {
		case cq != nil:
			return cq, nil
		case gone != nil:
			return nil, gone
		case err != nil:
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case ch.isClosed():
			return nil, &VerbError{Verb: verb, Object: ch.name, Errno: einval, Err: ErrClosed}
		}
	}
}

// Close closes the channel. Its completion queues have to be closed before.
//
// C: ibv_destroy_comp_channel
//
// Man: ibv_create_comp_channel(3)
func (ch *CompChannel) Close() error { return ch.end() }
