// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// objects are the objects that an ID has created, including completion queues that attributes did not name.
type objects struct {
	owner    *owner
	qp       *rdma.QP
	srq      *rdma.SRQ
	cqs      [3]*rdma.CQ // indexed by side
	channels [3]*rdma.CompChannel
}

// Sides: sends, receives, and the XRC shared receive queue.
const (
	ofSends = iota
	ofRecvs
	ofSRQ
)

// owner is the ID through which C destroys the objects. Retry changes it.
type owner struct{ atomic.Pointer[ID] }

func (o *owner) destroyQP(qp *ibv.QP) error    { return o.Load().destroyQP(qp) }
func (o *owner) destroySRQ(srq *ibv.SRQ) error { return o.Load().destroySRQ(srq) }

// CreateQP creates the ID's queue pair. For connections, receives may be posted at once; Accept and Connect move the
// queue pair to RTS, and sends may be posted after Accept has returned or RDMA_CM_EVENT_ESTABLISHED has arrived. For
// datagrams, the queue pair is ready for use.
//
// A nil pd means [ID.PD]. attr names completion queues of the ID's device by their Ptr methods; the ID creates the
// others, with a channel and sufficient size. If attr names no shared receive queue, the ID's is used. The default type
// is RC for RDMA_PS_TCP and UD for RDMA_PS_UDP. A zero Cap means that of rdma.QPParts: 64 sends and 64 receives with
// one entry each.
//
// C: rdma_create_qp
//
// Man: rdma_create_qp(3)
func (id *ID) CreateQP(pd *rdma.PD, attr *ibv.QPInitAttr, o rdma.QueueOptions) (*rdma.QP, error) {
	if attr == nil {
		return nil, id.noAttributes("rdma_create_qp")
	}
	ex := &ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
	}
	if pd != nil {
		ex.CompMask, ex.PD = ibv.QP_INIT_ATTR_PD, ibv.PtrTo(pd.C())
	}
	return id.createQP("rdma_create_qp", ex, o)
}

// CreateQPEx is CreateQP for any kind of queue pair; the CompMask of attr selects its valid fields.
//
// C: rdma_create_qp_ex
//
// Man: rdma_create_qp(3)
func (id *ID) CreateQPEx(attr *ibv.QPInitAttrEx, o rdma.QueueOptions) (*rdma.QP, error) {
	if attr == nil {
		return nil, id.noAttributes("rdma_create_qp_ex")
	}
	own := *attr
	return id.createQP("rdma_create_qp_ex", &own, o)
}

func (id *ID) noAttributes(verb string) error { return id.invalid(verb, "the attributes are nil") }

// createQP creates the queue pair. It may change attr.
func (id *ID) createQP(verb string, attr *ibv.QPInitAttrEx, o rdma.QueueOptions) (*rdma.QP, error) {
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	s, err := id.share()
	if err != nil {
		return nil, id.failed(verb, err)
	}
	id.changes.Lock()
	defer id.changes.Unlock()
	id.objects.forget()
	if id.c.QP != 0 || id.objects.qp != nil {
		return nil, verberr.Invalid(verb, id.name(), "already has a queue pair")
	}
	if err := id.verbs.close(); err != nil {
		return nil, err
	}
	if err := id.objects.closeCQs(); err != nil {
		return nil, err
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.QP_INIT_ATTR_PD, ibv.PtrTo(s.pd.C())
	}
	if attr.SRQ == 0 && id.objects.srq != nil {
		attr.SRQ = id.objects.srq.Ptr()
	}
	if attr.QPType == 0 {
		attr.QPType = id.c.QPType
	}
	if attr.Cap == (ibv.QPCap{}) {
		attr.Cap = rdma.DefaultCap(attr.QPType, attr.SRQ != 0)
	}
	made, err := id.objects.createCQs(s.device, attr)
	if err != nil {
		return nil, id.failed(verb, err)
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = id.maxMessage(s, attr.QPType)
	}
	wanted := o.Overcommit
	o.Overcommit = o.Overcommit || made // growCQs resizes the new queues below
	qp, err := s.device.CreateQPBy(verb, attr, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) {
		if err := id.createQPInC(own); err != nil {
			return nil, err
		}
		return id.c.QP.Deref(), nil
	}, id.objects.owner.destroyQP)
	if err != nil {
		return nil, errors.Join(err, id.objects.closeCQs())
	}
	if !wanted {
		if err := id.objects.growCQs(qp.Cap()); err != nil {
			return nil, errors.Join(id.failed(verb, err), qp.Close(), id.objects.closeCQs())
		}
	}
	id.objects.qp = qp
	return qp, nil
}

// createQPInC creates the queue pair in C, which then sets it in its ID. Events change the queue pair only after an attempt
// to connect or to join a group, so other goroutines may take events until then.
func (id *ID) createQPInC(attr *ibv.QPInitAttrEx) error {
	id.record.Lock()
	defer id.record.Unlock()
	if id.attempted.Load() {
		defer id.lockCalls().Unlock()
	}
	return librdmacm.CreateQPEx(id.c, attr)
}

// destroyQP destroys the queue pair in C. It first clears it in C's ID, because C uses it when it takes events, so that
// other goroutines may take events during the slow destruction. rdma_destroy_qp does the same for an ID without
// completion queues of C, but does not report a failure.
func (id *ID) destroyQP(qp *ibv.QP) error {
	id.setQP(0)
	err := libibverbs.DestroyQP(qp)
	if err == nil {
		return nil
	}
	id.setQP(ibv.PtrTo(qp))
	id.mu.Lock()
	defer id.mu.Unlock()
	reason := ""
	if errors.Is(err, syscall.EBUSY) && len(id.groups) > 0 {
		reason = "attached to a multicast group: leave the group first"
	}
	return verberr.Explain("ibv_destroy_qp", "", reason, err)
}

// setQP sets the queue pair in C's ID.
func (id *ID) setQP(qp ibv.Ptr[ibv.QP]) {
	_ = id.alter(func() error { id.c.QP = qp; return nil })
}

// maxMessage returns the maximum message size of the ID's port in bytes, or 0 if unknown.
func (id *ID) maxMessage(s *sharedDevice, kind ibv.QPType) uint32 {
	if kind != ibv.QPT_UD {
		return s.maxMessage(id.c.PortNum)
	}
	port, err := s.device.Port(id.c.PortNum)
	if err != nil {
		return 0
	}
	return uint32(rdma.MTUBytes(port.ActiveMTU)) // not cached, because it changes
}

// createCQs creates the completion queues that attr does not name.
func (o *objects) createCQs(d *rdma.Device, attr *ibv.QPInitAttrEx) (made bool, err error) {
	if attr.QPType == ibv.QPT_XRC_RECV {
		return false, nil
	}
	sides := [2]struct {
		named *ibv.Ptr[ibv.CQ]
		depth uint32
	}{{&attr.SendCQ, attr.Cap.MaxSendWR}, {&attr.RecvCQ, attr.Cap.MaxRecvWR}}
	for i, side := range sides {
		if *side.named != 0 {
			continue
		}
		if err := o.createCQ(d, i, side.depth); err != nil {
			return made, errors.Join(err, o.closeCQs())
		}
		*side.named, made = o.cqs[i].Ptr(), true
	}
	return made, nil
}

func (o *objects) createCQ(d *rdma.Device, side int, depth uint32) (err error) {
	if o.channels[side], err = d.CreateCompChannel(); err == nil {
		o.cqs[side], err = d.CreateCQ(max(int(depth), 1), o.channels[side], 0)
	}
	return err
}

// growCQs resizes the completion queues to the queue pair's capacity, which may exceed the requested one.
func (o *objects) growCQs(cap ibv.QPCap) error {
	for i, depth := range [2]uint32{cap.MaxSendWR, cap.MaxRecvWR} {
		if cq := o.cqs[i]; cq != nil && cq.Len() < int(depth) {
			if err := cq.Resize(int(depth)); err != nil {
				return err
			}
		}
	}
	return nil
}

// closeCQs closes the completion queues that the ID created for its queue pair, and their channels.
func (o *objects) closeCQs() error { return o.closeSides(ofSends, ofRecvs) }

func (o *objects) closeSides(sides ...int) error {
	err := rdma.CloseAll(nil, o.completions(sides...)...)
	if err == nil {
		for _, i := range sides {
			o.cqs[i], o.channels[i] = nil, nil
		}
	}
	return err
}

func (o *objects) completions(sides ...int) (all []rdma.Object) {
	for _, i := range sides {
		if o.cqs[i] != nil {
			all = append(all, o.cqs[i])
		}
	}
	for _, i := range sides {
		if o.channels[i] != nil {
			all = append(all, o.channels[i])
		}
	}
	return all
}

// forget removes closed objects. An object that C is still destroying counts as closed, although that may fail.
func (o *objects) forget() {
	if o.qp != nil && o.qp.C() == nil {
		o.qp = nil
	}
	if o.srq != nil && o.srq.C() == nil {
		o.srq = nil
	}
}

// all returns all objects, children first.
func (o *objects) all() (all []rdma.Object) {
	if o.qp != nil {
		all = append(all, o.qp)
	}
	if o.srq != nil {
		all = append(all, o.srq)
	}
	return append(all, o.completions(ofSends, ofRecvs, ofSRQ)...)
}

// QP returns the ID's queue pair, or nil. It may be closed before the ID; then CreateQP can create another one.
//
// C: rdma_destroy_qp
//
// Man: rdma_create_qp(3)
func (id *ID) QP() *rdma.QP {
	id.changes.Lock()
	defer id.changes.Unlock()
	return id.objects.qp
}

// InitQPAttr returns the attributes and mask that move a queue pair that the ID does not manage to the given state.
// Pass them to rdma.QP.Modify.
//
// C: rdma_init_qp_attr
//
// Man: rdma_init_qp_attr(3)
func (id *ID) InitQPAttr(state ibv.QPState) (*ibv.QPAttr, ibv.QPAttrMask, error) {
	attr, mask := &ibv.QPAttr{QPState: state}, new(int32)
	err := id.call("rdma_init_qp_attr", func() error { return librdmacm.InitQPAttr(id.c, attr, mask) },
		errnoReason{syscall.EINVAL,
			"attributes for INIT need a device, and those for RTR and RTS a peer; other states are not supported"})
	return attr, ibv.QPAttrMask(*mask), err
}
