// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// Engine is what the queue pairs of a fabric share. The fabric's lock guards it, unless noted otherwise: the poster
// executes all ready work under it, including the receiving side. So posts cannot deadlock, whichever queue pairs are
// involved, and events have one order.
type Engine struct {
	Core
	recovery
	traced  bool                      // where objects are made is noted; it does not change
	exact   bool                      // Options.ExactCaps
	failed  atomic.Bool               // an allocation was made to fail, and that was not queried yet
	polled  atomic.Pointer[roce.Wire] // outer
	numbers numbers.Table[numbered]
	gids    map[[16]byte]*Port
	moves   uint64             // changes of addressOf results, from 1 on
	groups  map[[16]byte][]*QP // of multicast
	wire    wire.Wire
	plain   bool // wire is the one in memory, and nothing over it
	faulty  *faulty.Wire
	outer   *roce.Wire // leads to other fabrics; nil if no device speaks to them
	lost    uint64     // messages, but for those that faulty loses
	lives   uint64     // of queue pairs, until now

	// Of the request that is sent, and of the one that is carried out.
	to, from, framed [maxSGE + 1]segment
	header           [grhSize]byte
	read             [1]segment // data of a read's answer
	data             [1]segment
	original         uint64     // that an atomic found
	headers          tagHeaders // of the message that matches tags
}

// numbered is an object with a number: one of the two.
type numbered struct {
	qp  *QP
	srq *SRQ
}

// start makes the engine ready, without a wire. It needs no lock: the engine is not shared yet.
func (e *Engine) start(virtual bool) {
	e.gids, e.moves, e.groups = map[[16]byte]*Port{}, 1, map[[16]byte][]*QP{}
	e.acked.L, e.overran, e.send = &e.mu, e.overrun, e.sendAndUnlock
	e.clock.Init(virtual, e.due)
}

// newLife returns a number that distinguishes a created or reset queue pair from its earlier incarnations.
func (e *Engine) newLife() uint64 {
	e.lives++
	return e.lives
}

// qpOf is the queue pair that has a number, or nil.
func (e *Engine) qpOf(number uint32) *QP { return e.numbers.Get(number).qp }

// srqOf is the shared receive queue that has a number, or nil.
func (e *Engine) srqOf(number uint32) *SRQ { return e.numbers.Get(number).srq }

// lose counts a message that does not arrive, if it is one of a connection.
func (e *Engine) lose(m *message.Request) {
	if m.Transport != ibv.QPT_UD {
		e.lost++
	}
}

// overrun breaks the queue pairs whose completions have no place any more.
func (e *Engine) overrun(c *CQ) {
	for _, object := range e.numbers.All() {
		if q := object.qp; q != nil && q.completesIn(c) && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.report(ibv.EVENT_QP_FATAL)
			q.setState(ibv.QPS_ERR)
		}
	}
}

// idle is called by a goroutine without work: it reads the sockets, or advances a virtual clock to the next timer, and
// reports whether there was anything. It needs no lock: it takes it for the rest.
func (e *Engine) idle() bool {
	if w := e.polled.Load(); w != nil && w.Poll() {
		return true
	}
	return e.step()
}
