// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// Sizes of a connection's queues and memory. Devices round depths up to powers of two, so the depths are powers of two
// minus the slot that package rdma adds. Peers in C also have 1,024 receives.
const (
	recvDepth   = 1023
	sendDepth   = 63
	signalEvery = 8 // one of this many sends is signaled
	inline      = 64
	stagingSize = 256 << 10
	maxPiece    = stagingSize / 4
	pieces      = 2 // pieces of the memory for the peer
)

// link holds the RDMA objects of a connection. Each connection has its own protection domain, so that no peer can write
// to memory of another connection by guessing its key.
type link struct {
	pd      *rdma.PD
	channel *rdma.CompChannel
	cq      *rdma.CQ
	qp      *rdma.QP

	ring    *rdma.Buffer // memory for the peer
	own     *rdma.Buffer // memory of receives, then of commands to send, then staging
	ringMR  *rdma.MR
	ownMR   *rdma.MR
	sends   *rdma.SendBatch
	recvs   *rdma.RecvBatch
	inline  int    // maximum inline data of a request in bytes
	staging []byte // the part of own for data that is being sent
}

// Offsets of the parts of own.
const (
	commandsAt = recvDepth * commandSize
	stagingAt  = commandsAt + sendDepth*commandSize
)

// open creates the objects of a connection and posts all receives. The ID must have a device.
func (l *link) open(id *cm.ID, buffer int) error {
	device, err := id.Device()
	if err != nil {
		return err
	}
	if l.pd, err = device.AllocPD(); err != nil {
		return err
	}
	if l.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	if l.cq, err = device.CreateCQ(sendDepth+recvDepth+2, l.channel, 0); err != nil {
		return err
	}
	l.qp, err = id.CreateQP(l.pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: l.cq.Ptr(), RecvCQ: l.cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: sendDepth, MaxRecvWR: recvDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: inline},
	}, rdma.QueueOptions{})
	if err != nil {
		return err
	}
	l.inline = int(min(l.qp.Cap().MaxInlineData, inline))
	if err := l.register(buffer); err != nil {
		return err
	}
	for slot := range uint64(recvDepth) {
		l.addRecv(slot)
	}
	return l.postRecvs()
}

// register allocates and registers the memory, and prepares the requests that use it.
func (l *link) register(buffer int) (err error) {
	if l.ring, err = rdma.NewBuffer(buffer, rdma.MapOptions{}); err != nil {
		return err
	}
	if l.own, err = rdma.NewBuffer(stagingAt+stagingSize, rdma.MapOptions{}); err != nil {
		return err
	}
	l.staging = l.own.Bytes()[stagingAt:]
	if l.ringMR, err = l.pd.RegBuffer(l.ring, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE); err != nil {
		return err
	}
	if l.ownMR, err = l.pd.RegBuffer(l.own, ibv.ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	if l.sends, err = rdma.NewSendBatch(1, 1, inline); err != nil {
		return err
	}
	l.recvs, err = rdma.NewRecvBatch(recvDepth, 1)
	return err
}

// close releases the objects that open has created.
func (l *link) close() error {
	var all []error
	closeIf(&all, l.qp) // nil objects were not created
	closeIf(&all, l.ringMR)
	closeIf(&all, l.ownMR)
	closeIf(&all, l.ring)
	closeIf(&all, l.own)
	closeIf(&all, l.sends)
	closeIf(&all, l.recvs)
	closeIf(&all, l.cq)
	closeIf(&all, l.channel)
	closeIf(&all, l.pd)
	return errors.Join(all...)
}

func closeIf[T any, P interface {
	*T
	Close() error
}](all *[]error, object P) {
	if object != nil {
		*all = append(*all, object.Close())
	}
}

// A wr_id is the number of a send, or the slot of a receive with this bit.
const recvBit = 1 << 63

func (l *link) addRecv(slot uint64) {
	l.recvs.Recv(recvBit | slot).Add(l.ownMR.SGE(slot*commandSize, commandSize))
}

// postRecvs posts the receives of the batch.
func (l *link) postRecvs() error {
	if l.recvs.Len() == 0 {
		return nil
	}
	_, err := l.qp.PostRecv(l.recvs)
	l.recvs.Reset()
	return err
}

// command returns the message received in a slot.
func (l *link) command(slot uint64, length uint32) []byte {
	return l.own.Bytes()[slot*commandSize:][:min(length, commandSize):commandSize]
}
