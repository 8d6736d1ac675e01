// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sent is a work request in the model of a send queue.
type sent struct {
	id        uint64
	signalled bool
}

// Slot accounting agrees with a model of the device after any sequence of posts, completions, failures and flushes. It
// rejects exactly the lists that do not fit and those that would block the queue forever. If wr_ids repeat, it may
// attribute a failure to an earlier request and release fewer slots, but never more.
func TestAccountingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDevice(t, ibv.QPT_RC)
		capacity := rapid.IntRange(1, 9).Draw(t, "capacity")
		everyOne := rapid.Bool().Draw(t, "sq_sig_all")
		repeat := rapid.Bool().Draw(t, "ids repeat")
		o := options(uint32(capacity), 1, 0)
		o.SQSigAll = everyOne
		q, err := NewSendQueue(&d.qp, o)
		require.NoError(t, err)
		b, err := NewSendBatch(12, 1, 0)
		require.NoError(t, err)
		defer b.Close()

		var outstanding []sent
		broken, failed, next := false, false, uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				n := rapid.IntRange(1, 12).Draw(t, "length")
				b.Reset()
				var list []sent
				for range n {
					id := next
					if next++; repeat {
						id = rapid.Uint64Range(0, 2).Draw(t, "id")
					}
					r := b.Write(id, 0, 0)
					signalled := rapid.IntRange(0, 4).Draw(t, "signalled") == 0
					if signalled {
						r.Signaled()
					}
					list = append(list, sent{id, signalled || everyOne})
				}
				d.fail = passes
				if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
					d.fail = rapid.IntRange(0, n-1).Draw(t, "at")
				}
				free := capacity - len(outstanding)
				if repeat && failed {
					free = q.Free()
				}
				alive := func(s sent) bool { return s.signalled }
				fits := n <= free && (n < free || slices.ContainsFunc(outstanding, alive) ||
					slices.ContainsFunc(list, alive))
				before := len(d.sends)
				posted, err := q.Post(b)
				if !(repeat && failed) {
					require.Equal(t, fits, len(d.sends) > before, "C is called if and only if the list fits: "+
						"%v", err)
				}
				if !fits && len(d.sends) == before {
					require.ErrorIs(t, err, syscall.ENOMEM)
				}
				if len(d.sends) > before {
					if d.fail != passes {
						require.Equal(t, d.fail, posted)
					} else {
						require.Equal(t, n, posted)
					}
				}
				outstanding = append(outstanding, list[:posted]...)
			},
			"succeed": func(t *rapid.T) {
				at := slices.IndexFunc(outstanding, func(s sent) bool { return s.signalled })
				if broken || at < 0 {
					t.Skip("no request to complete")
				}
				q.Retire([]ibv.WC{success(outstanding[at].id)})
				outstanding = outstanding[at+1:]
			},
			"fail": func(t *rapid.T) {
				if len(outstanding) == 0 {
					t.Skip("no request to fail")
				}
				at := 0
				if !broken { // earlier unsignaled requests succeeded; signaled ones still complete
					most := slices.IndexFunc(outstanding, func(s sent) bool { return s.signalled })
					if most < 0 {
						most = len(outstanding) - 1
					}
					at = rapid.IntRange(0, most).Draw(t, "at")
				}
				q.Retire([]ibv.WC{{WRID: outstanding[at].id, QPNum: 0x12, Status: ibv.WC_WR_FLUSH_ERR,
					Opcode: ibv.WCOpcode(0xdead)}})
				outstanding = outstanding[at+1:]
				broken, failed = true, true
			},
			"repair": func(t *rapid.T) { broken = broken && len(outstanding) > 0 },
			"stray": func(t *rapid.T) {
				q.Retire([]ibv.WC{{WRID: 1 << 40, QPNum: 0x12}, {WRID: 0, QPNum: 0x13}, {WRID: 0, QPNum: 0x12,
					Opcode: ibv.WC_RECV}})
			},
			"": func(t *rapid.T) {
				if repeat && failed {
					require.LessOrEqual(t, q.Free(), capacity-len(outstanding))
				} else {
					require.Equal(t, capacity-len(outstanding), q.Free())
				}
			},
		})
	})
}

func TestRefusals(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(4, 1, 0))
	b := sendBatch(t, 8, 1, 0)
	_, err := q.Post(writes(b, 1, 5))
	assert.EqualError(t, err, "ibv_post_send: QP 0x12 (RC): WR 0 (id 0x1): a list of 5 is longer than the queue, "+
		"which holds 4: cannot allocate memory")

	b.Reset()
	for i := range uint64(4) {
		b.Write(i, 0, 0)
	}
	_, err = q.Post(b)
	assert.EqualError(t, err, "ibv_post_send: QP 0x12 (RC): WR 0 (id 0x0): a list of 4 would fill the queue with 4 "+
		"unsignalled requests: "+
		"no completion would ever give a slot back (set IBV_SEND_SIGNALED on at least one): cannot allocate memory")
	assert.Empty(t, d.sends, "rejected before the call")

	posted, err := q.PostRange(b, 0, 3)
	require.NoError(t, err)
	assert.Equal(t, 3, posted)
	_, err = q.Post(writes(b, 9, 1))
	require.NoError(t, err, "the last request is signaled")
	_, err = q.Post(b)
	assert.ErrorContains(t, err, "a list of 1 does not fit: 0 of 4 slots are free")
	q.Retire([]ibv.WC{success(9)})
	assert.Equal(t, 4, q.Free())
}

// If a post fails without bad_wr, all requests may have been posted, so their slots stay taken until a later
// completion.
func TestUnknownFailureKeepsSlots(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(8, 1, 0))
	b := sendBatch(t, 8, 1, 0)
	d.fail, d.null = 2, true
	_, err := q.Post(writes(b, 0, 4))
	require.Error(t, err)
	assert.Equal(t, 4, q.Free())
	d.fail = passes
	_, err = q.Post(writes(b, 10, 2))
	require.NoError(t, err)
	q.Retire([]ibv.WC{success(11)})
	assert.Equal(t, 8, q.Free())

	recv, err := NewRecvQueue(&d.qp, options(8, 1, 0))
	require.NoError(t, err)
	r := recvBatch(t, 4, 1)
	for i := range uint64(4) {
		r.Recv(i)
	}
	d.fail = 2
	_, err = recv.Post(r)
	require.Error(t, err)
	assert.Equal(t, 4, recv.Free())
}

// Completions of a shared receive queue may arrive in several completion queues, each polled by its own goroutine.
func TestSharedRecvQueueRetiredByMany(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	const n = 2048
	srq, err := NewSharedRecvQueue(&d.srq, options(n, 1, 0))
	require.NoError(t, err)
	b := recvBatch(t, n, 1)
	for i := range uint64(n) {
		b.Recv(i)
	}
	for range 300 {
		_, err := srq.Post(b)
		require.NoError(t, err)
		var polled sync.WaitGroup
		for qp := range uint32(2) {
			polled.Go(func() {
				for i := range uint64(n / 2) {
					srq.Retire([]ibv.WC{{WRID: i, QPNum: qp, Opcode: ibv.WC_RECV}})
				}
			})
		}
		polled.Wait()
		require.Equal(t, n, srq.Free())
	}
}

func TestAccountingPastCounterWrap(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(4, 1, 0))
	start := ^uint32(0) - 5
	q.start(start)
	b := sendBatch(t, 4, 1, 0)
	for i := range uint64(10) {
		_, err := q.Post(writes(b, i*10, 3))
		require.NoError(t, err)
		require.Equal(t, 1, q.Free())
		q.Retire([]ibv.WC{success(i*10 + 2)})
		require.Equal(t, 4, q.Free())
	}
}

// The device rejects a list while the accounting searches for a failed completion with the same wr_id. No slot is
// released twice.
func TestFailedCompletionDuringFailedPost(t *testing.T) {
	var s slots
	require.NoError(t, s.init(4, false))
	list := make([]ibv.SendWR, 4)
	for i := range list {
		list[i].WRID, list[i].SendFlags = uint64(i), ibv.SEND_SIGNALED
	}
	var wg sync.WaitGroup
	stranger := func(id uint64) {
		wg.Go(func() {
			for range 20_000 {
				s.retire(id, false)
			}
		})
	}
	stranger(99)
	for range 20_000 {
		m, ok := s.reserveSends(list, nil)
		require.True(t, ok)
		s.undo(m, 0)
	}
	wg.Wait()
	assert.Equal(t, 4, s.free())

	for posted := range 3 {
		m, ok := s.reserveSends(list, nil)
		require.True(t, ok)
		require.True(t, s.retire(1, false))
		s.undo(m, posted)
		assert.Equal(t, 4, s.free())
		assert.False(t, s.retire(2, true), "the request was not posted")
		assert.Zero(t, s.outstanding())
	}
	_, ok := s.reserveSends(list, nil)
	require.True(t, ok)
	require.True(t, s.retire(3, true))
	assert.Equal(t, 4, s.free())
}

// TestResizeLimitsPosts: after shrinking, a queue accepts no more than its new size, although posts cache the number of
// free slots.
func TestResizeLimitsPosts(t *testing.T) {
	list, err := NewRecvBatch(8, 1)
	require.NoError(t, err)
	defer list.Close()
	for i := range uint64(8) {
		list.Recv(i)
	}
	var s slots
	s.anyOrder = true
	require.NoError(t, s.init(8, true))
	_, ok := s.reserveRecvs(&list.batch, 0, 7)
	require.True(t, ok)
	for i := range uint64(7) {
		require.True(t, s.retire(i, true))
	}
	s.resize(4)
	_, ok = s.reserveRecvs(&list.batch, 0, 5)
	assert.False(t, ok)
	_, ok = s.reserveRecvs(&list.batch, 0, 4)
	assert.True(t, ok)
	assert.Zero(t, s.free())
}

// TestListsWithOneSignalledRequest: a completion releases the slots of its list, wherever in the ring the list ends,
// even if all requests have the same wr_id.
func TestListsWithOneSignalledRequest(t *testing.T) {
	for _, short := range []bool{true, false} {
		for _, capacity := range []int{1, 2, 4, 8, 16, 31, 32, 48, 64, 128} {
			q, cq := new(SendQueue), new(CompletionQueue)
			s := &q.slots
			require.NoError(t, s.init(capacity, false))
			cq.tracked.resize(minPlaces)
			cq.tracked.set(0, trackedQueues{Send: q})
			list := make([]ibv.SendWR, min(capacity, 3))
			list[len(list)-1].SendFlags = ibv.SEND_SIGNALED
			for i := range 2000 {
				_, ok := s.reserveSends(list, nil)
				require.True(t, ok, "capacity %d, list %d", capacity, i)
				if short {
					cq.retireAll(make([]ibv.WC, 1))
				} else {
					s.retire(0, true)
				}
				require.Zero(t, s.outstanding(), "capacity %d, list %d", capacity, i)
			}
		}
	}
}
