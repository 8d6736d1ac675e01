// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// mostAnswers is the maximum number of answers that a queue pair queues.
const mostAnswers = 256

// answerPackets returns the number of sequence numbers used by a request that is answered with data.
func (q *QP) answerPackets(m *message.Request) uint32 {
	switch {
	case q.sender == nil:
		return m.Packets
	case m.Opcode != ibv.WR_RDMA_READ:
		return 1
	}
	return max(q.packets(m), 1)
}

// answer creates an answer without data.
func (q *QP) answer(m *message.Request, kind message.Kind, s message.Syndrome, psn uint32) *message.Answer {
	a := &q.back
	a.Kind, a.Syndrome, a.PSN, a.Life = kind, s, psn, m.Life
	if a.Data != nil {
		a.Data = nil
	}
	return a
}

// reply returns an answer for a peer in memory, and sends others.
func (q *QP) reply(a *message.Answer) *message.Answer {
	if q.sender == nil {
		return a
	}
	return q.sendAnswer(readRange{})
}

// answerData returns the answer with the requested data: for a read, the memory that reads found.
func (q *QP) answerData(m *message.Request) *message.Answer {
	a, r := q.answer(m, message.ReadData, message.Ack, m.PSN), readRange{}
	if m.Opcode == ibv.WR_RDMA_READ && m.Length > 0 {
		a.Data, r = q.On.read[:], readRange{remote: m.Remote, rkey: m.RKey, length: m.Length}
	}
	if q.sender == nil {
		return a
	}
	return q.sendAnswer(r)
}

// sendAnswer sends the answer in back; for a read, the data is in Engine.read. A long answer is sent in parts, so that
// it does not delay others and a peer cannot make it fill memory. Later answers wait until all parts are sent.
func (q *QP) sendAnswer(r readRange) *message.Answer {
	a := &q.back
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
	q.sendReading(r)
	return nil
}

// sendReading sends the answer in back, or its next part. The rest is sent when the clock has advanced.
func (q *QP) sendReading(r readRange) {
	a, f := &q.back, q.On
	n := mostPackets * uint64(a.MTU)
	if r.length <= n {
		f.Wire.Answer(a)
		return
	}
	a.More, f.read[0].Length = true, n
	f.Wire.Answer(a)
	rest := *a
	rest.Data, rest.Continues, rest.More, rest.PSN = nil, true, false, transport.Next(a.PSN, mostPackets)
	q.answers.add(waiting{rest, readRange{r.remote + n, r.rkey, r.length - n}})
	q.answerSoon()
}

func (q *QP) answerSoon() { q.On.Clock.After(0, q.answerWaiting) }

// answerWaiting sends the first answer that waits, or a part of it. If the memory is gone by then, the sender repeats
// the request and gets an error. The caller holds Core.Mu.
func (q *QP) answerWaiting() {
	if q.arriving == nil || q.answers.len() == 0 {
		return
	}
	next := *q.answers.first()
	q.answers.drop()
	if q.Port.Down || !q.receives() {
		q.answers.reset()
		return
	}
	others := slices.Clone(q.answers.all[q.answers.done:])
	q.answers.reset()
	q.tryKeep(func() ibv.WCStatus {
		q.back = next.answer
		if r := next.reading; r.length > 0 {
			m := message.Request{Remote: r.remote, RKey: r.rkey}
			from, ok := q.remote(&m, r.length, ibv.ACCESS_REMOTE_READ)
			if !ok {
				return ibv.WC_LOC_PROT_ERR
			}
			q.On.read[0] = from
			q.back.Data = q.On.read[:]
		}
		q.sendReading(next.reading)
		return ibv.WC_SUCCESS
	})
	for _, w := range others {
		q.answers.add(w)
	}
	if len(others) > 0 && q.answers.len() == len(others) { // otherwise sendReading has seen to it
		q.answerSoon()
	}
}
