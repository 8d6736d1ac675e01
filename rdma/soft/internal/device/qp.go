// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
)

func (l *fifo[T]) len() int    { return len(l.all) - l.done }
func (l *fifo[T]) first() *T   { return &l.all[l.done] }
func (l *fifo[T]) last() *T    { return &l.all[len(l.all)-1] }
func (l *fifo[T]) at(i int) *T { return &l.all[l.done+i] }
func (l *fifo[T]) add(v T)     { l.all = append(l.all, v) }
func (l *fifo[T]) reset()      { l.all, l.done = nil, 0 }

func (l *fifo[T]) drop() {
	if l.done++; l.done == len(l.all) {
		l.all, l.done = l.all[:0], 0
	}
}

func (q *QP) count(c counters.Counter) { q.port.counts[c]++ }

// refused reports whether a table entry forbids the operation.
func refused(v ibv.Validity) bool { return v.Answer == ibv.AnswerNo || v.Answer == ibv.AnswerNotInVerb }

// completes is the completion queue that a receive completes in.
func (q *QP) completes(s *SRQ) *CQ {
	if s != nil && s.cq != nil {
		return s.cq
	}
	return q.recvCQ
}

// orphaned reports whether the receive that was taken is of a destroyed shared receive queue, as can happen with XRC.
func (p *part) orphaned() bool { return p.srq != nil && p.srq.gone }

// giveBack frees the slot of the receive that was taken, without a completion.
func (p *part) giveBack() {
	if p.held && p.srq != nil && !p.orphaned() {
		p.recvs.Retire(p.position, 1)
	}
	p.held = false
}

// psnMask are the bits of a packet sequence number.
const psnMask = 1<<24 - 1
