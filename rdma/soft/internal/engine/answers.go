// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// mostAnswers is the maximum number of waiting answers of a queue pair.
const mostAnswers = 256

// answerPackets returns the number of sequence numbers of a request with a response.
func (q *QP) answerPackets(m *message.Request) uint32 {
	switch {
	case q.sender == nil:
		return m.Packets
	case m.Opcode != ibv.WR_RDMA_READ:
		return 1
	}
	return max(q.packets(m), 1)
}

// answer fills in an answer without data.
func (q *QP) answer(m *message.Request, kind message.Kind, s message.Syndrome, psn uint32) *message.Answer {
	a := &q.back
	a.Kind, a.Syndrome, a.PSN, a.Life = kind, s, psn, m.Life
	if a.Data != nil {
		a.Data = nil
	}
	return a
}

// reply returns an answer without data to a peer in memory, and sends one in packets.
func (q *QP) reply(m *message.Request, kind message.Kind, s message.Syndrome, psn uint32) *message.Answer {
	q.answer(m, kind, s, psn)
	return q.sendAnswer(readRange{})
}

// replyData is reply for the response to a request: for a read, the memory that locateRead found.
func (q *QP) replyData(m *message.Request) *message.Answer {
	a, r := q.answer(m, message.ReadData, message.Ack, m.PSN), readRange{}
	if m.Opcode == ibv.WR_RDMA_READ && m.Length > 0 {
		a.Data, r = q.On.read[:], readRange{remote: m.Remote, rkey: m.RKey, length: m.Length}
	}
	return q.sendAnswer(r)
}

// sendAnswer returns the answer in back to a peer in memory, or sends it in packets, for a read with the memory in
// Engine.read. A long response is sent in parts, so that it does not delay others and a peer cannot fill any amount of
// memory with it. Later answers wait for its last part.
func (q *QP) sendAnswer(r readRange) *message.Answer {
	a := &q.back
	if q.sender == nil {
		return a
	}
	a.Transport, a.PKey, a.MTU, a.Continues, a.More = q.ExpectsOf, q.Out.PKey, 128<<q.Attr.PathMTU, false, false
	a.Count = q.Receiver.Count
	if q.Port.Down {
		return nil
	}
	if q.answers.len() > 0 {
		if q.answers.len() < mostAnswers {
			kept := *a
			kept.Data = nil
			q.answers.add(waiting{kept, r})
		}
		return nil
	}
	if rest, more := q.sendReading(r); more {
		q.answers.add(rest)
		q.answerSoon()
	}
	return nil
}

// sendReading sends the answer in back, or its next part, and returns the rest.
func (q *QP) sendReading(r readRange) (rest waiting, more bool) {
	a, f := &q.back, q.On
	n := mostPackets * uint64(a.MTU)
	if r.length <= n {
		f.Wire.Answer(a)
		return rest, false
	}
	a.More, f.read[0].Length = true, n
	f.Wire.Answer(a)
	rest = waiting{*a, readRange{r.remote + n, r.rkey, r.length - n}}
	later := &rest.answer
	later.Data, later.Continues, later.More, later.PSN = nil, true, false, transport.Next(a.PSN, mostPackets)
	return rest, true
}

func (q *QP) answerSoon() { q.On.Clock.After(0, q.answerWaiting) }

// answerWaiting sends the first waiting answer, or a part of it. If its memory is unmapped by then, the sender repeats
// the request and gets an error. The caller holds Core.Mu.
func (q *QP) answerWaiting() {
	if q.arriving == nil || q.answers.len() == 0 {
		return
	}
	if q.Port.Down || !q.receives() {
		q.answers.reset()
		return
	}
	next := *q.answers.first()
	var rest waiting
	more := false
	q.On.attempt(func() {
		q.back = next.answer
		if r := next.reading; r.length > 0 {
			m := message.Request{Remote: r.remote, RKey: r.rkey}
			from, ok := q.remote(&m, r.length, ibv.ACCESS_REMOTE_READ)
			if !ok {
				return
			}
			q.On.read[0] = from
			q.back.Data = q.On.read[:]
		}
		rest, more = q.sendReading(next.reading)
	})
	if more {
		*q.answers.first() = rest
	} else {
		q.answers.drop()
	}
	if q.answers.len() > 0 {
		q.answerSoon()
	}
}
