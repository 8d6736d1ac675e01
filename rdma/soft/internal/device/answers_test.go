// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// answered keeps copies of the answers that are sent.
type answered struct {
	wire.Wire
	answers []*message.Answer
}

func (w *answered) Answer(a *message.Answer) { w.answers = append(w.answers, a.Clone()) }

// TestLongAnswers: the answer to a large read is sent in parts, and later answers wait. It carries all of the memory,
// in order.
func TestLongAnswers(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	r := newRig(t, Options{Virtual: true})
	p := r.pair(ibv.QPT_RC)
	const size = 3<<20 + 5
	there := r.buffer(1, size, everything)
	for i := range there.bytes {
		there.bytes[i] = byte(i * 7 >> 3)
	}
	f, q := r.fabric, findQP(mem.AddressOf(p.b))
	w := &answered{}
	f.Tap(func(below wire.Wire) wire.Wire { w.Wire = below; return w })
	ask := func(m message.Request) {
		m.From, m.To, m.Transport, m.PKey, m.DestQP = q.out.To, q.out.From, ibv.QPT_RC, 0xffff, q.number
		m.PSN, m.Packets, m.AckReq = q.receiver.Expects, 1, true
		f.Deliver(func() { require.Nil(t, q.device.Request(&m)) })
	}
	first := q.receiver.Expects
	ask(message.Request{Opcode: ibv.WR_RDMA_READ, Remote: there.at(0), RKey: there.mr.RKey, Length: size})
	ask(message.Request{Opcode: ibv.WR_RDMA_WRITE, Remote: there.at(0), RKey: there.mr.RKey, Length: 0})
	require.Len(t, w.answers, 1, "one part at once")
	for range 100 {
		f.Advance(time.Microsecond)
	}
	require.Greater(t, len(w.answers), 5)
	var got []byte
	for i, a := range w.answers[:len(w.answers)-1] {
		assert.EqualValues(t, first+uint32(len(got)/int(a.MTU)), a.PSN)
		assert.Equal(t, i > 0, a.Continues)
		assert.Equal(t, i < len(w.answers)-2, a.More)
		for _, s := range a.Data {
			got = append(got, mem.List[byte](s.Base, int(s.Length))...)
		}
	}
	assert.Equal(t, there.bytes, got)
	last := w.answers[len(w.answers)-1]
	assert.Equal(t, message.Plain, last.Kind)
	assert.Equal(t, q.receiver.Expects-1, last.PSN)
}
