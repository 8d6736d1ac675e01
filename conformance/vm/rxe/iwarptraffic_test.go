// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// traffic posts random lists of requests, and knows what they must do.
type traffic struct {
	*testbed.Testbed
	p              *testbed.Pair
	srq            *ibv.SRQ // nil: B has a receive queue
	local, remote  *testbed.Buffer
	random         *rand.Rand
	wrs            []ibv.SendWR
	recv           *ibv.RecvWR
	sges, recvSGEs []ibv.SGE // sges has sgesEach entries for each request
	bad            *ibv.Ptr[ibv.SendWR]
	badRecv        *ibv.Ptr[ibv.RecvWR]
}

const (
	sgesEach  = 4
	partSize  = 600  // longest entry
	slotSize  = 4096 // of a request in each buffer
	trafficQP = 4    // requests in a list
)

// TestTrafficOnIWARP moves data with random lists of sends, writes and reads, with 1 to 4 entries, inline data and
// fences, more than the queues hold, to a receive queue and to a shared one.
func TestTrafficOnIWARP(t *testing.T) {
	onlyIWARP(t)
	for name, shared := range map[string]bool{"receive queue": false, "shared receive queue": true} {
		t.Run(name, func(t *testing.T) {
			r := testbed.Open(t)
			x := &traffic{Testbed: r, random: rand.New(rand.NewPCG(1, 2)), wrs: testbed.Records[ibv.SendWR](r, trafficQP),
				sges: testbed.Records[ibv.SGE](r, trafficQP*sgesEach), recv: &testbed.Records[ibv.RecvWR](r, 1)[0],
				recvSGEs: testbed.Records[ibv.SGE](r, 2), bad: &testbed.Records[ibv.Ptr[ibv.SendWR]](r, 1)[0],
				badRecv: &testbed.Records[ibv.Ptr[ibv.RecvWR]](r, 1)[0]}
			x.local, x.remote = r.Buffer(trafficQP*slotSize, r.Access), r.Buffer(trafficQP*slotSize, r.Access)
			x.p = &testbed.Pair{ASend: r.CQ(16), ARecv: r.CQ(16), BSend: r.CQ(16), BRecv: r.CQ(16)}
			x.p.A = r.QP(ibv.QPT_RC, x.p.ASend, x.p.ARecv)
			if shared {
				srq, err := verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: 2}})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
				x.srq, x.p.B = srq, r.SharingQP(ibv.QPT_RC, x.p.BRecv, srq)
			} else {
				x.p.B = r.QP(ibv.QPT_RC, x.p.BSend, x.p.BRecv)
			}
			r.Connect(x.p.A, x.p.B)
			for n := range 60 {
				if x.list(t, n); t.Failed() {
					return
				}
			}
		})
	}
}

// list posts one list and checks its completions and data.
func (x *traffic) list(t *testing.T, n int) {
	fill := func(b []byte) {
		for i := range b {
			b[i] = byte(x.random.Uint32())
		}
	}
	fill(x.local.Bytes)
	fill(x.remote.Bytes)
	type expected struct {
		opcode   ibv.WCOpcode
		to, want []byte
		fenced   bool
	}
	var sends []expected
	received := 0
	count := 1 + x.random.IntN(trafficQP)
	for i := range count {
		at := i * slotSize
		w, sges := &x.wrs[i], x.sges[i*sgesEach:][:sgesEach]
		*w = ibv.SendWR{WRID: uint64(n<<8 + i), SGList: ibv.PtrTo(&sges[0]), NumSGE: 1,
			SendFlags: ibv.SEND_SIGNALED}
		if i+1 < count {
			w.Next = ibv.PtrTo(&x.wrs[i+1])
		}
		*w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: x.remote.Address(at), RKey: x.remote.MR.RKey}
		read := x.random.IntN(3) == 0
		inline := !read && x.random.IntN(4) == 0
		var data []byte
		if !read {
			w.NumSGE = int32(1 + x.random.IntN(sgesEach))
		}
		for j := range w.NumSGE {
			most := partSize
			if inline {
				most = int(testbed.Caps.MaxInlineData) / sgesEach
			}
			from, length := at+int(j)*partSize, 1+x.random.IntN(most)
			sges[j] = x.local.SGE(from, length)
			data = append(data, x.local.Bytes[from:from+length]...)
		}
		switch {
		case read:
			length := int(sges[0].Length)
			w.Opcode = ibv.WR_RDMA_READ
			sends = append(sends, expected{ibv.WC_RDMA_READ, x.local.Bytes[at : at+length],
				append([]byte(nil), x.remote.Bytes[at:at+length]...), false})
			continue
		case x.random.IntN(2) == 0:
			w.Opcode = ibv.WR_RDMA_WRITE
			sends = append(sends, expected{ibv.WC_RDMA_WRITE, x.remote.Bytes[at:][:len(data)], data, false})
		default:
			w.Opcode = ibv.WR_SEND
			x.receive(t, uint64(i), at)
			received++
			sends = append(sends, expected{ibv.WC_SEND, x.remote.Bytes[at:][:len(data)], data, false})
		}
		if inline {
			w.SendFlags |= ibv.SEND_INLINE
		}
		if x.random.IntN(3) == 0 {
			w.SendFlags |= ibv.SEND_FENCE
			sends[i].fenced = true
		}
	}
	require.NoError(t, verbs.PostSend(x.p.A, &x.wrs[0], x.bad))
	// The kernel completes sends and writes when TCP has them, and so before earlier reads, unless they are fenced.
	completed := make([]bool, count)
	for range sends {
		wc := x.Completion(x.p.ASend)
		require.Equal(t, ibv.WC_SUCCESS, wc.Status, "list %d request %d", n, wc.WRID)
		i := int(wc.WRID) - n<<8
		require.True(t, 0 <= i && i < count && !completed[i], "list %d: wr_id %#x", n, wc.WRID)
		completed[i] = true
		assert.Equal(t, sends[i].opcode, wc.Opcode)
		assert.Equal(t, x.p.A.QPNum, wc.QPNum)
		for earlier := range i {
			waits := (sends[earlier].opcode == ibv.WC_RDMA_READ) == (wc.Opcode == ibv.WC_RDMA_READ) ||
				sends[earlier].opcode == ibv.WC_RDMA_READ && sends[i].fenced
			assert.False(t, waits && !completed[earlier], "list %d: request %d completed before %d", n, i, earlier)
		}
	}
	for i, s := range sends {
		if s.opcode != ibv.WC_SEND {
			continue
		}
		wc := x.Completion(x.p.BRecv)
		require.Equal(t, ibv.WC_SUCCESS, wc.Status, "list %d receive %d", n, i)
		assert.EqualValues(t, i, wc.WRID)
		assert.EqualValues(t, len(s.want), wc.ByteLen)
		assert.Equal(t, ibv.WC_RECV, wc.Opcode)
		assert.Equal(t, x.p.B.QPNum, wc.QPNum)
	}
	x.settle(t)
	for i, s := range sends {
		assert.Equal(t, s.want, s.to, "list %d request %d %v", n, i, s.opcode)
	}
}

// settle waits until all writes have been placed: their completions mean only that TCP has the data.
func (x *traffic) settle(t *testing.T) {
	x.receive(t, 99, (trafficQP-1)*slotSize+slotSize-64)
	x.wrs[0] = ibv.SendWR{WRID: 99, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED, SGList: ibv.PtrTo(&x.sges[0]),
		NumSGE: 1}
	x.sges[0] = x.local.SGE(0, 1)
	require.NoError(t, verbs.PostSend(x.p.A, &x.wrs[0], x.bad))
	require.EqualValues(t, 99, x.Completion(x.p.ASend).WRID)
	require.EqualValues(t, 99, x.Completion(x.p.BRecv).WRID)
}

// receive posts a receive of two entries that continue each other.
func (x *traffic) receive(t *testing.T, id uint64, at int) {
	const first = 32
	rest := min(sgesEach*partSize, len(x.remote.Bytes)-at) - first
	x.recvSGEs[0], x.recvSGEs[1] = x.remote.SGE(at, first), x.remote.SGE(at+first, rest)
	*x.recv = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&x.recvSGEs[0]), NumSGE: 2}
	if x.srq != nil {
		require.NoError(t, verbs.PostSRQRecv(x.srq, x.recv, x.badRecv))
		return
	}
	require.NoError(t, verbs.PostRecv(x.p.B, x.recv, x.badRecv))
}
