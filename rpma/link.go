// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// link holds the objects of one side of a connection. A ConnRequest owns it first, and then its Conn.
type link struct {
	peer    *Peer
	id      *cm.ID
	events  *cm.EventChannel
	channel *rdma.CompChannel // shared by both queues, or nil
	cq, rcq *CQ               // rcq belongs to the connection or the shared receive queue, or is nil
	qp      *rdma.QP
	srq     *SRQ
	sends   sends
	recvs   recvs
}

// newLink takes over an ID that has a device, and moves it to its own event channel.
func newLink(op string, p *Peer, id *cm.ID, config *ConnConfig) (*link, error) {
	l := &link{peer: p, id: id, srq: config.SRQ}
	if err := l.open(config); err != nil {
		return nil, l.closeAfter(op, err)
	}
	return l, nil
}

func (l *link) open(config *ConnConfig) error {
	device, err := l.id.Device()
	if err != nil {
		return err
	}
	if own := l.peer.device; device != own.Device {
		return &Error{Op: "Peer", Code: ErrInvalid, Reason: fmt.Sprintf("the route to the other side uses device %s, "+
			"but the peer uses %s", device.Name(), own.Name())}
	}
	if l.events, err = l.peer.device.manager.createEventChannel(); err != nil {
		return err
	}
	if err = l.id.Migrate(l.events); err != nil {
		return err
	}
	return l.createQueues(config)
}

func (l *link) createQueues(config *ConnConfig) (err error) {
	device := l.peer.device.Device
	if config.SharedChannel {
		if l.channel, err = device.CreateCompChannel(); err != nil {
			return err
		}
	}
	if l.cq, err = newCQ(device, config.CQSize, l.channel); err != nil {
		return err
	}
	recvCQ := l.cq
	if config.RecvCQSize > 0 {
		if l.rcq, err = newCQ(device, config.RecvCQSize, l.channel); err != nil {
			return err
		}
		recvCQ = l.rcq
	} else if l.srq != nil && l.srq.cq != nil {
		l.rcq, recvCQ = l.srq.cq, l.srq.cq
	}
	pd := l.peer.pd.Ptr()
	if pd == 0 { // otherwise CreateQP would use the ID's default PD
		return closed("Peer")
	}
	attr := &ibv.QPInitAttrEx{
		SendCQ: l.cq.cq.Ptr(), RecvCQ: recvCQ.cq.Ptr(), QPType: ibv.QPT_RC, PD: pd,
		CompMask: ibv.QP_INIT_ATTR_PD,
		Cap: ibv.QPCap{MaxSendWR: uint32(config.SQSize), MaxRecvWR: uint32(config.RQSize), MaxSendSGE: 1,
			MaxRecvSGE: 1, MaxInlineData: atomicWriteSize},
	}
	if l.srq != nil {
		if attr.SRQ = l.srq.srq.Ptr(); attr.SRQ == 0 { // closed: the queue pair would get its own receive queue
			return closed("SRQ")
		}
	}
	if l.peer.nativeFlush {
		attr.SendOpsFlags |= ibv.QP_EX_WITH_FLUSH
	}
	if l.peer.nativeAtomicWrite {
		attr.SendOpsFlags |= ibv.QP_EX_WITH_ATOMIC_WRITE
	}
	if attr.SendOpsFlags != 0 { // an extended queue pair must list all of its operations
		attr.SendOpsFlags |= ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_RDMA_WRITE |
			ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM
		attr.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	}
	if l.qp, err = l.id.CreateQPEx(attr, rdma.QueueOptions{}); err != nil {
		return err
	}
	if err = l.recvs.init(); err != nil {
		return err
	}
	return l.sends.init(l, config.SQSize)
}

// param returns librpma's connection parameters: the device's maximum number of outstanding reads, flow control, 7
// retries, and unlimited RNR retries.
func param() *rdmacm.ConnParam {
	p := cm.DefaultConnParam()
	p.FlowControl = 1
	return &p
}

// close closes everything. If it fails, it can be called again and continues where it stopped. Closing the objects ends
// waits for the link's completions and events; the functions ended wait for other users of the completion queues.
func (l *link) close(ended ...func() error) error {
	if err := l.id.Close(); err != nil { // disconnects, and closes the queue pair
		return err
	}
	for _, side := range ended {
		if err := side(); err != nil {
			return err
		}
	}
	if l.events != nil {
		if err := l.events.Close(); err != nil {
			return err
		}
	}
	objects := l.cq.objects()
	if l.srq == nil || l.rcq != l.srq.cq {
		objects = append(objects, l.rcq.objects()...)
	}
	if l.channel != nil {
		objects = append(objects, l.channel)
	}
	if err := rdma.CloseAll(nil, objects...); err != nil {
		return err
	}
	l.recvs.close()
	return l.sends.close()
}

// closeAfter closes the link after an error, and returns both errors.
func (l *link) closeAfter(op string, err error) error {
	if also := l.close(); also != nil {
		err = errors.Join(err, also)
	}
	return failed(op, err)
}

// unanswered closes the link of a request that could not be answered. It returns err, or nil if the peer has withdrawn
// the request.
func (l *link) unanswered(op string, err error) error {
	if l.id.Reject(nil) == nil { // the peer is still waiting
		return l.closeAfter(op, err)
	}
	logWarn("peer withdrew its request", "error", err)
	return failed(op, l.close())
}
