// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

const (
	batch  = 16  // requests that are posted together; the last one is signaled
	stride = 128 // bytes between the data of consecutive requests
)

// peer is one end of the connection.
type peer struct {
	device     *rdma.Device
	pd         *rdma.PD
	send, recv *rdma.CQ
	srq        *rdma.SRQ // nil if receives are not shared
	qp         *rdma.QP
	mr         *rdma.MR
}

// stage holds two connected peers and the requests of an operation.
type stage struct {
	op     *operation
	a, b   peer
	ah     *rdma.AH // from a to b, for datagrams
	window *rdma.MW // of a, or of b if a message invalidates it
	sends  *rdma.SendBatch
	binds  *rdma.SendBatch // of b
	recvs  *rdma.RecvBatch
	built  *rdma.WRProgram // replaces sends if the operation uses a WRProgram
	tags   *rdma.TagBatch  // of b, replaces recvs
	srqn   uint32          // number of b's shared receive queue, for XRC
	wcs    []ibv.WC
	undo   []func() error
}

// keep registers an object that close will close.
func keep[T interface{ Close() error }](s *stage, v T, err error) (T, error) {
	if err == nil {
		s.undo = append(s.undo, v.Close)
	}
	return v, err
}

// close closes the objects in reverse order of creation.
func (s *stage) close() (err error) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, s.undo[i]())
	}
	return err
}

// open creates the peers and prepares the work.
func (s *stage) open(o *options, op *operation) (err error) {
	s.op, s.wcs = op, make([]ibv.WC, batch)
	if err = s.peer(&s.a, o.device, false); err != nil {
		return err
	}
	if err = s.peer(&s.b, o.peer, op.shared); err != nil {
		return err
	}
	var ends [2]rdma.Endpoint
	for i, p := range []*peer{&s.a, &s.b} {
		if ends[i], err = p.qp.Endpoint(); err != nil {
			return err
		}
	}
	if op.kind == ibv.QPT_UD {
		if err = errors.Join(s.a.qp.Ready(), s.b.qp.Ready()); err != nil {
			return err
		}
		way, err := s.a.qp.Path(ends[1])
		if err != nil {
			return err
		}
		ah, err := s.a.pd.CreateAH(&way)
		if s.ah, err = keep(s, ah, err); err != nil {
			return err
		}
	} else if err = errors.Join(connect(s.a.qp, ends[1], op.access), connect(s.b.qp, ends[0], op.access)); err != nil {
		return err
	}
	if op.count != 0 {
		of := s.a.pd
		if op.receives {
			of = s.b.pd
		}
		mw, err := of.AllocMW(ibv.MW_TYPE_2)
		if s.window, err = keep(s, mw, err); err != nil {
			return err
		}
	}
	sends, err := rdma.NewSendBatch(batch, 1, 64)
	if s.sends, err = keep(s, sends, err); err != nil {
		return err
	}
	binds, err := rdma.NewSendBatch(1, 1, 0)
	if s.binds, err = keep(s, binds, err); err != nil {
		return err
	}
	recvs, err := rdma.NewRecvBatch(op.requests(), 1)
	if s.recvs, err = keep(s, recvs, err); err != nil {
		return err
	}
	for i := range op.requests() {
		at := s.b.mr.SGE(uint64(i*stride), stride)
		if op.fetches {
			at = s.a.mr.SGE(uint64(i*stride+fin), announces)
		}
		s.recvs.Recv(uint64(i)).Add(at)
	}
	if op.builds != 0 {
		if s.built, err = s.a.qp.NewWRProgram(); err != nil {
			return err
		}
	}
	return nil
}

// connect connects a queue pair and allows the default access and more.
func connect(qp *rdma.QP, to rdma.Endpoint, more ibv.AccessFlags) error {
	attr, err := qp.ConnectAttr(to)
	if err != nil {
		return err
	}
	attr.QPAccessFlags |= more
	return qp.ConnectWith(attr)
}

// peer creates the objects of a peer.
func (s *stage) peer(p *peer, device string, shared bool) (err error) {
	d, err := rdma.Open(device)
	if p.device, err = keep(s, d, err); err != nil {
		return err
	}
	pd, err := p.device.AllocPD()
	if p.pd, err = keep(s, pd, err); err != nil {
		return err
	}
	for _, cq := range []**rdma.CQ{&p.send, &p.recv} {
		made, err := p.device.CreateCQ(8*batch, nil, 0)
		if *cq, err = keep(s, made, err); err != nil {
			return err
		}
	}
	attr := &ibv.QPInitAttrEx{
		QPType: s.op.kind, SendCQ: p.send.Ptr(), RecvCQ: p.recv.Ptr(), PD: p.pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD,
		Cap: ibv.QPCap{MaxSendWR: 2 * batch, MaxRecvWR: 2 * batch, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
	}
	if shared {
		if err = s.share(p, attr); err != nil {
			return err
		}
	}
	if s.op.builds != 0 {
		attr.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
		attr.SendOpsFlags = s.op.builds
	}
	qp, err := p.device.CreateQPEx(attr, rdma.QueueOptions{})
	if p.qp, err = keep(s, qp, err); err != nil {
		return err
	}
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
		ibv.ACCESS_MW_BIND | s.op.access
	mr, err := p.pd.RegMR(make([]byte, batch*stride), access)
	p.mr, err = keep(s, mr, err)
	return err
}

// prepare fills memory and prepares the requests.
func (s *stage) prepare(seed int) error {
	if s.op.prepare != nil {
		s.op.prepare(s, seed)
	} else {
		pattern(&s.a, seed)
		clear(s.b.mr.Bytes())
	}
	return s.fill()
}

// fill prepares the requests; the last one is signaled.
func (s *stage) fill() error {
	n := s.op.requests()
	if s.op.build != nil {
		s.built.Reset()
		for i := range n {
			flags := ibv.SendFlags(0)
			if i == n-1 {
				flags = ibv.SEND_SIGNALED
			}
			s.op.build(s, i, flags)
		}
		return s.built.Err()
	}
	s.sends.Reset()
	s.binds.Reset()
	for i := range n {
		if r := s.op.request(s, i); i == n-1 {
			r.Signaled()
		}
	}
	return errors.Join(s.sends.Err(), s.binds.Err())
}

// posted returns the number of requests of a round.
func (s *stage) posted() int {
	if s.built != nil {
		return s.built.Len()
	}
	return s.sends.Len()
}

// round posts one round of requests and waits for all their completions.
func (s *stage) round() error {
	if err := s.receive(); err != nil {
		return err
	}
	if s.binds.Len() > 0 {
		if _, err := s.b.qp.PostSend(s.binds); err != nil {
			return err
		}
		if err := poll(s.b.send, s, 1); err != nil {
			return err
		}
	}
	if s.built != nil {
		if err := s.a.qp.PostProgram(s.built); err != nil {
			return err
		}
	} else if _, err := s.a.qp.PostSend(s.sends); err != nil {
		return err
	}
	if s.op.receives {
		if err := poll(s.b.recv, s, s.op.requests()); err != nil {
			return err
		}
	}
	if s.op.fetches {
		if err := errors.Join(poll(s.b.recv, s, s.op.requests()), poll(s.a.recv, s, s.op.requests())); err != nil {
			return err
		}
	}
	if s.window != nil {
		s.window.SetRKey(s.window.NextRKey())
	}
	return poll(s.a.send, s, 1)
}

// checkData checks the data until it is correct, for a limited time. A write over an unreliable connection is not
// acknowledged, so its data may arrive after its completion.
func (s *stage) checkData() error {
	err := s.op.check(s)
	for end := time.Now().Add(time.Second); err != nil && s.op.kind == ibv.QPT_UC && !s.op.receives &&
		time.Now().Before(end); err = s.op.check(s) {
		time.Sleep(time.Millisecond)
	}
	return err
}

// receive posts receives.
func (s *stage) receive() error {
	post := s.b.qp.PostRecv
	switch {
	case !s.op.receives:
		return nil
	case s.tags != nil:
		if err := s.expect(); err != nil || !s.op.fetches {
			return err
		}
		post = s.a.qp.PostRecv
	case s.b.srq != nil:
		post = s.b.srq.PostRecv
	}
	_, err := post(s.recvs)
	return err
}

// // bytes returns the part of a peer's memory that belongs to a request. For datagrams, it starts after the header.
func (p *peer) bytes(i, n int) []byte { return p.mr.Bytes()[i*stride:][:n] }

// remote returns the address of a request's memory at the other peer, and its key.
func (s *stage) remote(i int) (address uint64, rkey uint32) {
	return s.b.mr.Address() + uint64(i*stride), s.b.mr.RKey()
}

func (s *stage) local(i int) ibv.SGE { return s.a.mr.SGE(uint64(i*stride), uint32(s.op.bytes)) }
