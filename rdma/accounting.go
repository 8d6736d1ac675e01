package rdma

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
)

// slots counts what a queue holds. Positions count the work requests that were ever posted: those from retired up to posted are
// outstanding. One caller at a time posts (take, undo), one retires, and they need not wait for each other: what stands
// between retired and posted belongs to who retires, the rest of the rings to who posts.
//
// A send queue's completions come in order. A successful one exists for a signalled request alone, and tells that all before it are
// done, too; after a failure every request completes, one by one. So a completion stands for the first outstanding request that
// bears its wr_id, and, when it succeeded, is signalled.
type slots struct {
	capacity  uint64
	mask      uint64
	ids       []uint64
	signalled []bool
	everyOne  bool // completes: receive queues, and send queues with sq_sig_all
	anyOrder  bool // shared receive queues: a completion gives one slot back, whichever it is

	posted atomic.Uint64
	signal uint64 // behind the last signalled request; of who posts
	_      [64]byte

	mu      sync.Mutex // of who retires
	retired atomic.Uint64
}

func (s *slots) init(capacity int, everyOne bool) error {
	if capacity <= 0 {
		return fmt.Errorf("rdma: a checked queue has to know how many work requests it holds: QueueOptions.Cap, as C gave it back")
	}
	size := uint64(1) << bits.Len(uint(capacity-1))
	s.capacity, s.mask, s.everyOne = uint64(capacity), size-1, everyOne
	s.ids, s.signalled = make([]uint64, size), make([]bool, size)
	return nil
}

// free is the number of slots that nothing holds.
func (s *slots) free() int { return int(s.capacity - (s.posted.Load() - s.retired.Load())) }

// mark is where a list begins, for undo.
type mark struct{ posted, signal uint64 }

// takeSend takes slots for a list, unless it is too long or no completion would ever give slots back. The completions may come before
// the call that posts returns, so the list counts as posted from here on.
func (s *slots) takeSend(wrs []ibv.SendWR) (m mark, ok bool) {
	m = mark{s.posted.Load(), s.signal}
	retired, signal := s.retired.Load(), m.signal
	free := s.capacity - (m.posted - retired)
	if uint64(len(wrs)) > free {
		return m, false
	}
	position := m.posted
	for i := range wrs {
		w, at := &wrs[i], position&s.mask
		signalled := s.everyOne || w.SendFlags&ibv.SEND_SIGNALED != 0
		s.ids[at], s.signalled[at] = w.WRID, signalled
		position++
		if signalled {
			signal = position
		}
	}
	if uint64(len(wrs)) == free && signal <= retired {
		return m, false
	}
	s.signal = signal
	s.posted.Store(position)
	return m, true
}

// takeRecv takes slots for a list, unless it is too long.
func (s *slots) takeRecv(wrs []ibv.RecvWR) (m mark, ok bool) {
	m = mark{posted: s.posted.Load()}
	if uint64(len(wrs)) > s.capacity-(m.posted-s.retired.Load()) {
		return m, false
	}
	for i := range wrs {
		at := (m.posted + uint64(i)) & s.mask
		s.ids[at], s.signalled[at] = wrs[i].WRID, true
	}
	s.posted.Store(m.posted + uint64(len(wrs)))
	return m, true
}

// undo gives back the slots of a list behind the first n, which alone were posted.
func (s *slots) undo(m mark, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := m.posted + uint64(n)
	s.signal = m.signal
	for p := end; p > m.posted; p-- {
		if s.signalled[(p-1)&s.mask] {
			s.signal = p
			break
		}
	}
	s.posted.Store(end)
	s.retired.Store(min(s.retired.Load(), end))
}

// retire gives back the slots that a completion tells of. The caller holds mu.
func (s *slots) retire(id uint64, succeeded bool) {
	retired, posted := s.retired.Load(), s.posted.Load()
	if s.anyOrder {
		s.retired.Store(min(retired+1, posted))
		return
	}
	for p := retired; p < posted; p++ {
		if at := p & s.mask; s.ids[at] == id && (s.signalled[at] || !succeeded) {
			s.retired.Store(p + 1)
			return
		}
	}
}

// reset forgets what is outstanding. The caller excludes who posts and who retires.
func (s *slots) reset() {
	s.posted.Store(0)
	s.retired.Store(0)
	s.signal = 0
}

// reason says why there are no slots for a list of n.
func (s *slots) reason(n int) string {
	free := s.free()
	switch {
	case uint64(n) > s.capacity:
		return fmt.Sprintf("a list of %d is longer than the queue, which holds %d", n, s.capacity)
	case n > free:
		return fmt.Sprintf("a list of %d does not fit: %d of %d slots are free until completions are polled", n, free, s.capacity)
	}
	return fmt.Sprintf("a list of %d would fill the queue with %d requests none of which is signalled: no completion would ever give a slot back (at least one has to bear IBV_SEND_SIGNALED)", n, s.capacity)
}
