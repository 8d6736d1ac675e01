// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// CreateQP creates a queue pair in state RESET. Set the completion queues and the shared receive queue in attr with
// their Ptr methods; o may be zero. Cap returns the capacities: the requested number of work requests, and perhaps more
// entries and inline bytes. If a completion queue has no room for the completions and o.Overcommit is not set, the
// error is ENOMEM. If a capacity exceeds the device's limit, the error is EINVAL and names the capacity.
//
// C: ibv_create_qp
//
// Man: ibv_create_qp(3)
func (p *PD) CreateQP(attr *ibv.QPInitAttr, o QueueOptions) (*QP, error) {
	return p.createQP("ibv_create_qp", attr, o,
		func(own *ibv.QPInitAttr) (*ibv.QP, error) { return libibverbs.CreateQP(p.c, own) })
}

// createQP is CreateQP with another function to create the queue pair in C.
func (p *PD) createQP(verb string, attr *ibv.QPInitAttr, o QueueOptions,
	create func(own *ibv.QPInitAttr) (*ibv.QP, error)) (*QP, error) {
	if attr == nil {
		return nil, noAttributes(verb, p.name)
	}
	q := &QP{device: p.device, pd: p, destroyFunc: libibverbs.DestroyQP}
	in := qpInit{verb: verb, parent: p.name, kind: attr.QPType, cap: attr.Cap, all: attr.SQSigAll != 0,
		sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ}
	in.missing, in.maybeMissing = refusal.MissingCQ(attr, false), refusal.MissingDomain(attr.QPType, true, false)
	return orError(q, q.create(&in, o, []*object{&p.object}, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
		own := *attr
		own.Cap = cap
		c, err := create(&own)
		return c, own.Cap, err
	}))
}

// CreateQPEx creates a queue pair of any type. Set objects in attr with their Ptr methods. CompMask selects the valid
// fields. With IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, a [WRProgram] can post requests, and a checked queue rejects operations
// that are not in SendOpsFlags, in batches as well.
//
// C: ibv_create_qp_ex, ibv_qp_to_qp_ex
//
// Man: ibv_create_qp_ex(3)
func (d *Device) CreateQPEx(attr *ibv.QPInitAttrEx, o QueueOptions) (*QP, error) {
	return d.createQPEx("ibv_create_qp_ex", attr, o,
		func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libibverbs.CreateQPEx(d.c, own) }, libibverbs.DestroyQP)
}

// createQPEx is CreateQPEx with other functions to create and destroy the queue pair in C, such as those of a provider.
func (d *Device) createQPEx(verb string, attr *ibv.QPInitAttrEx, o QueueOptions,
	create func(own *ibv.QPInitAttrEx) (*ibv.QP, error), destroy func(*ibv.QP) error) (*QP, error) {
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	q := &QP{device: d, destroyFunc: destroy}
	var parents []*object
	var err error
	if attr.CompMask&ibv.QP_INIT_ATTR_PD != 0 {
		if q.pd, err = named[PD](d, verb, d.name, "PD", uintptr(attr.PD)); err != nil {
			return nil, err
		}
		parents = append(parents, &q.pd.object)
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_XRCD != 0 {
		x, err := named[XRCD](d, verb, d.name, "XRCD", uintptr(attr.XRCD))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &x.object)
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_IND_TABLE != 0 {
		t, err := named[RWQIndTable](d, verb, d.name, "RWQIndTbl", uintptr(attr.RWQIndTbl))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &t.object)
	}
	in := qpInit{verb: verb, parent: d.name, kind: attr.QPType, cap: attr.Cap, all: attr.SQSigAll != 0,
		sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ}
	if attr.CompMask&ibv.QP_INIT_ATTR_CREATE_FLAGS != 0 {
		in.flags = attr.CreateFlags
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		// providers size their rings for the requested operations (ibv_wr_post(3))
		o.notRequestedOps = ^uint16(attr.SendOpsFlags)
	}
	queues := &ibv.QPInitAttr{QPType: attr.QPType, Cap: attr.Cap, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ}
	in.missing = refusal.MissingCQ(queues, attr.CompMask&ibv.QP_INIT_ATTR_IND_TABLE != 0)
	in.maybeMissing = refusal.MissingDomain(attr.QPType, q.pd != nil, attr.CompMask&ibv.QP_INIT_ATTR_XRCD != 0)
	return orError(q, q.create(&in, o, parents, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
		own := *attr
		own.Cap = cap
		c, err := create(&own)
		if err == nil && attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
			if q.ex, err = libibverbs.QPToQPEx(c); err != nil {
				destroy(c)
			}
		}
		return c, own.Cap, err
	}))
}

// OpenQP opens the XRC_RECV queue pair of another process by its number in attr. Set XRCD with [XRCD.Ptr].
//
// C: ibv_open_qp
//
// Man: ibv_open_qp(3)
func (d *Device) OpenQP(attr *ibv.QPOpenAttr) (*QP, error) {
	const verb = "ibv_open_qp"
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	x, err := named[XRCD](d, verb, d.name, "XRCD", uintptr(attr.XRCD))
	if err != nil {
		return nil, err
	}
	q := &QP{device: d, destroyFunc: libibverbs.DestroyQP}
	in := qpInit{verb: verb, parent: d.name, kind: attr.QPType}
	return orError(q, q.create(&in, QueueOptions{}, []*object{&x.object}, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
		c, err := libibverbs.OpenQP(d.c, attr)
		return c, cap, err
	}))
}

// qpInit holds the parameters of create.
type qpInit struct {
	verb, parent   string
	kind           ibv.QPType
	cap            ibv.QPCap
	all            bool // sq_sig_all: signal every send request
	flags          ibv.QPCreateFlags
	sendCQ, recvCQ ibv.Ptr[ibv.CQ]
	srq            ibv.Ptr[ibv.SRQ]
	missing        string    // a required attribute that is missing, or ""
	maybeMissing   string    // an attribute that is missing and may be required, or ""
	created        ibv.QPCap // capacities that C returned
}

// create creates the queue pair and its queues. It adds slots for the markers of a drain if the device has room for
// them.
func (q *QP) create(in *qpInit, o QueueOptions, parents []*object,
	create func(ibv.QPCap) (*ibv.QP, ibv.QPCap, error)) error {
	d := q.device
	d.pathFor(&o)
	var err error
	if q.sendCQ, err = lookup[CQ](d, in.verb, in.parent, "SendCQ", uintptr(in.sendCQ)); err != nil {
		return err
	}
	if q.recvCQ, err = lookup[CQ](d, in.verb, in.parent, "RecvCQ", uintptr(in.recvCQ)); err != nil {
		return err
	}
	if q.srq, err = lookup[SRQ](d, in.verb, in.parent, "SRQ", uintptr(in.srq)); err != nil {
		return err
	}
	if q.srq != nil {
		if v := ibv.SRQAttachValidity(q.srq.kind, in.kind); refusal.Refused(v) {
			return invalid(in.verb, in.parent, "%s cannot be attached to a queue pair of type %s: %s", q.srq.name,
				refusal.ShortName(in.kind), v.Reason)
		}
		parents = append(parents, &q.srq.object)
	}
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if cq != nil && !slices.Contains(parents, &cq.object) { // the same queue is one parent
			parents = append(parents, &cq.object)
		}
	}
	q.options, q.kind, q.lastWQE = o, in.kind, new(latch)
	q.life.Hooks = life.Hooks{Wake: q.closing.set, Stop: q.refusePosts, Revive: q.reviveAfterFailedClose,
		Settle: q.drainForClose}
	o.SQSigAll = in.all
	undo := func() {}
	creating := func() (*ibv.QP, error) {
		if in.missing != "" {
			return nil, invalid(in.verb, in.parent, "%s", in.missing)
		}
		c, err := q.createC(in, &o, create)
		if err != nil {
			return nil, err
		}
		q.c = c
		if err = q.makeNative(in, &o); err == nil {
			err = q.makeQueues(in, &o)
		}
		if err == nil {
			undo, err = q.admit()
		}
		if err != nil {
			q.native.destroy(func() error { return q.destroyFunc(c) })
			return nil, err
		}
		return c, nil
	}
	name := func(c *ibv.QP) string { return fmt.Sprintf("QP %#x (%s)", c.QPNum, refusal.ShortName(in.kind)) }
	// Errors name the last parent. Move the protection domain there; createObject puts the device first.
	if len(parents) > 1 {
		parents = append(parents[1:], parents[0])
	}
	if err = createObject(d, &q.object, &q.c, q, in.verb, creating, q.destroyC, name, parents...); err != nil {
		undo()
		return err
	}
	q.announceToMakers()
	if q.sends = q.send; q.send == nil {
		q.sends = refusingSendQueue(q.c, q.noSendQueue("ibv_post_send"))
	}
	return nil
}

// createC requests one slot more in each queue than the user, for the marker of a drain. If the device has no room for
// these slots, it requests the user's capacities.
func (q *QP) createC(in *qpInit, o *QueueOptions, create func(ibv.QPCap) (*ibv.QP, ibv.QPCap, error)) (*ibv.QP, error) {
	more := in.cap
	var hidden ibv.QPCap
	if more.MaxSendWR > 0 && more.MaxSendWR < math.MaxUint32 {
		more.MaxSendWR++
		hidden.MaxSendWR = 1
	}
	if more.MaxRecvWR > 0 && more.MaxRecvWR < math.MaxUint32 && in.srq == 0 {
		more.MaxRecvWR++
		hidden.MaxRecvWR = 1
	}
	c, got, err := create(more)
	if hidden != (ibv.QPCap{}) && q.device.refused().NotSoMuch(err) {
		hidden = ibv.QPCap{}
		c, got, err = create(in.cap)
	}
	if err != nil {
		try := func(cap ibv.QPCap) bool {
			c, _, err := create(cap)
			if err != nil {
				return false
			}
			q.destroyFunc(c)
			return true
		}
		return nil, q.device.refused().QP(in.kind, in.maybeMissing, in.cap, try, err)
	}
	in.created = got
	// Do not use capacities beyond the request, because users size completion queues by the numbers that they
	// requested.
	got.MaxSendWR = min(got.MaxSendWR-min(got.MaxSendWR, hidden.MaxSendWR), in.cap.MaxSendWR)
	got.MaxRecvWR = min(got.MaxRecvWR-min(got.MaxRecvWR, hidden.MaxRecvWR), in.cap.MaxRecvWR)
	if in.srq != 0 {
		got.MaxRecvWR, got.MaxRecvSGE = 0, 0
	}
	q.cap, o.Cap = got, got
	return c, nil
}

// makeNative creates the direct queue of the queue pair if its Path writes queues itself.
func (q *QP) makeNative(in *qpInit, o *QueueOptions) (err error) {
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if cq != nil && !cq.native.fits(o.Path) {
			return otherPath(in.verb, in.parent, cq.name)
		}
	}
	if q.srq != nil && !q.srq.native.fits(o.Path) {
		return otherPath(in.verb, in.parent, q.srq.name)
	}
	if q.sendCQ == nil && q.recvCQ == nil {
		return nil // it has no queues
	}
	o.Path, q.native, err = directQueueOf(o.Path,
		func(m datapath.Maker) (datapath.Queue, error) { return m.QP(q.c, in.created, in.all, in.flags) })
	return err
}

// announceToMakers passes each queue pair that C posts to, to each Maker of the device, in either order of creation.
// Each side registers before it looks up the other, so that none is missed.
func (q *QP) announceToMakers() {
	d := q.device
	if q.native == nil {
		if q.send != nil {
			d.makers.Range(func(m, _ any) bool {
				m.(datapath.Maker).Beside(q.c)
				return true
			})
		}
		return
	}
	m := q.native.maker
	if _, known := d.makers.LoadOrStore(m, true); known {
		return
	}
	d.objects.each(func(o any) { // objects are not destroyed while each runs
		if p, ok := o.(*QP); ok && p.native == nil && p.send != nil {
			m.Beside(p.c)
		}
	})
}

// makeQueues creates the send queue and the receive queue.
func (q *QP) makeQueues(in *qpInit, o *QueueOptions) (err error) {
	if q.cap.MaxSendWR > 0 && q.sendCQ != nil { // queue pairs of some provider-specific types have no send queue
		if q.send, err = NewSendQueue(q.c, *o); err != nil {
			return err
		}
		q.send.useLock()
	}
	if q.srq == nil && q.cap.MaxRecvWR > 0 && q.recvCQ != nil {
		if q.recv, err = NewRecvQueue(q.c, *o); err != nil {
			return err
		}
		q.recv.useLock()
	}
	return nil
}

// admit reserves room in the completion queues and registers the queues there.
func (q *QP) admit() (undo func(), err error) {
	sends, recvs := int(q.cap.MaxSendWR), int(q.cap.MaxRecvWR)
	undo = func() {
		q.releaseRoom(q.sendCQ, sends, nil)
		q.releaseRoom(q.recvCQ, recvs, q.srq)
	}
	if q.sendCQ == q.recvCQ && q.sendCQ != nil { // in one step, so that an error names the sum
		if err = q.sendCQ.admit(sends+recvs, q.srq, q.options.Overcommit); err != nil {
			return func() {}, err
		}
		q.track()
		return undo, nil
	}
	if q.sendCQ != nil {
		if err = q.sendCQ.admit(sends, nil, q.options.Overcommit); err != nil {
			return func() {}, err
		}
	}
	if q.recvCQ != nil {
		if err = q.recvCQ.admit(recvs, q.srq, q.options.Overcommit); err != nil {
			q.releaseRoom(q.sendCQ, sends, nil)
			return func() {}, err
		}
	}
	q.track()
	return undo, nil
}

// track registers the queues in the completion queues under the queue pair number of their completions.
func (q *QP) track() {
	recv := q.recv
	if q.srq != nil {
		recv = q.srq.queue
	}
	send := q.send
	if q.options.Unchecked { // an unchecked queue does not count slots
		send = nil
		if q.srq == nil {
			recv = nil
		}
	}
	num, alone := q.c.QPNum, q.srq == nil
	q.num.Store(num)
	switch {
	case q.sendCQ == q.recvCQ && q.sendCQ != nil:
		q.sendCQ.queue.trackAll(num, trackedQueues{Send: send, Recv: recv, NoSRQ: alone})
	default:
		if q.sendCQ != nil {
			q.sendCQ.queue.trackAll(num, trackedQueues{Send: send, Recv: nil, NoSRQ: alone})
		}
		if q.recvCQ != nil {
			q.recvCQ.queue.trackAll(num, trackedQueues{Send: nil, Recv: recv, NoSRQ: alone})
		}
	}
}

// untrack removes the queue pair from the completion queues.
func (q *QP) untrack() {
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if cq != nil {
			cq.queue.Untrack(q.Num())
		}
	}
}

// releaseRoom releases room in a completion queue.
func (q *QP) releaseRoom(cq *CQ, n int, srq *SRQ) {
	if cq != nil {
		cq.dismiss(n, srq)
	}
}

// releaseAllRoom releases the room in both completion queues.
func (q *QP) releaseAllRoom() {
	q.releaseRoom(q.sendCQ, int(q.cap.MaxSendWR), nil)
	q.releaseRoom(q.recvCQ, int(q.cap.MaxRecvWR), q.srq)
}
