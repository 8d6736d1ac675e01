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

// CreateQP creates a queue pair in state RESET. The completion queues and the shared receive queue are set in attr with
// their Ptr methods; o may be zero. Cap returns the capacities: the requested number of work requests, and perhaps more
// entries and inline bytes. If a completion queue has no room for the completions, the error is ENOMEM, unless
// o.Overcommit is set. If the device lacks a capacity, the error is EINVAL and names it.
//
// C: ibv_create_qp
//
// Man: ibv_create_qp(3)
func (p *PD) CreateQP(attr *ibv.QPInitAttr, o QueueOptions) (*QP, error) {
	return p.createQP("ibv_create_qp", attr, o,
		func(own *ibv.QPInitAttr) (*ibv.QP, error) { return libibverbs.CreateQP(p.c, own) })
}

// createQP is CreateQP with any function that takes its attributes.
func (p *PD) createQP(verb string, attr *ibv.QPInitAttr, o QueueOptions,
	create func(own *ibv.QPInitAttr) (*ibv.QP, error)) (*QP, error) {
	if attr == nil {
		return nil, noAttributes(verb, p.name)
	}
	q := &QP{device: p.device, pd: p, endC: libibverbs.DestroyQP}
	in := qpInit{verb: verb, parent: p.name, kind: attr.QPType, cap: attr.Cap, all: attr.SQSigAll != 0,
		sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ}
	in.lacks, in.misses = refusal.MissingCQ(attr, false), refusal.MissingDomain(attr.QPType, true, false)
	return made(q, q.create(&in, o, []*object{&p.object}, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
		own := *attr
		own.Cap = cap
		c, err := create(&own)
		return c, own.Cap, err
	}))
}

// CreateQPEx creates a queue pair of any kind. Objects are set in attr with their Ptr methods, and CompMask selects its
// valid fields. With IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, a [WRProgram] can post requests, and a checked queue rejects
// operations that are not in SendOpsFlags, also in batches.
//
// C: ibv_create_qp_ex, ibv_qp_to_qp_ex
//
// Man: ibv_create_qp_ex(3)
func (d *Device) CreateQPEx(attr *ibv.QPInitAttrEx, o QueueOptions) (*QP, error) {
	return d.createQPEx("ibv_create_qp_ex", attr, o,
		func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libibverbs.CreateQPEx(d.c, own) }, libibverbs.DestroyQP)
}

// createQPEx is CreateQPEx with any function that takes its attributes, such as those of providers.
func (d *Device) createQPEx(verb string, attr *ibv.QPInitAttrEx, o QueueOptions,
	create func(own *ibv.QPInitAttrEx) (*ibv.QP, error), destroy func(*ibv.QP) error) (*QP, error) {
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	q := &QP{device: d, endC: destroy}
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
		o.onlyOperations(attr.SendOpsFlags)
	}
	queues := &ibv.QPInitAttr{QPType: attr.QPType, Cap: attr.Cap, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ}
	in.lacks = refusal.MissingCQ(queues, attr.CompMask&ibv.QP_INIT_ATTR_IND_TABLE != 0)
	in.misses = refusal.MissingDomain(attr.QPType, q.pd != nil, attr.CompMask&ibv.QP_INIT_ATTR_XRCD != 0)
	return made(q, q.create(&in, o, parents, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
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

// OpenQP opens the XRC_RECV queue pair of another process, with the number in attr. Set XRCD with [XRCD.Ptr].
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
	q := &QP{device: d, endC: libibverbs.DestroyQP}
	in := qpInit{verb: verb, parent: d.name, kind: attr.QPType}
	return made(q, q.create(&in, QueueOptions{}, []*object{&x.object}, func(cap ibv.QPCap) (*ibv.QP, ibv.QPCap, error) {
		c, err := libibverbs.OpenQP(d.c, attr)
		return c, cap, err
	}))
}

// qpInit holds the parameters common to all ways to create a queue pair.
type qpInit struct {
	verb, parent   string
	kind           ibv.QPType
	cap            ibv.QPCap
	all            bool // every send request has a completion
	flags          ibv.QPCreateFlags
	sendCQ, recvCQ ibv.Ptr[ibv.CQ]
	srq            ibv.Ptr[ibv.SRQ]
	lacks          string    // a required attribute that is missing, or ""
	misses         string    // an attribute that is missing and may be required, or ""
	made           ibv.QPCap // capacities that C returned
}

// create creates the queue pair, with slots for the markers of a drain if the device has room for them, and its queues.
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
		if cq != nil && !slices.Contains(parents, &cq.object) { // a queue for both directions is one parent
			parents = append(parents, &cq.object)
		}
	}
	q.options, q.kind, q.lastWQE = o, in.kind, new(occasion)
	q.life.Hooks = life.Hooks{Wake: q.ends.set, Stop: q.refusePosts, Revive: q.notDestroyed,
		Settle: q.drainForClose}
	o.SQSigAll = in.all
	undo := func() {}
	creating := func() (*ibv.QP, error) {
		if in.lacks != "" {
			return nil, invalid(in.verb, in.parent, "%s", in.lacks)
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
			q.native.destroy(func() error { return q.endC(c) })
			return nil, err
		}
		return c, nil
	}
	name := func(c *ibv.QP) string { return fmt.Sprintf("QP %#x (%s)", c.QPNum, refusal.ShortName(in.kind)) }
	// Errors name the last parent, which therefore is the domain: createObject puts the device first.
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

// createC requests one more slot in each queue than the user did. If the device refuses, it requests the user's
// capacities.
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
			q.endC(c)
			return true
		}
		return nil, q.device.refused().QP(in.kind, in.misses, in.cap, try, err)
	}
	in.made = got
	// Capacities beyond the request are not used, because users count the room in completion queues by their own
	// numbers.
	got.MaxSendWR = min(got.MaxSendWR-min(got.MaxSendWR, hidden.MaxSendWR), in.cap.MaxSendWR)
	got.MaxRecvWR = min(got.MaxRecvWR-min(got.MaxRecvWR, hidden.MaxRecvWR), in.cap.MaxRecvWR)
	if in.srq != 0 {
		got.MaxRecvWR, got.MaxRecvSGE = 0, 0
	}
	q.cap, o.Cap = got, got
	return c, nil
}

// makeNative creates the path of the queue pair if the Path in its options owns queues.
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
		func(m datapath.Maker) (datapath.Queue, error) { return m.QP(q.c, in.made, in.all, in.flags) })
	return err
}

// announceToMakers announces queue pairs that C posts to, to Makers that write queues of the same device, in either
// order of creation. Each side is registered before it looks for the other.
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
	d.objects.each(func(o any) { // objects in the registry are not destroyed during each
		if p, ok := o.(*QP); ok && p.native == nil && p.send != nil {
			m.Beside(p.c)
		}
	})
}

// makeQueues creates the queues of a queue pair that C has created.
func (q *QP) makeQueues(in *qpInit, o *QueueOptions) (err error) {
	if q.cap.MaxSendWR > 0 && q.sendCQ != nil { // queue pairs of some provider-specific types have neither
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

// admit reserves room in the completion queues, and registers the queues there.
func (q *QP) admit() (undo func(), err error) {
	sends, recvs := int(q.cap.MaxSendWR), int(q.cap.MaxRecvWR)
	undo = func() {
		q.retireFrom(q.sendCQ, sends, nil)
		q.retireFrom(q.recvCQ, recvs, q.srq)
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
			q.retireFrom(q.sendCQ, sends, nil)
			return func() {}, err
		}
	}
	q.track()
	return undo, nil
}

// track registers the queues in the completion queues, under the number that their completions have.
func (q *QP) track() {
	recv := q.recv
	if q.srq != nil {
		recv = q.srq.queue
	}
	send := q.send
	if q.options.Unchecked { // nothing is counted
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

// retireFrom releases room in a completion queue.
func (q *QP) retireFrom(cq *CQ, n int, srq *SRQ) {
	if cq != nil {
		cq.dismiss(n, srq)
	}
}

// leave releases the room in both completion queues.
func (q *QP) leave() {
	q.retireFrom(q.sendCQ, int(q.cap.MaxSendWR), nil)
	q.retireFrom(q.recvCQ, int(q.cap.MaxRecvWR), q.srq)
}
