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
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// responseRecorder records copies of the responses that are sent.
type responseRecorder struct {
	wire.Wire
	responses []*message.Answer
}

func (w *responseRecorder) Answer(a *message.Answer) { w.responses = append(w.responses, a.Clone()) }

// TestLongReadResponse: the response to a large read is sent in parts, which carry the complete data in order. Later
// responses wait.
func TestLongReadResponse(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	r := newTestbed(t, Options{Virtual: true})
	p := r.pair(ibv.QPT_RC)
	const size = 3<<20 + 5
	bufB := r.buffer(1, size, allAccess)
	for i := range bufB.bytes {
		bufB.bytes[i] = byte(i * 7 >> 3)
	}
	f, q := r.fabric, impl.FindQP(mem.AddressOf(p.b))
	w := &responseRecorder{}
	f.Tap(func(below wire.Wire) wire.Wire { w.Wire = below; return w })
	request := func(m message.Request) {
		m.From, m.To, m.Transport, m.PKey, m.DestQP = q.Out.To, q.Out.From, ibv.QPT_RC, 0xffff, q.Number
		m.PSN, m.Packets, m.AckReq = q.Receiver.Expects, 1, true
		f.Deliver(func() { require.Nil(t, q.Device.Request(&m)) })
	}
	first := q.Receiver.Expects
	request(message.Request{Opcode: ibv.WR_RDMA_READ, Remote: bufB.at(0), RKey: bufB.mr.RKey, Length: size})
	request(message.Request{Opcode: ibv.WR_RDMA_WRITE, Remote: bufB.at(0), RKey: bufB.mr.RKey, Length: 0})
	require.Len(t, w.responses, 1, "only the first part")
	for range 100 {
		f.Advance(time.Microsecond)
	}
	require.Greater(t, len(w.responses), 5)
	var got []byte
	for i, a := range w.responses[:len(w.responses)-1] {
		assert.EqualValues(t, first+uint32(len(got)/int(a.MTU)), a.PSN)
		assert.Equal(t, i > 0, a.Continues)
		assert.Equal(t, i < len(w.responses)-2, a.More)
		for _, s := range a.Data {
			got = append(got, mem.List[byte](s.Base, int(s.Length))...)
		}
	}
	assert.Equal(t, bufB.bytes, got)
	last := w.responses[len(w.responses)-1]
	assert.Equal(t, message.Plain, last.Kind)
	assert.Equal(t, q.Receiver.Expects-1, last.PSN)
}
