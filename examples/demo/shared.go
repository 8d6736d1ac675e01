// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// share creates a peer's shared receive queue of the operation's type, and attaches it in the attributes of the peer's
// queue pair.
func (s *stage) share(p *peer, attr *ibv.QPInitAttrEx) (err error) {
	const depth = 2 * batch
	if s.op.srq == ibv.SRQT_BASIC {
		srq, err := p.pd.CreateSRQ(ibv.SRQAttr{MaxWR: depth, MaxSGE: 1}, rdma.QueueOptions{})
		if p.srq, err = keep(s, srq, err); err != nil {
			return err
		}
		attr.SRQ = p.srq.Ptr()
		return nil
	}
	with := &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: depth, MaxSGE: 1}, SRQType: s.op.srq, PD: p.pd.Ptr(), CQ: p.recv.Ptr(),
		TMCap:    ibv.TMCap{MaxNumTags: depth, MaxOps: depth},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ,
	}
	if s.op.srq == ibv.SRQT_XRC {
		x, err := p.device.OpenXRCD(&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS,
			FD: -1, Oflags: syscall.O_CREAT})
		if x, err = keep(s, x, err); err != nil {
			return err
		}
		with.XRCD, with.CompMask = x.Ptr(), with.CompMask|ibv.SRQ_INIT_ATTR_XRCD
		*attr = ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: x.Ptr(), CompMask: ibv.QP_INIT_ATTR_XRCD}
	} else {
		with.CompMask |= ibv.SRQ_INIT_ATTR_TM
	}
	srq, err := p.device.CreateSRQEx(with, rdma.QueueOptions{})
	if p.srq, err = keep(s, srq, err); err != nil {
		return err
	}
	if s.op.srq == ibv.SRQT_XRC {
		s.srqn, err = p.srq.Num()
		return err
	}
	attr.SRQ = p.srq.Ptr()
	tags, err := rdma.NewTagBatch(batch, 1)
	s.tags, err = keep(s, tags, err)
	return err
}

// A tagged message begins with a header: the type of message, a number for the peer's program, and the tag. In a
// message that announces data (rendezvous), the location of the data follows. The peer's device reads the data and then
// sends a message.
const (
	tagHeader = 16
	announces = 32 // both headers
	fin       = stride - announces
)

// tagged fills memory with tagged messages.
func tagged(op ibv.TMHOp) func(s *stage, seed int) {
	return func(s *stage, seed int) {
		pattern(&s.a, seed)
		clear(s.b.mr.Bytes())
		for i := range batch {
			b := s.a.bytes(i, announces)
			clear(b[:tagHeader])
			b[0] = byte(op)
			binary.BigEndian.PutUint64(b[8:], uint64(i)) // the tag
			if op == ibv.TMH_RNDV {
				binary.BigEndian.PutUint64(b[16:], s.a.mr.Address()+uint64(i*stride+announces))
				binary.BigEndian.PutUint32(b[24:], s.a.mr.RKey())
				binary.BigEndian.PutUint32(b[28:], uint32(s.op.bytes))
			}
		}
	}
}

// expect posts a buffer for each tag, the last tag first.
func (s *stage) expect() error {
	s.tags.Reset()
	for i := batch - 1; i >= 0; i-- {
		at := s.b.mr.SGE(uint64(i*stride), uint32(s.op.bytes))
		s.tags.AddTag(uint64(i), uint64(i), uint64(i), ^uint64(0)).SGE(at.Addr, at.Length, at.LKey)
	}
	_, err := s.b.srq.PostTags(s.tags)
	return err
}

// checkMatched checks that each message's data is in the buffer of its tag. The data starts after the message's header.
func checkMatched(from int) func(s *stage) error {
	return func(s *stage) error {
		for i := range batch {
			got, want := s.b.bytes(i, s.op.bytes), s.a.bytes(i, from+s.op.bytes)[from:]
			if !bytes.Equal(got, want) || bytes.Count(want, []byte{0}) > 2 {
				return fmt.Errorf("tag %d: got %x, want %x", i, got, want)
			}
			if end := s.a.bytes(i, stride)[fin:]; from == announces && ibv.TMHOp(end[0]) != ibv.TMH_FIN {
				return fmt.Errorf("tag %d: the rendezvous ended with %x", i, end)
			}
		}
		return nil
	}
}
