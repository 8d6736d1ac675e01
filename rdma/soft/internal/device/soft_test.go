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

// TestReliableConnection: each operation transfers its data, and completes on the expected sides.
func TestReliableConnection(t *testing.T) {
	r := newTestbed(t, Options{})
	p := r.pair(ibv.QPT_RC)
	bufA, bufB := r.buffer(0, 4096, allAccess), r.buffer(1, 4096, allAccess)
	text := []byte("sixteen bytes ok")
	to := func(wr *ibv.SendWR) *ibv.SendWR {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: bufB.at(1000), RKey: bufB.mr.RKey}
		return wr
	}

	copy(bufA.bytes, text)
	r.recv(p.b, 7, bufB.sge(0, 10), bufB.sge(100, 100))
	require.NoError(t, r.post(p.a, r.send(1, ibv.WR_SEND, bufA.sge(0, 4), bufA.sge(4, 12))))
	sent, received := r.poll(p.aSend), r.poll(p.bRecv)
	assert.Equal(t, ibv.WC{WRID: 1, Opcode: ibv.WC_SEND, QPNum: p.a.QPNum}, sent)
	assert.Equal(t, ibv.WC{WRID: 7, Opcode: ibv.WC_RECV, QPNum: p.b.QPNum, SrcQP: p.a.QPNum, ByteLen: 16}, received)
	assert.Equal(t, text[:10], bufB.bytes[:10])
	assert.Equal(t, text[10:], bufB.bytes[100:106])

	require.NoError(t, r.post(p.a, to(r.send(2, ibv.WR_RDMA_WRITE, bufA.sge(0, 16)))))
	assert.Equal(t, ibv.WC{WRID: 2, Opcode: ibv.WC_RDMA_WRITE, QPNum: p.a.QPNum}, r.poll(p.aSend))
	assert.Equal(t, text, bufB.bytes[1000:1016])

	require.NoError(t, r.post(p.a, to(r.send(3, ibv.WR_RDMA_READ, bufA.sge(500, 16)))))
	assert.Equal(t, ibv.WC{WRID: 3, Opcode: ibv.WC_RDMA_READ, QPNum: p.a.QPNum, ByteLen: 16}, r.poll(p.aSend))
	assert.Equal(t, text, bufA.bytes[500:516])

	r.recv(p.b, 8)
	wr := to(r.send(4, ibv.WR_RDMA_WRITE_WITH_IMM, bufA.sge(0, 8)))
	*wr.ImmData() = ibv.ToBE32(0x01020304)
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_SUCCESS, r.poll(p.aSend).Status)
	received = r.poll(p.bRecv)
	assert.Equal(t, ibv.WC_RECV_RDMA_WITH_IMM, received.Opcode)
	assert.EqualValues(t, 8, received.ByteLen)
	assert.EqualValues(t, 0x01020304, received.ImmData().Host())

	binary.NativeEndian.PutUint64(bufB.bytes[2048:], 41)
	wr = r.send(5, ibv.WR_ATOMIC_FETCH_AND_ADD, bufA.sge(1024, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: bufB.at(2048), RKey: bufB.mr.RKey, CompareAdd: 1}
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_FETCH_ADD, r.poll(p.aSend).Opcode)
	wr = r.send(6, ibv.WR_ATOMIC_CMP_AND_SWP, bufA.sge(1032, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: bufB.at(2048), RKey: bufB.mr.RKey, CompareAdd: 42, Swap: 99}
	require.NoError(t, r.post(p.a, wr))
	assert.Equal(t, ibv.WC_COMP_SWAP, r.poll(p.aSend).Opcode)
	assert.EqualValues(t, 41, binary.NativeEndian.Uint64(bufA.bytes[1024:]))
	assert.EqualValues(t, 42, binary.NativeEndian.Uint64(bufA.bytes[1032:]))
	assert.EqualValues(t, 99, binary.NativeEndian.Uint64(bufB.bytes[2048:]))
}

// TestHandles: objects without another number have distinct handles.
func TestHandles(t *testing.T) {
	r := newTestbed(t, Options{})
	memory := r.buffer(0, 64, allAccess)
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
