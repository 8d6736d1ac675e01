// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	goruntime "runtime"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

var errNotNow = errors.New("not now")

// stormActions are the operations that goroutines choose from. Every storm includes the first ones.
var stormActions = []func(s *stormer){
	func(s *stormer) { s.use(func(_ *stormSlot, q *QP) { q.PostSend(s.sends(q)) }) },
	func(s *stormer) {
		s.use(func(_ *stormSlot, q *QP) {
			if q.SRQ() == nil {
				q.PostRecv(s.receives(0))
			} else {
				s.shared(s.srq.PostRecv(s.receives(stormReceives)))
			}
		})
	},
	func(s *stormer) { s.recordCompletions(s.cq().Poll(s.wcs[:1+s.r.IntN(len(s.wcs))])) },
	(*stormer).create,
	(*stormer).connect,

	func(s *stormer) {
		s.move(func(q *QP) {
			q.Modify(&ibv.QPAttr{QPState: []ibv.QPState{ibv.QPS_RESET, ibv.QPS_ERR}[s.r.IntN(2)]}, ibv.QP_STATE)
		})
	},
	func(s *stormer) {
		ctx, cancel := s.timeout()
		defer cancel()
		s.use(func(_ *stormSlot, q *QP) { q.Drain(ctx) })
	},
	func(s *stormer) {
		s.use(func(slot *stormSlot, q *QP) {
			if err := q.Close(); err == nil {
				slot.qp.CompareAndSwap(q, nil)
			} else {
				assert.ErrorIs(s.t, err, ErrInUse)
			}
		})
	},
	func(s *stormer) {
		s.use(func(_ *stormSlot, a *QP) {
			s.use(func(_ *stormSlot, b *QP) { CloseAll(func() error { return errNotNow }, a, b) })
		})
	},
	func(s *stormer) {
		for _, o := range []Object{s.cqs[2], s.cqs[0].channel, s.pds[0]} {
			assert.ErrorIs(s.t, o.Close(), ErrInUse)
		}
	},
	func(s *stormer) {
		s.use(func(_ *stormSlot, q *QP) {
			if p, err := q.NewWRProgram(); err == nil && q.Type() != ibv.QPT_UD {
				for range 1 + s.r.IntN(3) {
					p.Write(s.id(), s.mr.Address(), s.mr.RKey()).Signaled().Inline([]byte("hello"))
				}
				q.PostProgram(p)
			}
		})
	},
	func(s *stormer) {
		s.use(func(_ *stormSlot, q *QP) {
			q.BindMW(s.mw,
				&ibv.MWBind{WRID: s.id(), SendFlags: ibv.SEND_SIGNALED,
					BindInfo: ibv.MWBindInfo{MR: s.mr.Ptr(), Addr: s.mr.Address(), Length: 64,
						MWAccessFlags: ibv.ACCESS_REMOTE_READ}})
		})
	},
	func(s *stormer) {
		s.use(func(_ *stormSlot, q *QP) {
			if q.RecvQueue() != nil && !q.options.Unchecked {
				s.checkFree(q.RecvQueue().Free(), stormDepth)
			}
			s.checkFree(q.SendQueue().Free(), stormDepth)
			s.checkFree(s.srq.Queue().Free(), 64)
			q.State()
			q.Query(ibv.QP_STATE)
			q.Endpoint()
		})
	},
	(*stormer).call,
	func(s *stormer) {
		ctx, cancel := s.timeout()
		defer cancel()
		s.recordCompletions([]func(*CQ, context.Context, []ibv.WC) (int, error){(*CQ).Wait, (*CQ).WaitSolicited,
			(*CQ).WaitBusy}[s.r.IntN(3)](s.cq(), ctx, s.wcs[:1+s.r.IntN(len(s.wcs))]))
	},
	func(s *stormer) {
		found, err := s.cqs[0].PollProgram(s.program)
		assert.NoError(s.t, err)
		for i := range found {
			c := &found[i]
			s.completed(ibv.WC{WRID: c.WRID, Status: c.Status, Opcode: c.Opcode, QPNum: c.QPNum})
		}
	},
	func(s *stormer) { s.cq().Resize(200 + s.r.IntN(200)) },
	func(s *stormer) { s.srq.Modify(&ibv.SRQAttr{MaxWR: uint32(16 + s.r.IntN(48))}, ibv.SRQ_MAX_WR) },
	func(s *stormer) { assert.NoError(s.t, s.cq().ReqNotify(s.chance(2))) },
	func(s *stormer) {
		ctx, cancel := s.timeout()
		defer cancel()
		if e, err := s.device.Event(ctx); err == nil {
			_ = e.String()
		}
	},
	func(s *stormer) {
		mr := must(s.pds[s.r.IntN(2)].RegMR(make([]byte, 64), everyAccess))
		assert.NoError(s.t, mr.Rereg(ibv.REREG_MR_CHANGE_PD, s.pds[s.r.IntN(2)], nil, 0))
		assert.NoError(s.t, mr.Close())
	},
	func(s *stormer) {
		cq := must(s.device.CreateCQ(10, s.cqs[0].channel, 0))
		assert.NoError(s.t, cq.ReqNotify(false))
		assert.NoError(s.t, cq.Close())
	},
	func(s *stormer) { goruntime.Gosched() },
}

func (s *stormer) create() {
	slot := &s.slots[s.r.IntN(len(s.slots))]
	if slot.qp.Load() != nil {
		return
	}
	attr := &ibv.QPInitAttrEx{
		QPType: []ibv.QPType{ibv.QPT_RC, ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}[s.r.IntN(4)],
		SendCQ: s.cqs[s.r.IntN(3)].Ptr(), RecvCQ: s.cqs[s.r.IntN(3)].Ptr(), SQSigAll: int32(s.r.IntN(5) / 4),
		Cap: ibv.QPCap{MaxSendWR: stormDepth, MaxRecvWR: stormDepth, MaxSendSGE: 1, MaxRecvSGE: 1,
			MaxInlineData: 16},
		CompMask: ibv.QP_INIT_ATTR_PD, PD: s.pds[0].Ptr(),
	}
	if s.chance(2) {
		attr.RecvCQ = attr.SendCQ
	}
	if s.chance(2) && attr.QPType != ibv.QPT_UC {
		attr.SRQ = s.srq.Ptr()
	}
	if s.chance(2) && attr.QPType != ibv.QPT_UD {
		attr.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
		attr.SendOpsFlags = ibv.QP_EX_WITH_RDMA_WRITE
	}
	// Moving an unchecked queue pair to RESET does not block posts, which crashes providers.
	unchecked := StormOn == nil && attr.SRQ == 0 && s.chance(6)
	q, err := s.device.CreateQPEx(attr, QueueOptions{Unchecked: unchecked, Overcommit: true})
	if StormOn != nil && attr.SendOpsFlags != 0 && errors.Is(err, ErrNotSupported) { // some providers lack ibv_wr_*
		attr.CompMask, attr.SendOpsFlags = ibv.QP_INIT_ATTR_PD, 0
		q, err = s.device.CreateQPEx(attr, QueueOptions{Unchecked: unchecked, Overcommit: true})
	}
	if assert.NoError(s.t, err) && !slot.qp.CompareAndSwap(nil, q) {
		assert.NoError(s.t, q.Close())
	}
}

func (s *stormer) connect() {
	s.move(func(q *QP) {
		if q.State() != ibv.QPS_RTS {
			q.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE)
		}
		if q.Type() == ibv.QPT_UD {
			q.Ready()
			return
		}
		peer := q
		s.use(func(_ *stormSlot, other *QP) {
			if other.Type() == q.Type() {
				peer = other
			}
		})
		if end, err := peer.Endpoint(); err == nil {
			if attr, err := q.ConnectAttr(end); err == nil {
				attr.Timeout, attr.RetryCnt, attr.RNRRetry, attr.MinRNRTimer = 1, 2, 2, 1
				q.ConnectWith(attr)
			}
		}
	})
}

// call waits for its own request, which may end without a completion, or abandons it.
func (s *stormer) call() {
	s.use(func(_ *stormSlot, q *QP) {
		if q.SendCQ() != s.cqs[2] || q.Type() == ibv.QPT_UD || q.options.Unchecked {
			return
		}
		call, err := s.calls.Begin()
		if err != nil { // too many abandoned calls
			return
		}
		s.send.Reset()
		w := s.send.Write(call.ID(), s.mr.Address(), s.mr.RKey()).Inline([]byte("hello"))
		if !s.chance(3) {
			w.Signaled()
		}
		if _, err := q.PostSend(s.send); err != nil {
			call.Cancel()
			return
		}
		for range 2 {
			ctx, cancel := s.timeout()
			_, err := call.Wait(ctx)
			cancel()
			if err == nil || errors.Is(err, ErrNoCompletion) {
				return
			}
			assert.ErrorIs(s.t, err, context.DeadlineExceeded)
		}
	})
}
