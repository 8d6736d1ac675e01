// SPDX-License-Identifier: BSD-2-Clause

package device_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
)

// sender sends messages of 64 bytes from one queue pair to another, in batches of 16 of which the last one is
// signalled, through rdma's checked queues, and polls both sides.
type sender struct {
	send           *rdma.SendQueue
	recv           *rdma.RecvQueue
	sendCQ, recvCQ *rdma.CompletionQueue
	sends          *rdma.SendBatch
	recvs          *rdma.RecvBatch
	wcs            []ibv.WC
	from, to       []byte
	fromKey, toKey uint32
}

const batch = 16

func newSender(t testing.TB) *sender {
	r := device.NewTestbed(t, device.Options{})
	caps := ibv.QPCap{MaxSendWR: 4 * batch, MaxRecvWR: 4 * batch, MaxSendSGE: 1, MaxRecvSGE: 1}
	p := r.PairOf(ibv.QPT_RC, caps)
	from, fromKey := r.Memory(0, 4096)
	to, toKey := r.Memory(1, 4096)
	s := &sender{wcs: make([]ibv.WC, 2*batch), from: from, to: to, fromKey: fromKey, toKey: toKey}
	o := rdma.QueueOptions{Cap: caps}
	var err error
	s.send, err = rdma.NewSendQueue(p.A, o)
	require.NoError(t, err)
	s.recv, err = rdma.NewRecvQueue(p.B, o)
	require.NoError(t, err)
	s.sendCQ, err = rdma.NewCompletionQueue(p.ASend, o)
	require.NoError(t, err)
	s.recvCQ, err = rdma.NewCompletionQueue(p.BRecv, o)
	require.NoError(t, err)
	s.sendCQ.Track(p.A.QPNum, s.send, nil)
	s.recvCQ.Track(p.B.QPNum, nil, s.recv)
	s.sends, err = rdma.NewSendBatch(batch, 1, 0)
	require.NoError(t, err)
	t.Cleanup(func() { s.sends.Close() })
	s.recvs, err = rdma.NewRecvBatch(batch, 1)
	require.NoError(t, err)
	t.Cleanup(func() { s.recvs.Close() })
	for i := range batch {
		w := s.sends.Send(uint64(i)).SGE(uint64(uintptr(unsafe.Pointer(&from[64*i]))), 64, fromKey)
		if i == batch-1 {
			w.Signaled()
		}
		s.recvs.Recv(uint64(i)).SGE(uint64(uintptr(unsafe.Pointer(&to[64*i]))), 64, toKey)
	}
	return s
}

// round sends a batch and polls its completions. It reports whether all of them succeeded.
func (s *sender) round() bool {
	if _, err := s.recv.Post(s.recvs); err != nil {
		return false
	}
	if _, err := s.send.Post(s.sends); err != nil {
		return false
	}
	received, err := s.recvCQ.Poll(s.wcs)
	if err != nil || received != batch || s.wcs[batch-1].Status != ibv.WC_SUCCESS {
		return false
	}
	sent, err := s.sendCQ.Poll(s.wcs)
	return err == nil && sent == 1 && s.wcs[0].Status == ibv.WC_SUCCESS
}

func TestSendAllocations(t *testing.T) {
	s := newSender(t)
	for range 100 {
		require.True(t, s.round())
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if !s.round() {
			panic("sending a batch failed")
		}
	}))
}

// TestOperationAllocations: other operations do not allocate either, regardless of their size.
func TestOperationAllocations(t *testing.T) {
	s := newSender(t)
	address := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
	for name, set := range map[string]func(){
		"write": func() {
			s.sends.Write(1, address(s.to), s.toKey).SGE(address(s.from), 4096,
				s.fromKey).Signaled()
		},
		"read": func() { s.sends.Read(1, address(s.to), s.toKey).SGE(address(s.from), 100, s.fromKey).Signaled() },
		"fetch add": func() {
			s.sends.FetchAdd(1, address(s.to), s.toKey, 1).SGE(address(s.from), 8,
				s.fromKey).Signaled()
		},
		"compare swap": func() {
			s.sends.CompareSwap(1, address(s.to), s.toKey, 1, 2).SGE(address(s.from), 8, s.fromKey).Signaled()
		},
	} {
		s.sends.Reset()
		set()
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := s.send.Post(s.sends); err != nil {
				panic(err)
			}
			if n, err := s.sendCQ.Poll(s.wcs); n != 1 || err != nil || s.wcs[0].Status != ibv.WC_SUCCESS {
				panic(s.wcs[0].Status)
			}
		}), name)
	}
}

// BenchmarkSend posts, receives and polls one message of 64 bytes.
func BenchmarkSend(b *testing.B) {
	s := newSender(b)
	b.SetBytes(64)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		if !s.round() {
			b.Fatal("sending a batch failed")
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
}
