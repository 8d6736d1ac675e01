// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"math/bits"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

func (l *fifo[T]) len() int    { return len(l.all) - l.done }
func (l *fifo[T]) first() *T   { return &l.all[l.done] }
func (l *fifo[T]) last() *T    { return &l.all[len(l.all)-1] }
func (l *fifo[T]) at(i int) *T { return &l.all[l.done+i] }
func (l *fifo[T]) add(v T)     { l.all = append(l.all, v) }
func (l *fifo[T]) reset()      { l.all, l.done = nil, 0 }

// drop removes the first element.
func (l *fifo[T]) drop() {
	if l.done++; l.done == len(l.all) {
		l.all, l.done = l.all[:0], 0
	}
}

func (q *QP) count(c counters.Counter) { q.Port.Counts[c]++ }

// Refused reports whether a table entry forbids the operation.
func Refused(v ibv.Validity) bool { return v.Answer == ibv.AnswerNo || v.Answer == ibv.AnswerNotInVerb }

// completes returns the completion queue of a receive.
func (q *QP) completes(s *resource.SRQ) *resource.CQ {
	if s != nil && s.CQ != nil {
		return s.CQ
	}
	return q.RecvCQ
}

// orphaned reports whether the taken receive belongs to a destroyed shared receive queue, as can happen with XRC.
func (p *part) orphaned() bool { return p.srq != nil && p.srq.Gone }

// giveBack frees the slot of the taken receive, without a completion.
func (p *part) giveBack() {
	if p.Held && p.srq != nil && !p.orphaned() {
		p.recvs.Retire(p.position, 1)
	}
	p.Held = false
}

// PSNMask are the bits of a packet sequence number.
const PSNMask = 1<<24 - 1

// Start initializes a queue pair, whose attributes are set, with a number and in RESET.
func (q *QP) Start(number uint32) {
	q.Number = number
	q.reliable, q.ExpectsOf = q.Kind != ibv.QPT_UC && q.Kind != ibv.QPT_UD, q.Kind
	switch {
	case q.Kind == ibv.QPT_XRC_RECV:
		q.ExpectsOf = ibv.QPT_XRC_SEND
	case q.Dynamic != nil:
		q.ExpectsOf, q.Dynamic.connections = dynamicTransport, map[initiator]*QP{}
	}
	q.renew()
	size := uint32(1) << bits.Len32(max(q.Cap.MaxSendWR, 1)-1)
	q.ring, q.mask = make([]Request, size), size-1
	sges, most := make([]ibv.SGE, size*q.Cap.MaxSendSGE), q.Cap.MaxSendSGE
	q.inline = make([]byte, size*q.Cap.MaxInlineData)
	for i := range q.ring {
		q.ring[i].SGEs, sges = sges[:0:most], sges[most:]
		if n := int(q.Cap.MaxInlineData); n > 0 {
			q.ring[i].data = mem.AddressOf(&q.inline[i*n])
		}
	}
	if q.SRQ == nil && q.Kind != ibv.QPT_XRC_RECV && q.Kind != ibv.QPT_XRC_SEND {
		q.Recvs = resource.NewRecvQueue(q.Protects, q.Cap.MaxRecvWR, q.Cap.MaxRecvSGE, false)
	}
	q.retry.fire = q.timeout
}
