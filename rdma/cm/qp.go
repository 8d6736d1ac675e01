package cm

import (
	"errors"
	"net/netip"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

// objects are what an ID has made; the completion queues are those that it made because nobody named any.
type objects struct {
	qp       *rdma.QP
	srq      *rdma.SRQ
	cqs      [2]*rdma.CQ // of sends and of receives
	channels [2]*rdma.CompChannel
}

// CreateQP makes the ID's queue pair, in the state in which receives may be posted, or ready for use with datagrams. pd is nil for [ID.PD].
// attr names completion queues of the ID's device by their Ptr methods; for each that it does not name the ID makes one with a channel,
// large enough for the queue pair. The queue pair takes the ID's shared receive queue when attr names none. Accept and Connect bring it to
// RTS: sends may be posted when Accept has returned, or RDMA_CM_EVENT_ESTABLISHED has come.
//
// C: rdma_create_qp
//
// Man: rdma_create_qp(3)
func (id *ID) CreateQP(pd *rdma.PD, attr *ibv.QPInitAttr, o rdma.QueueOptions) (*rdma.QP, error) {
	ex := &ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap, QPType: attr.QPType, SQSigAll: attr.SQSigAll,
	}
	if pd != nil {
		ex.CompMask, ex.PD = ibv.QP_INIT_ATTR_PD, ibv.PtrTo(pd.C())
	}
	return id.createQP("rdma_create_qp", ex, o)
}

// CreateQPEx is CreateQP of any kind of queue pair; attr says in CompMask which of its members count.
//
// C: rdma_create_qp_ex
//
// Man: rdma_create_qp(3)
func (id *ID) CreateQPEx(attr *ibv.QPInitAttrEx, o rdma.QueueOptions) (*rdma.QP, error) {
	own := *attr
	return id.createQP("rdma_create_qp_ex", &own, o)
}

// createQP may change attr.
func (id *ID) createQP(verb string, attr *ibv.QPInitAttrEx, o rdma.QueueOptions) (*rdma.QP, error) {
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	s, err := id.share()
	if err != nil {
		return nil, wrapOnce(verb, id.name(), err)
	}
	id.changes.Lock()
	defer id.changes.Unlock()
	if id.c.QP != 0 {
		return nil, invalid(verb, id.name(), "it has a queue pair already")
	}
	id.objects.qp = nil // closed by its user
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
	made, err := id.objects.makeCQs(s.device, attr)
	if err != nil {
		return nil, wrapOnce(verb, id.name(), err)
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = id.maxMessage(s.device, attr.QPType)
	}
	wanted := o.Overcommit
	o.Overcommit = o.Overcommit || made // they grow below
	qp, err := s.device.CreateQPBy(verb, attr, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) {
		if err := librdmacm.CreateQPEx(id.c, own); err != nil {
			return nil, err
		}
		return id.c.QP.Deref(), nil
	}, id.destroyQP)
	if err != nil {
		return nil, errors.Join(err, id.objects.closeCQs())
	}
	if !wanted {
		if err := id.objects.growCQs(qp.Cap()); err != nil {
			return nil, errors.Join(wrapOnce(verb, id.name(), err), qp.Close(), id.objects.closeCQs())
		}
	}
	id.objects.qp = qp
	return qp, nil
}

// destroyQP destroys the queue pair in C, which works on it when it takes events. rdma_destroy_qp does the same for an ID that made no
// completion queues in C, but does not say that it failed.
func (id *ID) destroyQP(qp *ibv.QP) error {
	id.mu.Lock()
	ch, joined := id.channel, len(id.groups)
	id.mu.Unlock()
	ch.calls.Lock()
	defer ch.calls.Unlock()
	if err := libibverbs.DestroyQP(qp); err != nil {
		reason := ""
		if errors.Is(err, ebusy) && joined > 0 {
			reason = "a multicast group has it, which has to be left first"
		}
		return explain("ibv_destroy_qp", "", reason, err)
	}
	id.c.QP = 0
	return nil
}

// destroySRQ is the same for a shared receive queue.
func (id *ID) destroySRQ(srq *ibv.SRQ) error {
	if err := libibverbs.DestroySRQ(srq); err != nil {
		return err
	}
	id.c.SRQ = 0
	return nil
}

// maxMessage is the most bytes of a message on the ID's port, or 0 when that is not known.
func (id *ID) maxMessage(d *rdma.Device, kind ibv.QPType) uint32 {
	port, err := d.Port(id.c.PortNum)
	switch {
	case err != nil:
		return 0
	case kind == ibv.QPT_UD:
		return uint32(rdma.MTUBytes(port.ActiveMTU))
	}
	return port.MaxMsgSz
}

// makeCQs makes the completion queues that attr does not name.
func (o *objects) makeCQs(d *rdma.Device, attr *ibv.QPInitAttrEx) (made bool, err error) {
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
		if o.channels[i], err = d.CreateCompChannel(); err != nil {
			return made, errors.Join(err, o.closeCQs())
		}
		if o.cqs[i], err = d.CreateCQ(max(int(side.depth), 1), o.channels[i], 0); err != nil {
			return made, errors.Join(err, o.closeCQs())
		}
		*side.named, made = o.cqs[i].Ptr(), true
	}
	return made, nil
}

// growCQs makes room for what the queue pair can hold, which may be more than was asked for.
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

func (o *objects) closeCQs() (err error) {
	for i := range o.cqs {
		if o.cqs[i] != nil {
			if err := o.cqs[i].Close(); err != nil {
				return err
			}
			o.cqs[i] = nil
		}
		if o.channels[i] != nil {
			if err := o.channels[i].Close(); err != nil {
				return err
			}
			o.channels[i] = nil
		}
	}
	return nil
}

// QP is the ID's queue pair, or nil. It may be closed before the ID, which makes room for another one.
//
// C: rdma_destroy_qp
//
// Man: rdma_create_qp(3)
func (id *ID) QP() *rdma.QP {
	id.changes.Lock()
	defer id.changes.Unlock()
	return id.objects.qp
}

// SRQ is the ID's shared receive queue, or nil.
func (id *ID) SRQ() *rdma.SRQ {
	id.changes.Lock()
	defer id.changes.Unlock()
	return id.objects.srq
}

// CreateSRQ makes the ID's shared receive queue, which queue pairs that the ID makes then take. pd is nil for [ID.PD].
//
// C: rdma_create_srq
//
// Man: rdma_create_srq(3)
func (id *ID) CreateSRQ(pd *rdma.PD, attr ibv.SRQAttr, o rdma.QueueOptions) (*rdma.SRQ, error) {
	ex := &ibv.SRQInitAttrEx{Attr: attr, CompMask: ibv.SRQ_INIT_ATTR_TYPE, SRQType: ibv.SRQT_BASIC}
	if pd != nil {
		ex.CompMask, ex.PD = ex.CompMask|ibv.SRQ_INIT_ATTR_PD, ibv.PtrTo(pd.C())
	}
	return id.createSRQ("rdma_create_srq", ex, o)
}

// CreateSRQEx is CreateSRQ of any kind; attr says in CompMask which of its members count. One of XRC names its completion queue and its
// domain.
//
// C: rdma_create_srq_ex
//
// Man: rdma_create_srq(3)
func (id *ID) CreateSRQEx(attr *ibv.SRQInitAttrEx, o rdma.QueueOptions) (*rdma.SRQ, error) {
	own := *attr
	return id.createSRQ("rdma_create_srq_ex", &own, o)
}

func (id *ID) createSRQ(verb string, attr *ibv.SRQInitAttrEx, o rdma.QueueOptions) (*rdma.SRQ, error) {
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	s, err := id.share()
	if err != nil {
		return nil, wrapOnce(verb, id.name(), err)
	}
	id.changes.Lock()
	defer id.changes.Unlock()
	if id.c.SRQ != 0 {
		return nil, invalid(verb, id.name(), "it has a shared receive queue already")
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.SRQ_INIT_ATTR_PD, ibv.PtrTo(s.pd.C())
	}
	srq, err := s.device.CreateSRQBy(verb, attr, o, func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error) {
		if err := librdmacm.CreateSRQEx(id.c, own); err != nil {
			return nil, err
		}
		return id.c.SRQ.Deref(), nil
	}, id.destroySRQ)
	if err != nil {
		return nil, err
	}
	id.objects.srq = srq
	return srq, nil
}

// closeObjects leaves all groups, and closes what the ID made.
func (id *ID) closeObjects() error {
	for {
		id.mu.Lock()
		var group netip.AddrPort
		for group = range id.groups {
			break
		}
		id.mu.Unlock()
		if !group.IsValid() {
			break
		}
		if err := id.leave(group); err != nil {
			return wrap("rdma_leave_multicast", "ID", err)
		}
	}
	id.changes.Lock()
	defer id.changes.Unlock()
	o := &id.objects
	if o.qp != nil {
		if err := o.qp.Close(); err != nil {
			return err
		}
		o.qp = nil
	}
	if o.srq != nil {
		if err := o.srq.Close(); err != nil {
			return err
		}
		o.srq = nil
	}
	if err := id.verbs.close(); err != nil {
		return err
	}
	return o.closeCQs()
}

// InitQPAttr gives the attributes, and which of them count, that take a queue pair which the ID does not know to a state, of those that
// attr.QPState names: for who moves it there with rdma.QP.Modify.
//
// C: rdma_init_qp_attr
//
// Man: rdma_init_qp_attr(3)
func (id *ID) InitQPAttr(state ibv.QPState) (*ibv.QPAttr, ibv.QPAttrMask, error) {
	attr, mask := &ibv.QPAttr{QPState: state}, new(int32)
	err := id.call("rdma_init_qp_attr", func() error { return librdmacm.InitQPAttr(id.c, attr, mask) })
	return attr, ibv.QPAttrMask(*mask), err
}

// SetLocalECE proposes options to the peer, for an ID without a queue pair of its own.
//
// C: rdma_set_local_ece
//
// Man: rdma_set_local_ece(3)
func (id *ID) SetLocalECE(ece *ibv.ECE) error {
	return id.call("rdma_set_local_ece", func() error { return librdmacm.SetLocalECE(id.c, ece) })
}

// RemoteECE is the options that the peer proposed, of an ID without a queue pair of its own.
//
// C: rdma_get_remote_ece
//
// Man: rdma_get_remote_ece(3)
func (id *ID) RemoteECE() (*ibv.ECE, error) {
	ece := new(ibv.ECE)
	err := id.call("rdma_get_remote_ece", func() error { return librdmacm.GetRemoteECE(id.c, ece) })
	return ece, err
}

// option sets an option to a value.
func option[T any](id *ID, level, name int, value T) error {
	v := &value
	return id.call("rdma_set_option", func() error {
		return librdmacm.SetOption(id.c, level, name, uintptr(unsafe.Pointer(v)), uint64(unsafe.Sizeof(*v)))
	})
}

// SetToS sets the type of service of what the ID connects: with RoCE and iWARP, of its IP packets (DSCP << 2). Before the route is resolved.
//
// C: rdma_set_option, RDMA_OPTION_ID_TOS
//
// Man: rdma_set_option(3)
func (id *ID) SetToS(tos uint8) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_TOS, tos)
}

// SetReuseAddr lets others bind to the ID's address, too, if they say the same. Before it is bound.
//
// C: rdma_set_option, RDMA_OPTION_ID_REUSEADDR
//
// Man: rdma_set_option(3)
func (id *ID) SetReuseAddr(reuse bool) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_REUSEADDR, truth(reuse))
}

// SetAFOnly lets a listener take only the family of its address: IPv6 without IPv4. Before it is bound.
//
// C: rdma_set_option, RDMA_OPTION_ID_AFONLY
//
// Man: rdma_set_option(3)
func (id *ID) SetAFOnly(only bool) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_AFONLY, truth(only))
}

func truth(set bool) int32 {
	if set {
		return 1
	}
	return 0
}

// SetAckTimeout sets how long the queue pair waits for an acknowledgement before it sends again: 4.096 µs · 2^exponent, up to 31; 0 is for
// ever. Before the connection is made.
//
// C: rdma_set_option, RDMA_OPTION_ID_ACK_TIMEOUT
//
// Man: rdma_set_option(3)
func (id *ID) SetAckTimeout(exponent uint8) error {
	if exponent > 31 { // which the kernel takes, for what it is not
		return invalid("rdma_set_option", id.name(), "an ACK timeout of %d: it is 31 at most", exponent)
	}
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_ACK_TIMEOUT, exponent)
}

// SetIBPath sets the paths that ResolveRoute would find, on InfiniBand: RDMA_CM_EVENT_ROUTE_RESOLVED follows.
//
// C: rdma_set_option, RDMA_OPTION_IB_PATH
//
// Man: rdma_set_option(3)
func (id *ID) SetIBPath(paths []rdmacm.IBVPathData) error {
	const verb = "rdma_set_option"
	if len(paths) == 0 {
		return invalid(verb, id.name(), "there are no paths")
	}
	return id.call(verb, func() error {
		return librdmacm.SetOption(id.c, rdmacm.OPTION_IB, rdmacm.OPTION_IB_PATH, uintptr(unsafe.Pointer(&paths[0])), uint64(len(paths))*uint64(unsafe.Sizeof(paths[0])))
	})
}
