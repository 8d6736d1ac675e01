// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

// These tests cover cases in which libmlx5 is wrong or has no equivalent: their queues are created without libmlx5, and
// the tests write the completions.

// rig is a queue pair without a device. Its queues have rigPlaces slots each.
type rig struct {
	qp    *queuePair
	cq    *completionQueue
	sends []byte // the ring, and memory behind it
	next  uint32 // number of the next completion
}

const rigPlaces, rigNumber = 4, 5

func newRig(t *testing.T, kind ibv.QPType) *rig {
	t.Helper()
	d := New(nil, unset, true)
	r := &rig{sends: memory(t, 2*rigPlaces*block)}
	word := func() uintptr { return addressOf(memory(t, 64)) }
	cqes := memory(t, rigPlaces*int(cqe))
	for i := range cqes {
		cqes[i] = mlx5dv.MLX5_CQE_INVALID << 4
	}
	c := &ibv.QP{QPType: kind, State: ibv.QPS_RTS, QPNum: rigNumber}
	r.cq = newCompletionQueue(d, &ibv.CQ{}, &mlx5dv.CQ{Buf: addressOf(cqes), CQECnt: rigPlaces, CQESize: uint32(cqe),
		DBRec: ibv.Ptr[ibv.BE32](word()), CQUAR: word()})
	r.qp = &queuePair{device: d, c: c, sendCQ: r.cq, recvCQ: r.cq}
	out := &mlx5dv.QP{DBRec: ibv.Ptr[ibv.BE32](word()), SQ: mlx5dv.QPSQ{Buf: addressOf(r.sends), WQECnt: rigPlaces},
		RQ: mlx5dv.QPRQ{Buf: addressOf(memory(t, rigPlaces*block)), WQECnt: rigPlaces, Stride: block},
		BF: mlx5dv.QPBF{Reg: addressOf(memory(t, 1024)), Size: 256}}
	cap := ibv.QPCap{MaxSendWR: rigPlaces, MaxRecvWR: rigPlaces, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}
	register := d.use(r.qp, out)
	t.Cleanup(func() { register.leave(r.qp) })
	r.qp.send.init(r.qp, out, cap, false, register)
	r.qp.recv.init(r.qp, out, cap)
	r.cq.add(r.qp)
	return r
}

// complete writes a completion, as a device does, for the request that starts at block at of a queue pair.
func (r *rig) complete(qp uint32, at uint16) {
	*r.cq.at(r.next) = mlx5dv.MLX5CQE64{SOPDropQPN: be32(mlx5dv.MLX5_OPCODE_SEND<<24 | qp), WQECounter: be16(at),
		OpOwn: mlx5dv.MLX5_CQE_REQ<<4 | uint8(r.next>>r.cq.round&1)}
	r.next++
}

func (r *rig) poll(n int) (ids []uint64, result int32) {
	wcs := make([]ibv.WC, n)
	result = r.cq.Poll(nil, wcs)
	for _, wc := range wcs[:max(0, result)] {
		ids = append(ids, wc.WRID)
	}
	return ids, result
}

// TestUnreadableCompletion: completions before an invalid one are returned, and the next poll reports the error.
// libmlx5 loses the completions.
func TestUnreadableCompletion(t *testing.T) {
	r := newRig(t, ibv.QPT_RC)
	bad := new(ibv.Ptr[ibv.SendWR])
	for i := range 3 {
		require.Zero(t, r.qp.PostSend(nil, &ibv.SendWR{WRID: 10 + uint64(i), Opcode: ibv.WR_SEND}, bad))
	}
	r.complete(rigNumber, 0)
	r.complete(rigNumber, 1)
	r.complete(rigNumber+1, 0)
	r.complete(rigNumber, 2)
	ids, n := r.poll(8)
	assert.EqualValues(t, 2, n)
	assert.Equal(t, []uint64{10, 11}, ids)
	_, n = r.poll(8)
	assert.EqualValues(t, -1, n)
	assert.Contains(t, r.cq.Inspect(), "C has created queue pair 0x6")
	ids, _ = r.poll(8)
	assert.Equal(t, []uint64{12}, ids)
	assert.EqualValues(t, 4, host32(ibv.BE32(r.cq.record.consumed.Load())))
	_, n = r.poll(8)
	assert.Zero(t, n)
}

// TestInlineAtTheEndOfTheRing: inline data of a request wraps around at the end of the ring, even at an offset where no
// valid request has it. libmlx5 writes behind the ring.
func TestInlineAtTheEndOfTheRing(t *testing.T) {
	r := newRig(t, ibv.QPT_XRC_SEND)
	bad, text := new(ibv.Ptr[ibv.SendWR]), memory(t, 64)
	copy(text, "inside the request")
	for range rigPlaces - 1 {
		require.Zero(t, r.qp.PostSend(nil, &ibv.SendWR{Opcode: ibv.WR_SEND}, bad))
	}
	for i := range rigPlaces - 1 {
		r.complete(rigNumber, uint16(i))
	}
	r.poll(rigPlaces)
	list := &ibv.SGE{Addr: uint64(addressOf(text)), Length: 18}
	require.Zero(t, r.qp.PostSend(nil, &ibv.SendWR{Opcode: ibv.WR_ATOMIC_FETCH_AND_ADD, SendFlags: ibv.SEND_INLINE,
		SGList: ibv.PtrTo(list), NumSGE: 1}, bad))
	assert.Equal(t, make([]byte, rigPlaces*block), r.sends[rigPlaces*block:], "memory behind the ring is unchanged")
	assert.Equal(t, "inside the request", string(r.sends[4:22]))
	assert.EqualValues(t, rigPlaces+1, r.qp.send.next, "blocks")
}

// TestCompletedAgain: if a request completes twice, PostOne still detects that the queue is full.
func TestCompletedAgain(t *testing.T) {
	r := newRig(t, ibv.QPT_RC)
	text := memory(t, 64)
	list := ibv.PtrTo(&ibv.SGE{Addr: uint64(addressOf(text)), Length: 8})
	w := &ibv.SendWR{Opcode: ibv.WR_SEND, SGList: list, NumSGE: 1}
	for range rigPlaces {
		require.True(t, r.qp.PostOne(w))
	}
	for i := range rigPlaces {
		r.complete(rigNumber, uint16(i))
	}
	r.poll(rigPlaces)
	for range rigPlaces {
		require.True(t, r.qp.PostOne(w))
	}
	r.complete(rigNumber, 0) // the first completion of the second round
	r.poll(rigPlaces)
	require.True(t, r.qp.PostOne(w), "one slot is free")
	r.qp.send.done.Store(1) // as after posts by C, whose counters start at 0
	for range 2 {
		assert.False(t, r.qp.PostOne(w))
	}
}

// TestReceiveOfNegativeEntries: a negative number of entries means none, as in libmlx5.
func TestReceiveOfNegativeEntries(t *testing.T) {
	r := newRig(t, ibv.QPT_RC)
	assert.Zero(t, r.qp.PostRecv(nil, &ibv.RecvWR{NumSGE: -1}, new(ibv.Ptr[ibv.RecvWR])))
	assert.EqualValues(t, mlx5dv.MLX5_INVALID_LKEY, host32(entry(r.qp.recv.at(0), 0).LKey))
}

// TestCountersWrap: queues continue after 2³² requests, receives and completions, which devices reach in minutes.
func TestCountersWrap(t *testing.T) {
	r := newRig(t, ibv.QPT_RC)
	begin := uint32(1<<32 - 2*rigPlaces)
	s, q, cq := &r.qp.send, &r.qp.recv, r.cq
	s.next, s.posted, s.limit, q.posted, cq.consumed, r.next = begin, begin, begin+rigPlaces, begin, begin, begin
	s.done.Store(begin)
	q.done.Store(begin)
	cq.tell()
	for i := range rigPlaces { // completions of the previous round
		cq.at(uint32(i)).OpOwn = mlx5dv.MLX5_CQE_REQ<<4 | uint8((begin>>cq.round+1)&1)
	}
	text := memory(t, 64)
	list := ibv.PtrTo(&ibv.SGE{Addr: uint64(addressOf(text)), Length: 8})
	for round := range 4 {
		for i := range rigPlaces {
			id := uint64(10*round + i)
			w := &ibv.SendWR{WRID: id, Opcode: ibv.WR_SEND, SGList: list, NumSGE: 1}
			if i%2 == 0 {
				require.True(t, r.qp.PostOne(w))
			} else {
				require.Zero(t, r.qp.PostSend(nil, w, new(ibv.Ptr[ibv.SendWR])))
			}
			require.Zero(t, r.qp.PostRecv(nil, &ibv.RecvWR{WRID: id}, new(ibv.Ptr[ibv.RecvWR])))
		}
		w := &ibv.SendWR{Opcode: ibv.WR_SEND, SGList: list, NumSGE: 1}
		require.False(t, r.qp.PostOne(w), "the queue is full")
		require.EqualValues(t, enomem, r.qp.PostSend(nil, w, new(ibv.Ptr[ibv.SendWR])))
		require.EqualValues(t, enomem, r.qp.PostRecv(nil, &ibv.RecvWR{}, new(ibv.Ptr[ibv.RecvWR])))
		require.Empty(t, r.qp.Inspect())
		_, n := r.poll(8)
		require.Zero(t, n)
		first := uint16(s.next - rigPlaces)
		for i := range uint16(rigPlaces) {
			r.complete(rigNumber, first+i)
		}
		ids, _ := r.poll(8)
		b := uint64(10 * round)
		require.Equal(t, []uint64{b, b + 1, b + 2, b + 3}, ids)
		q.done.Add(rigPlaces)
		require.Empty(t, r.qp.Inspect())
	}
}

// TestRegisterSharedMeanwhile: a new queue pair gets the register of one that is posting. The race detector checks that
// posts lock it from then on.
func TestRegisterSharedMeanwhile(t *testing.T) {
	r := newRig(t, ibv.QPT_RC)
	d, out := r.qp.device, &mlx5dv.QP{BF: mlx5dv.QPBF{Reg: uintptr(r.qp.send.register.at), Size: 256}}
	second := &queuePair{device: d}
	text := memory(t, 64)
	list := ibv.PtrTo(&ibv.SGE{Addr: uint64(addressOf(text)), Length: 8})
	w := &ibv.SendWR{Opcode: ibv.WR_SEND, SGList: list, NumSGE: 1}
	var both sync.WaitGroup
	both.Go(func() {
		held := new(lock.Lock)
		r.qp.Held(held)
		held.Lock()
		defer held.Unlock()
		assert.True(t, r.qp.PostOne(w))
	})
	both.Go(func() { d.use(second, out) })
	both.Wait()
	assert.True(t, r.qp.send.register.shared.Load())
	r.qp.send.register.leave(second)
}

// TestHeldLock: after Held, polls and Misused run under the caller's lock, and all other methods lock it. A queue that
// package native lends keeps its own lock, because native polls it, too.
func TestHeldLock(t *testing.T) {
	r, by := newRig(t, ibv.QPT_RC), new(lock.Lock)
	lentCQ{r.cq}.Held(by)
	assert.Nil(t, r.cq.held)
	r.cq.Held(by)
	for what, f := range map[string]func(){
		"add":     func() { r.cq.add(r.qp) },
		"remove":  func() { r.cq.remove(r.qp) },
		"drop":    func() { r.cq.drop(r.qp) },
		"pause":   r.cq.pause,
		"arm":     func() { r.cq.Arm(nil, false) },
		"inspect": func() { r.cq.Inspect() },
	} {
		by.Lock()
		done := make(chan bool)
		go func() { f(); close(done) }()
		_, n := r.poll(8)
		assert.Zero(t, n)
		assert.Empty(t, r.cq.Misused(false))
		select {
		case <-done:
			t.Errorf("%s does not wait for the lock", what)
		case <-time.After(5 * time.Millisecond):
		}
		by.Unlock()
		<-done
	}
}
