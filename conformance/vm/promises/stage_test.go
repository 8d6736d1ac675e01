// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// stage is a connected pair with memory at both ends.
type testPair struct {
	*testbed.Testbed
	*testbed.Pair
	t          *testing.T
	bufA, bufB *testbed.Buffer
}

func newTestPair(t *testing.T, kind ibv.QPType) *testPair {
	r := testbed.Open(t)
	s := &testPair{Testbed: r, Pair: r.Pair(kind), t: t, bufA: r.Buffer(4096, r.Access), bufB: r.Buffer(4096, r.Access)}
	for i := range s.bufA.Bytes {
		s.bufA.Bytes[i] = byte(i*7 + i>>8)
	}
	return s
}

// sends returns a list of n signaled sends, each with its own 16 bytes.
func (s *testPair) sends(n int) *testbed.List {
	l := s.Sends(n)
	for i := range l.WRs {
		l.WRs[i].Opcode, l.WRs[i].SendFlags, l.SGEs[i] = ibv.WR_SEND, ibv.SEND_SIGNALED, s.bufA.SGE(16*i, 16)
	}
	return l
}

// remote returns one signaled request of 16 bytes with an address at the peer.
func (s *testPair) remote(opcode ibv.WROpcode, offset int) *testbed.List {
	l := s.sends(1)
	l.WRs[0].Opcode = opcode
	*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.bufB.Address(offset), RKey: s.bufB.MR.RKey}
	return l
}

// recvs posts n receives of 64 bytes, contiguous in the peer's memory from 2048 on. IDs count from 100.
func (s *testPair) recvs(n int) {
	for i := range n {
		s.Recv(s.B, uint64(100+i), s.bufB.SGE(2048+64*i, 64))
	}
}

func (s *testPair) post(l *testbed.List) {
	s.t.Helper()
	_, err := l.Post(s.A)
	require.NoError(s.t, err)
}

// sent waits for a completion of the sender.
func (s *testPair) sent(id uint64, want ibv.WCStatus) ibv.WC {
	s.t.Helper()
	wc := s.Completion(s.ASend)
	assert.Equal(s.t, want, wc.Status)
	assert.Equal(s.t, id, wc.WRID)
	return wc
}

// received waits for a completion of the peer.
func (s *testPair) received(id uint64) ibv.WC {
	s.t.Helper()
	wc := s.Completion(s.BRecv)
	require.Equal(s.t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(s.t, id, wc.WRID)
	return wc
}

// caps returns the sender's actual capacities, which providers round up.
func (s *testPair) caps() ibv.QPCap {
	s.t.Helper()
	init := new(ibv.QPInitAttr)
	require.NoError(s.t, verbs.QueryQP(s.A, new(ibv.QPAttr), ibv.QP_CAP, init))
	return init.Cap
}

// tooManySGEs gives a request one more SGE than the queue pair supports.
func (s *testPair) tooManySGEs(wr *ibv.SendWR) {
	sges := testbed.Records[ibv.SGE](s.Testbed, int(s.caps().MaxSendSGE)+1)
	for i := range sges {
		sges[i] = s.bufA.SGE(0, 1)
	}
	wr.SGList, wr.NumSGE = ibv.PtrTo(&sges[0]), int32(len(sges))
}

func (s *testPair) none(cq *ibv.CQ, reason string) {
	s.t.Helper()
	wc, received, err := testbed.Poll(cq, 100*time.Millisecond)
	require.NoError(s.t, err)
	assert.False(s.t, received, "%s: %v", reason, wc.Status)
}
