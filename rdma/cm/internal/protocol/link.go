// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"errors"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Sizes of a connection's send queue. With the slot that rdma adds for its markers, it is a power of two, to which
// devices round up.
const (
	sendDepth   = 63
	signalEvery = 8  // at least one of this many sends is signalled
	maxInline   = 64 // requested from the device
)

// RecvBit marks the wr_ids of receives.
const RecvBit = 1 << 63

// Link holds the queue pair and the memory of a connection, and the progress of its sends, whatever the protocol.
// Numbers of bytes and messages count from the beginning.
type Link struct {
	Channel *rdma.CompChannel
	CQ      *rdma.CQ
	QP      *rdma.QP
	buffers [2]*rdma.Buffer // one that the peer writes into, and one for sends
	mrs     [2]*rdma.MR
	sends   *rdma.SendBatch
	Recvs   *rdma.RecvBatch
	Inline  int // bytes that a request can carry inline
	note    int // bytes of a control message, at most

	staging []byte // data that is being sent

	Messages   uint64 // sent
	Completed  uint64 // messages whose send has completed
	staged     uint64 // bytes that were copied into staging
	unstaged   uint64 // bytes of staging that are free again
	unsignaled uint64 // bytes that were staged since the last signalled send
	behind     [sendDepth]uint64
}

// Device is where a link is made: an ID that has a device.
type Device interface {
	Device() (*rdma.Device, error)
	PD() (*rdma.PD, error)
	CreateQP(pd *rdma.PD, attr *ibv.QPInitAttr, options rdma.QueueOptions) (*rdma.QP, error)
}

// Options are what a program chooses.
type Options struct {
	Buffer   int // bytes that a side can receive before its program reads them
	BusyPoll time.Duration
	Maps     int // memory that the peer of an RSocket may map
}

// Limits of Buffer.
const (
	MinBuffer = 4 << 10
	MaxBuffer = 1 << 30
)

// stagingPart of the buffer is for sends.
const stagingPart = 2

// demand is what a protocol needs of a link.
type demand struct {
	recvs int // receives that are posted
	sges  int // of a receive
	there int // bytes that the peer writes into
	note  int // bytes of a control message, at most
}

// open creates the queue pair and its memory.
func (l *Link) open(over Device, options Options, want demand) (err error) {
	d, err := over.Device()
	if err != nil {
		return err
	}
	pd, err := over.PD()
	if err != nil {
		return err
	}
	if l.Channel, err = d.CreateCompChannel(); err != nil {
		return err
	}
	if l.CQ, err = d.CreateCQ(sendDepth+want.recvs, l.Channel, 0); err != nil {
		return err
	}
	l.CQ.SetBusyPoll(options.BusyPoll)
	attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: l.CQ.Ptr(), RecvCQ: l.CQ.Ptr(), Cap: ibv.QPCap{
		MaxSendWR: sendDepth, MaxRecvWR: uint32(want.recvs), MaxSendSGE: 1, MaxRecvSGE: uint32(want.sges),
		MaxInlineData: maxInline,
	}}
	// no more is posted than was asked for
	if l.QP, err = over.CreateQP(pd, attr, rdma.QueueOptions{Overcommit: true}); err != nil {
		return err
	}
	l.Inline = int(min(l.QP.Cap().MaxInlineData, maxInline))
	staged := options.Buffer / stagingPart
	if l.note = want.note; l.note > l.Inline {
		staged += sendDepth * l.note
	}
	for i, size := range [2]int{want.there, staged} {
		if l.buffers[i], err = rdma.NewBuffer(size, rdma.MapOptions{}); err != nil {
			return err
		}
		access := ibv.ACCESS_LOCAL_WRITE
		if i == 0 {
			access |= ibv.ACCESS_REMOTE_WRITE
		}
		if l.mrs[i], err = pd.RegBuffer(l.buffers[i], access); err != nil {
			return err
		}
	}
	l.staging = l.buffers[1].Bytes()[:options.Buffer/stagingPart]
	if l.sends, err = rdma.NewSendBatch(1, 1, maxInline); err != nil {
		return err
	}
	l.Recvs, err = rdma.NewRecvBatch(want.recvs, want.sges)
	return err
}

// Stage copies a piece to where postData sends it from. This part of the memory belongs to the writer.
func (l *Link) Stage(piece []byte) { copy(l.staging[l.staged%uint64(len(l.staging)):], piece) }

// data is where a piece is sent from: staging, or the request itself.
func (l *Link) data(w rdma.SendRequest, piece []byte, inline bool) {
	if inline {
		w.Inline(piece)
		return
	}
	r := l.mrs[1].Region()
	w.SGE(r.Address+l.staged%uint64(len(l.staging)), uint32(len(piece)), r.LKey)
	l.staged += uint64(len(piece))
	l.unsignaled += uint64(len(piece))
}

// text is where a control message is sent from: the request itself, or a place of its own behind staging.
func (l *Link) text(w rdma.SendRequest, b []byte) {
	if len(b) <= l.Inline {
		w.Inline(b)
		return
	}
	r := l.mrs[1].Region()
	at := len(l.staging) + int(l.Messages%sendDepth)*l.note
	copy(l.buffers[1].Bytes()[at:], b)
	w.SGE(r.Address+uint64(at), uint32(len(b)), r.LKey)
}

// halfStaged reports whether so much was staged that its sends have to say when it is free again.
func (l *Link) halfStaged() bool { return l.unsignaled >= uint64(len(l.staging))/stagingParts }

// post posts the request in the batch.
func (l *Link) post(w rdma.SendRequest, signaled bool) error {
	if signaled || l.Messages%signalEvery == signalEvery-1 {
		w.Signaled()
		l.unsignaled = 0
	}
	l.behind[l.Messages%sendDepth] = l.staged
	if _, err := l.QP.PostSend(l.sends); err != nil {
		return err
	}
	l.Messages++
	return nil
}

// mayPost reports whether the send queue has a free slot.
func (l *Link) mayPost() bool { return l.Messages-l.Completed < sendDepth }

// SendDone records completed sends.
func (l *Link) SendDone(seq uint64) {
	l.unstaged = l.behind[seq%sendDepth]
	l.Completed = seq + 1
}

// Close releases everything.
func (l *Link) Close() error {
	var all []error
	add := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	if l.QP != nil {
		add(l.QP.Close())
	}
	if l.CQ != nil {
		add(l.CQ.Close())
	}
	if l.Channel != nil {
		add(l.Channel.Close())
	}
	for i := range l.mrs {
		if l.mrs[i] != nil {
			add(l.mrs[i].Close())
		}
		if l.buffers[i] != nil {
			add(l.buffers[i].Close())
		}
	}
	if l.sends != nil {
		add(l.sends.Close())
	}
	if l.Recvs != nil {
		add(l.Recvs.Close())
	}
	return errors.Join(all...)
}
