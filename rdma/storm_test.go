// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Many goroutines concurrently use every operation on queue pairs that share completion queues and a shared receive
// queue, and create and close them. Each run favors other operations. Every completion arrives exactly once and belongs
// to a posted request, and slot counts are correct during the run and at its end.
func TestStorm(t *testing.T) {
	defer func(wait time.Duration) { lastWQEWait = wait }(lastWQEWait)
	lastWQEWait = time.Millisecond
	for range min(rounds(t, 100)/10, 100) { // each takes a tenth of a second; use -count for more
		seed := rand.Uint64()
		s := newStorm(t, seed)
		var all sync.WaitGroup
		for g := range uint64(6) {
			all.Go(func() { s.newStormer(rand.New(rand.NewPCG(seed, g))).run() })
		}
		all.Wait()
		s.end()
		if t.Failed() {
			t.Logf("seed %#x", seed)
			return
		}
	}
}

// StormOn, if set, opens the device to test instead of a software device. Its provider does not validate addresses, so
// the storm omits invalid requests.
var StormOn func(*testing.T) *Device

// storm is the shared state of the goroutines.
type storm struct {
	t       *testing.T
	until   time.Time
	actions []func(*stormer)
	device  *Device
	pds     [2]*PD
	mr      *MR
	mw      *MW
	ah      *AH
	cqs     [3]*CQ // on one channel; the first is extended, the last serves Calls
	calls   *Calls
	srq     *SRQ
	slots   [4]stormSlot

	ids      atomic.Uint64
	seen     sync.Map     // completed wr_ids
	received atomic.Int64 // outstanding receives of the shared queue
}

// stormSlot holds one queue pair at a time.
type stormSlot struct {
	qp    atomic.Pointer[QP]
	moves sync.Mutex // held during state changes of the queue pair
}

// Ranges of wr_ids.
const (
	stormIDs      = 1 << 50 // first wr_id: above any ticket of the test
	stormReceives = 1 << 51 // set in wr_ids of the shared receive queue
	stormDepth    = 8
)

func newStorm(t *testing.T, seed uint64) *storm {
	r := rand.New(rand.NewPCG(seed, seed))
	var o soft.Options
	if r.IntN(3) == 0 {
		o.Faults = soft.Faults{Seed: seed, Drop: 0.05, Duplicate: 0.05, Delay: 0.2, Late: 200 * time.Microsecond}
	}
	fabric, err := soft.New(o)
	require.NoError(t, err)
	s := &storm{t: t, until: time.Now().Add(100 * time.Millisecond)}
	if StormOn != nil {
		s.device = StormOn(t)
	} else {
		s.device = must(OpenOn(fabric, "soft0"))
	}
	s.pds = [2]*PD{must(s.device.AllocPD()), must(s.device.AllocPD())}
	s.mr = must(s.pds[0].RegMR(make([]byte, 4096), everyAccess))
	s.mw = must(s.pds[0].AllocMW(ibv.MW_TYPE_1))
	gid := must(s.device.FindGID(GIDQuery{}))
	s.ah = must(s.pds[0].CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1,
		GRH: ibv.GlobalRoute{DGID: gid.GID, SGIDIndex: uint8(gid.GIDIndex)}}))
	channel := must(s.device.CreateCompChannel())
	s.cqs[0] = must(s.device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 300, Channel: channel.Ptr(),
		WCFlags: ibv.WC_EX_WITH_QP_NUM}))
	s.cqs[1] = must(s.device.CreateCQ(300, channel, 0))
	s.cqs[2] = must(s.device.CreateCQ(300, channel, 0))
	if r.IntN(2) == 0 {
		for _, cq := range s.cqs {
			cq.SetBusyPoll(0)
		}
	}
	s.srq = must(s.pds[0].CreateSRQ(ibv.SRQAttr{MaxWR: 32, MaxSGE: 1}, QueueOptions{}))
	s.calls = must(NewCalls(s.cqs[2], 64, s.completed))
	s.actions = append(s.actions, stormActions[:5]...)
	for range 1 + r.IntN(8) {
		action := stormActions[r.IntN(len(stormActions))]
		for range 1 + r.IntN(3) {
			s.actions = append(s.actions, action)
		}
	}
	return s
}

func (s *storm) id() uint64 { return stormIDs + s.ids.Add(1) }

// completed records every completion except those of calls.
func (s *storm) completed(wc ibv.WC) {
	if wc.WRID < stormIDs { // completion of an abandoned call
		return
	}
	assert.LessOrEqual(s.t, wc.WRID&^stormReceives, stormIDs+s.ids.Load(), "completion of an unposted request")
	if wc.WRID&stormReceives != 0 {
		s.received.Add(-1)
	}
	_, twice := s.seen.LoadOrStore(wc.WRID, true)
	assert.False(s.t, twice, "%#x", wc.WRID)
}

// end closes all objects and compares the counts.
func (s *storm) end() {
	for i := range s.slots {
		if q := s.slots[i].qp.Load(); q != nil {
			require.NoError(s.t, q.Close())
		}
	}
	for _, cq := range s.cqs {
		for _, wc := range polled(s.t, cq) {
			if _, ok := s.calls.poller.Cancel(wc.WRID); !ok {
				s.completed(wc)
			}
		}
		assert.Equal(s.t, cq.Len(), cq.Free())
	}
	assert.Zero(s.t, s.calls.poller.Out())
	assert.EqualValues(s.t, s.received.Load(), int(s.srq.Cap().MaxWR)-s.srq.Queue().Free())
	require.NoError(s.t, CloseAll(nil, s.mw, s.mr, s.ah, s.srq, s.calls.poller, s.cqs[0], s.cqs[1], s.cqs[2],
		s.cqs[0].channel, s.pds[0], s.pds[1], s.device))
}

// stormer is one of the goroutines.
type stormer struct {
	*storm
	r       *rand.Rand
	send    *SendBatch
	recv    *RecvBatch
	program *PollProgram
	wcs     []ibv.WC
}

func (s *storm) newStormer(r *rand.Rand) *stormer {
	return &stormer{s, r, must(NewSendBatch(4, 1, 16)), must(NewRecvBatch(4, 1)),
		must(NewPollProgram(s.cqs[0].CEx(), 4, ibv.WC_EX_WITH_QP_NUM, QueueOptions{})), make([]ibv.WC, 8)}
}

func (s *stormer) run() {
	defer s.send.Close()
	defer s.recv.Close()
	defer s.program.Close()
	for !s.t.Failed() && time.Now().Before(s.until) {
		s.actions[s.r.IntN(len(s.actions))](s)
	}
}

func (s *stormer) chance(of int) bool { return s.r.IntN(of) == 0 }

// timeout returns a context that is canceled or soon will be.
func (s *stormer) timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(s.r.IntN(500))*time.Microsecond)
}

// use calls f with the queue pair in a random slot, if the slot is not empty.
func (s *stormer) use(f func(slot *stormSlot, q *QP)) {
	slot := &s.slots[s.r.IntN(len(s.slots))]
	if q := slot.qp.Load(); q != nil {
		f(slot, q)
	}
}

// move calls f with a queue pair whose state no other goroutine changes.
func (s *stormer) move(f func(q *QP)) {
	s.use(func(slot *stormSlot, q *QP) {
		if slot.moves.TryLock() {
			defer slot.moves.Unlock()
			f(q)
		}
	})
}

// sends returns a list in which some requests are invalid or fail.
func (s *stormer) sends(q *QP) *SendBatch {
	s.send.Reset()
	for range 1 + s.r.IntN(s.send.Cap()) {
		var w SendRequest
		switch {
		case q.Type() == ibv.QPT_UD && StormOn == nil && s.chance(8):
			w = s.send.Send(s.id()).UD(2, q.Num(), DefaultQKey) // no handle
		case q.Type() == ibv.QPT_UD:
			w = s.send.Send(s.id()).UD(s.ah.Ptr(), q.Num(), DefaultQKey)
		case StormOn == nil && s.chance(10):
			w = s.send.BindMW(s.id(), 2, 3, ibv.MWBindInfo{}) // no window
		case s.chance(40):
			w = s.send.Write(s.id(), 0, 0).SGE(1, 8, 99) // no key
		case s.chance(3):
			w = s.send.Send(s.id()).Inline([]byte("hello"))
		default:
			w = s.send.Write(s.id(), s.mr.Address(), s.mr.RKey()).Inline([]byte("hello"))
		}
		if s.chance(2) {
			w.Signaled()
		}
	}
	return s.send
}

func (s *stormer) receives(bit uint64) *RecvBatch {
	s.recv.Reset()
	for range 1 + s.r.IntN(s.recv.Cap()) {
		s.recv.Recv(s.id() | bit).Add(s.mr.SGE(2048, 64))
	}
	return s.recv
}

// shared counts the receives posted to the shared receive queue.
func (s *stormer) shared(posted int, _ error) { s.received.Add(int64(posted)) }

// recordCompletions records polled completions.
func (s *stormer) recordCompletions(n int, err error) {
	for _, wc := range s.wcs[:n] {
		s.completed(wc)
	}
	if err != nil {
		assert.ErrorIs(s.t, err, context.DeadlineExceeded)
	}
}

func (s *stormer) cq() *CQ { return s.cqs[s.r.IntN(2)] }

// checkFree checks that a number of free slots is plausible.
func (s *stormer) checkFree(free, most int) {
	assert.True(s.t, free >= 0 && free <= most, "%d of %d are free", free, most)
}
