// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/stats"
	"github.com/goverbs/goverbs/rdma/internal/counted"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// SRQ is a shared receive queue: any number of queue pairs consume its receives.
//
// A queue pair consumes a receive when the first packet of a message arrives. If the queue pair is moved to RESET
// before the message is complete, the receive never completes and its slot is lost. To complete it, call [QP.Drain]
// before RESET, or Close. On Soft-RoCE the slot is lost nevertheless: always on Linux 6.12, sometimes on 6.1. If peers
// may fail during long messages over Soft-RoCE, create the queue with QueueOptions.Unchecked.
//
// Man: ibv_create_srq(3)
type SRQ struct {
	object
	c           *ibv.SRQ
	device      *Device
	kind        ibv.SRQType
	cq          *CQ // completion queue of an XRC or tag-matching queue, or nil
	cap         ibv.SRQAttr
	size        atomic.Uint32 // max_wr, which Modify changes
	tags        int           // number of completions of tag matching, in addition to size
	limits      *tagLimits    // or nil
	queue       *RecvQueue
	native      *directQueue
	destroyFunc func(*ibv.SRQ) error // destroys the queue in C
}

// queues returns the positions of the queue, for statistics.
func (q *SRQ) queues() map[string]counted.Positions {
	return map[string]counted.Positions{stats.SharedReceive: q.queue.positions}
}

// CreateSRQ creates a shared receive queue with max_wr and max_sge of attr. Cap returns the number of entries, which
// may be larger.
//
// C: ibv_create_srq
//
// Man: ibv_create_srq(3)
func (p *PD) CreateSRQ(attr ibv.SRQAttr, o QueueOptions) (*SRQ, error) {
	q := &SRQ{device: p.device, destroyFunc: libibverbs.DestroySRQ}
	return made(q, q.create("ibv_create_srq", o, attr, func() (*ibv.SRQ, ibv.SRQAttr, error) {
		init := &ibv.SRQInitAttr{Attr: attr}
		c, err := libibverbs.CreateSRQ(p.c, init)
		return c, init.Attr, err
	}, &p.object))
}

// CreateSRQEx creates a shared receive queue of any type: basic, XRC, or with tag matching. Set objects in attr with
// their Ptr methods. CompMask selects the valid fields. An XRC or tag-matching queue completes in attr's CQ. A
// completion queue can count the slots of only one such queue; others must be Unchecked or use another completion
// queue. Unless Overcommit is set, the completion queue needs room for max_wr completions and, with tag matching, for
// max_ops and two per tag.
//
// C: ibv_create_srq_ex
//
// Man: ibv_create_srq_ex(3)
func (d *Device) CreateSRQEx(attr *ibv.SRQInitAttrEx, o QueueOptions) (*SRQ, error) {
	return d.createSRQEx("ibv_create_srq_ex", attr, o,
		func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error) { return libibverbs.CreateSRQEx(d.c, own) },
		libibverbs.DestroySRQ)
}

// createSRQEx is CreateSRQEx with other functions to create and destroy the queue in C.
func (d *Device) createSRQEx(verb string, attr *ibv.SRQInitAttrEx, o QueueOptions,
	create func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error), end func(*ibv.SRQ) error) (*SRQ, error) {
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	q := &SRQ{device: d, destroyFunc: end}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_TYPE != 0 {
		q.kind = attr.SRQType
	}
	var parents []*object
	if attr.CompMask&ibv.SRQ_INIT_ATTR_XRCD != 0 {
		x, err := named[XRCD](d, verb, d.name, "XRCD", uintptr(attr.XRCD))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &x.object)
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_CQ != 0 {
		cq, err := named[CQ](d, verb, d.name, "CQ", uintptr(attr.CQ))
		if err != nil {
			return nil, err
		}
		q.cq, parents = cq, append(parents, &cq.object)
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_TM != 0 {
		const limit = 1 << 28 // more than any device has
		// a tag completes twice: when a message matches it, and when the message has arrived
		q.tags = 2*int(min(attr.TMCap.MaxNumTags, limit)) + int(min(attr.TMCap.MaxOps, limit))
		if q.byLibmlx5() {
			q.limits = &tagLimits{SGEs: 1, Handles: attr.TMCap.MaxNumTags}
		}
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_PD != 0 {
		pd, err := named[PD](d, verb, d.name, "PD", uintptr(attr.PD))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &pd.object)
	}
	return made(q, q.create(verb, o, attr.Attr, func() (*ibv.SRQ, ibv.SRQAttr, error) {
		own := *attr
		c, err := create(&own)
		reason := refusal.MissingOfSRQ(attr)
		if reason == "" && q.limits != nil && q.cq.ex == nil {
			reason = "libmlx5 requires an extended completion queue for tag matching: create it with CreateCQEx and " +
				"IBV_WC_EX_WITH_TM_INFO"
		}
		if reason != "" && errors.Is(err, syscall.EINVAL) {
			err = explain("", "", reason, err)
		}
		return c, own.Attr, err
	}, parents...))
}

func (q *SRQ) create(verb string, o QueueOptions, asked ibv.SRQAttr, create func() (*ibv.SRQ, ibv.SRQAttr, error),
	parents ...*object) error {
	creating := func() (*ibv.SRQ, error) {
		c, cap, err := create()
		if err != nil {
			return nil, q.device.refused().SRQ(&asked, err)
		}
		made := cap
		cap.MaxWR = min(cap.MaxWR, asked.MaxWR) // as with queue pairs
		q.c, q.cap = c, cap
		q.size.Store(cap.MaxWR)
		q.device.pathFor(&o)
		o.Cap = ibv.QPCap{MaxRecvWR: cap.MaxWR, MaxRecvSGE: cap.MaxSGE}
		if q.cq != nil && !q.cq.native.fits(o.Path) {
			err = otherPath(verb, q.device.name, q.cq.name)
		} else {
			o.Path, q.native, err = directQueueOf(o.Path,
				func(m datapath.Maker) (datapath.Queue, error) { return m.SRQ(c, q.kind, made) })
		}
		if err == nil {
			if q.queue, err = NewSharedRecvQueue(c, o); err == nil {
				q.queue.useLock()
				err = q.admit(o)
			}
		}
		if err != nil {
			q.native.destroy(func() error { return q.destroyFunc(c) })
			return nil, err
		}
		return c, nil
	}
	destroy := func(c *ibv.SRQ) error {
		misuse := q.native.misuse("Close", q.name)
		if q.cq != nil {
			q.cq.queue.pollAside() // before C can no longer attribute completions to the queue
		}
		if err := q.native.destroy(func() error { return q.destroyFunc(c) }); err != nil {
			return err
		}
		q.leaveCQ()
		return late(misuse)
	}
	q.life.Hooks = life.Hooks{
		Stop: func() {
			q.queue.refuse(&VerbError{Verb: "ibv_post_srq_recv", Object: q.name, Errno: syscall.EINVAL, Err: ErrClosed})
		},
		Revive: func() { q.queue.refuse(nil) },
	}
	return createObject(q.device, &q.object, &q.c, q, verb, creating, destroy,
		func(c *ibv.SRQ) string { return fmt.Sprintf("SRQ %d on %s", c.Handle, q.device.name) }, parents...)
}

// admit reserves room in the completion queue of an XRC or tag-matching queue, and registers the queue there so that
// completions release slots.
func (q *SRQ) admit(o QueueOptions) error {
	if q.cq == nil {
		return nil
	}
	if err := q.cq.admit(0, q, o.Overcommit); err != nil {
		return err
	}
	if err := q.cq.queue.countSRQ(q.queue); err != nil {
		q.cq.dismiss(0, q)
		return explain("", q.cq.name,
			"another shared receive queue completes there, and completions do not identify their queue: "+
				"create one with QueueOptions.Unchecked, or with another completion queue",
			err)
	}
	if q.limits != nil {
		q.cq.queue.requirePrograms(&VerbError{Verb: "ibv_poll_cq", Object: q.cq.name, Errno: syscall.EINVAL,
			Reason: "libmlx5 can read completions of tag matching only with ibv_start_poll: use PollProgram or " +
				"WaitProgram"})
	}
	return nil
}

// byLibmlx5 reports whether the provider of tag matching is libmlx5.
func (q *SRQ) byLibmlx5() bool { return q.cq != nil && q.cq.queue.Provider() == "mlx5" }

// leaveCQ reverses admit.
func (q *SRQ) leaveCQ() {
	if q.cq != nil {
		q.cq.queue.pollAside()
		q.cq.queue.forgetSRQ(q.queue)
		if q.limits != nil {
			q.cq.queue.requirePrograms(nil)
		}
		q.cq.dismiss(0, q)
	}
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the SRQ.
func (q *SRQ) C() *ibv.SRQ { return whileOpen(&q.object, q.c) }

// Ptr returns the queue for use in attributes.
func (q *SRQ) Ptr() ibv.Ptr[ibv.SRQ] { return ptrWhileOpen(&q.object, q.c) }

// CQ returns the completion queue of a queue of type XRC or with tag matching, or nil.
func (q *SRQ) CQ() *CQ { return q.cq }

// Type returns the type: basic, XRC or tag matching.
func (q *SRQ) Type() ibv.SRQType { return q.kind }

// Cap returns the requested number of receives (MaxWR) and the number of entries of each (MaxSGE), which is at least
// the requested number.
func (q *SRQ) Cap() ibv.SRQAttr {
	cap := q.cap
	cap.MaxWR = q.size.Load()
	return cap
}

// depth returns the maximum number of completions of the queue.
func (q *SRQ) depth() int { return int(q.size.Load()) + q.tags }

// Queue returns the queue for posting. It is usable until the SRQ is closed.
func (q *SRQ) Queue() *RecvQueue { return q.queue }

// PostRecv posts a batch in one call. posted is the number of requests that were posted: all of them or, with an error,
// those before the one that failed. The error is a [*PostError] or a [*VerbError]. The memory belongs to the device
// until the receives have completed.
//
// C: ibv_post_srq_recv
//
// Man: ibv_post_srq_recv(3)
func (q *SRQ) PostRecv(b *RecvBatch) (posted int, err error) {
	if q.queue == nil { // the zero value
		return 0, q.use("ibv_post_srq_recv")
	}
	return q.queue.Post(b)
}

// Num returns the SRQ number, which XRC senders put into work requests, in host byte order.
//
// C: ibv_get_srq_num
//
// Man: ibv_get_srq_num(3)
func (q *SRQ) Num() (uint32, error) {
	const verb = "ibv_get_srq_num"
	n := new(uint32)
	if err := q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	err := libibverbs.GetSRQNum(q.c, n)
	return *n, wrap(verb, q.name, err)
}

// Modify resizes the queue or arms its limit, as selected by mask. When fewer receives than the limit are left,
// Device.Event returns one IBV_EVENT_SRQ_LIMIT_REACHED. Posts block while the queue is resized. The new size must be at
// least the number of outstanding receives, and the completion queues must have room for it.
//
// C: ibv_modify_srq
//
// Man: ibv_modify_srq(3)
func (q *SRQ) Modify(attr *ibv.SRQAttr, mask ibv.SRQAttrMask) error {
	const verb = "ibv_modify_srq"
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	if attr == nil {
		return noAttributes(verb, q.name)
	}
	if mask&ibv.SRQ_MAX_WR == 0 {
		return q.notModified(attr, mask, libibverbs.ModifySRQ(q.c, attr, mask))
	}
	return q.queue.resizeWith(int(attr.MaxWR), func(outstanding int) error {
		switch {
		case attr.MaxWR == 0:
			return invalid(verb, q.name, "the new size is 0; it must be at least 1")
		case outstanding > int(attr.MaxWR):
			return invalid(verb, q.name, "%d receives are outstanding, more than the new size of %d", outstanding,
				attr.MaxWR)
		}
		old := q.size.Load()
		if err := q.takeRoom(attr.MaxWR, false); err != nil {
			q.takeRoom(old, true)
			return wrap(verb, q.name, err)
		}
		if err := libibverbs.ModifySRQ(q.c, attr, mask); err != nil {
			q.takeRoom(old, true)
			return q.notModified(attr, mask, err)
		}
		return nil
	})
}

// takeRoom changes the room reserved for the queue in all of its completion queues. It stops at the first one without
// enough room; the caller then restores the old size.
func (q *SRQ) takeRoom(size uint32, force bool) (err error) {
	q.size.Store(size) // first, so that completion queues of new queue pairs use the new depth
	q.device.objects.each(func(o any) {
		if cq, ok := o.(*CQ); ok && err == nil {
			err = cq.resizeSRQ(q, int(size)+q.tags, force)
		}
	})
	return err
}

// Query returns the queue's attributes.
//
// C: ibv_query_srq
//
// Man: ibv_query_srq(3)
func (q *SRQ) Query() (*ibv.SRQAttr, error) {
	const verb = "ibv_query_srq"
	attr := new(ibv.SRQAttr)
	if err := q.use(verb); err != nil {
		return attr, err
	}
	defer q.done()
	err := wrap(verb, q.name, libibverbs.QuerySRQ(q.c, attr))
	return attr, cmp.Or(err, q.native.misuse(verb, q.name))
}

// Close destroys the queue. Close its queue pairs first. Unused receives are discarded without completions. Remaining
// completions can still be polled, except those of tag matching by libmlx5: poll them before Close.
//
// C: ibv_destroy_srq
//
// Man: ibv_create_srq(3)
func (q *SRQ) Close() error { return q.end() }

// notModified adds the verb, the object and the reason, if known, to the error of a change.
func (q *SRQ) notModified(attr *ibv.SRQAttr, mask ibv.SRQAttrMask, err error) error {
	return wrap("ibv_modify_srq", q.name, q.device.refused().ModifySRQ(attr, mask, q.size.Load(), err))
}

// PostTags posts a batch of operations on the tag list. posted is the number of operations that were posted: all of
// them or, with an error, those before the one that failed. ENOMEM means that the list, or the queue of operations, is
// full (max_num_tags and max_ops of tm_cap). PostTags does not block. Any number of goroutines may post at once, each
// with its own batch. The memory of a tag's entries belongs to the device until a message has arrived or the tag is
// deleted.
//
// The error is a [*PostError], or a [*VerbError] if the queue rejects all posts.
//
// C: ibv_post_srq_ops
//
// Man: ibv_post_srq_ops(3)
func (q *SRQ) PostTags(b *TagBatch) (posted int, err error) {
	const verb = "ibv_post_srq_ops"
	if err := q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	if b == nil {
		return 0, isNil(verb, q.name, "batch")
	}
	posted, err = postTags(q.c, q.kind, q.name, q.limits, b)
	if e := (*PostError)(nil); err != nil && !errors.As(err, &e) {
		err = wrap(verb, q.name, err)
	}
	return posted, err
}
