// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestReliableConnection: each operation moves its bytes, and completes on the sides that it should.
func TestReliableConnection(t *testing.T) {
	r := newRig(t, Options{})
	p := r.pair(ibv.QPT_RC)
	here, there := r.buffer(0, 4096, everything), r.buffer(1, 4096, everything)
	text := []byte("sixteen bytes ok")
	to := func(wr *ibv.SendWR) *ibv.SendWR {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: there.at(1000), RKey: there.mr.RKey}
		return wr
	}

	copy(here.bytes, text)
	r.recv(p.b, 7, there.sge(0, 10), there.sge(100, 100))
	require.NoError(t, r.post(p.a, r.send(1, ibv.WR_SEND, here.sge(0, 4), here.sge(4, 12))))
	sent, received := r.poll(p.aSend), r.poll(p.bRecv)
	assert.Equal(t, ibv.WC{WRID: 1, Opcode: ibv.WC_SEND, QPNum: p.a.QPNum}, sent)
	assert.Equal(t, ibv.WC{WRID: 7, Opcode: ibv.WC_RECV, QPNum: p.b.QPNum, SrcQP: p.a.QPNum, ByteLen: 16}, received)
	assert.Equal(t, text[:10], there.bytes[:10])
	assert.Equal(t, text[10:], there.bytes[100:106])

	require.NoError(t, r.post(p.a, to(r.send(2, ibv.WR_RDMA_WRITE, here.sge(0, 16)))))
	assert.Equal(t, ibv.WC{WRID: 2, Opcode: ibv.WC_RDMA_WRITE, QPNum: p.a.QPNum}, r.poll(p.aSend))
	assert.Equal(t, text, there.bytes[1000:1016])

	require.NoError(t, r.post(p.a, to(r.send(3, ibv.WR_RDMA_READ, here.sge(500, 16)))))
	assert.Equal(t, ibv.WC{WRID: 3, Opcode: ibv.WC_RDMA_READ, QPNum: p.a.QPNum, ByteLen: 16}, r.poll(p.aSend))
	assert.Equal(t, text, here.bytes[500:516])

	r.recv(p.b, 8)
	wr := to(r.send(4, ibv.WR_RDMA_WRITE_WITH_IMM, here.sge(0, 8)))
	*wr.ImmData() = ibv.ToBE32(0x01020304)
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_SUCCESS, r.poll(p.aSend).Status)
	received = r.poll(p.bRecv)
	assert.Equal(t, ibv.WC_RECV_RDMA_WITH_IMM, received.Opcode)
	assert.EqualValues(t, 8, received.ByteLen)
	assert.EqualValues(t, 0x01020304, received.ImmData().Host())

	binary.NativeEndian.PutUint64(there.bytes[2048:], 41)
	wr = r.send(5, ibv.WR_ATOMIC_FETCH_AND_ADD, here.sge(1024, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: there.at(2048), RKey: there.mr.RKey, CompareAdd: 1}
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_FETCH_ADD, r.poll(p.aSend).Opcode)
	wr = r.send(6, ibv.WR_ATOMIC_CMP_AND_SWP, here.sge(1032, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: there.at(2048), RKey: there.mr.RKey, CompareAdd: 42, Swap: 99}
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_COMP_SWAP, r.poll(p.aSend).Opcode)
	assert.EqualValues(t, 41, binary.NativeEndian.Uint64(here.bytes[1024:]))
	assert.EqualValues(t, 42, binary.NativeEndian.Uint64(here.bytes[1032:]))
	assert.EqualValues(t, 99, binary.NativeEndian.Uint64(there.bytes[2048:]))
}

// TestHandles: objects that have no number of another kind are told apart by their handles.
func TestHandles(t *testing.T) {
	r := newRig(t, Options{})
	memory := r.buffer(0, 64, everything)
	seen := map[uint32]bool{r.pd[0].Handle: true, memory.mr.Handle: true}
	for range 2 {
		pd, err := verbs.AllocPD(r.context[0])
		require.NoError(t, err)
		mw, err := verbs.AllocMW(pd, ibv.MW_TYPE_1)
		require.NoError(t, err)
		ah, err := verbs.CreateAH(pd, &ibv.AHAttr{IsGlobal: 1, PortNum: 1, GRH: r.av(1).GRH})
		require.NoError(t, err)
		for _, handle := range []uint32{pd.Handle, mw.Handle, ah.Handle} {
			assert.False(t, seen[handle], handle)
			seen[handle] = true
		}
		require.NoError(t, verbs.DestroyAH(ah))
		require.NoError(t, verbs.DeallocMW(mw))
		require.NoError(t, verbs.DeallocPD(pd))
	}
}
