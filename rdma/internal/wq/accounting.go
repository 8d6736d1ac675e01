package wq

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// slots counts what a queue holds. Positions count the work requests that were ever posted, modulo 2³²: those from retired up to
// posted are outstanding. One caller at a time posts (take, undo), one retires (with anyOrder, any number), and neither waits for the other: what stands
// between retired and posted belongs to who retires, the rest of the rings to who posts. They meet where a list that counts as posted is not: who
// takes it back, and who looks for a completion beyond the next one to come, do so under missing.
//
// A send queue's completions come in order. A successful one exists for a signalled request alone, and tells that all before it are
// done, too; after a failure every request completes, one by one. So a completion stands for the first outstanding request that
// bears its wr_id, and, when it succeeded, is signalled.
type slots struct {
	capacity uint32
	mask     uint32
	ids      []uint64 // by position
	signals  []uint32 // positions of signalled requests; unused where every one completes
	everyOne bool     // completes: receive queues, and send queues with sq_sig_all
	anyOrder bool     // shared receive queues: a completion gives one slot back, whichever it is

	head   atomic.Uint64 // of who posts: posted, and how many signals there ever were; one word, so that they change together
	signal uint32        // behind the last signalled request; of who posts
	_      [64]byte      // who retires writes to another cache line

	retired atomic.Uint32
	seen    uint32          // signals that are retired
	missing sync.Mutex      // a list that was not posted is not taken back while a completion is looked for that may be of nothing here
	given   func(id uint64) // told of every request that is done without a completion of its own; or nil
}

func (s *slots) init(capacity int, everyOne bool) error {
	if capacity <= 0 || capacity > 1<<30 {
		return fmt.Errorf("rdma: a checked queue has to know how many work requests it holds: QueueOptions.Cap, as C gave it back, says %d", capacity)
	}
	size := uint32(1) << bits.Len(uint(capacity-1))
	s.capacity, s.mask, s.everyOne = uint32(capacity), size-1, everyOne
	s.ids = make([]uint64, size)
	if !everyOne {
		s.signals = make([]uint32, size)
	}
	return nil
}

func (s *slots) load() (posted, signals uint32) {
	head := s.head.Load()
	return uint32(head >> 32), uint32(head)
}

// store tells who retires of what was posted.
func (s *slots) store(posted, signals uint32) {
	runtime.StoreRelease64(&s.head, uint64(posted)<<32|uint64(signals))
}

// free is the number of slots that nothing holds.
func (s *slots) free() int { return int(s.capacity) - s.outstanding() }

// outstanding is the number of slots that something holds, at one moment of the call: who posts and who retires go on meanwhile.
func (s *slots) outstanding() int {
	for {
		retired := s.retired.Load()
		if posted, _ := s.load(); s.retired.Load() == retired {
			return int(posted - retired)
		}
	}
}

// mark is where a list begins, for undo.
type mark struct{ posted, signals, signal uint32 }

// takeSend takes slots for a list that breaks no rule, unless it is too long or no completion would ever give slots back. The completions
// may come before the call that posts returns, so the list counts as posted from here on. No rules: nil.
func (s *slots) takeSend(wrs []ibv.SendWR, rules *sendChecks) (m mark, ok bool) {
	posted, signals := s.load()
	m = mark{posted, signals, s.signal}
	retired, signal := s.retired.Load(), s.signal
	free := int(s.capacity - (posted - retired))
	if len(wrs) > free {
		return m, false
	}
	ids := s.ids[posted&s.mask:]
	straight := min(len(wrs), len(ids)) // up to the end of the ring
	signalled, ok := rules.pass(wrs[:straight], ids)
	if straight < len(wrs) {
		more, pass := rules.pass(wrs[straight:], s.ids)
		if signalled == straight {
			signalled += more
		}
		ok = ok && pass
	}
	if !ok {
		signalled, ok = rules.careful(wrs, s.ids, posted, s.mask)
	}
	if !ok || rules != nil && rules.datagrams && !rules.addressed(wrs) {
		return m, false
	}
	if s.everyOne {
		signal = posted + uint32(len(wrs))
	} else {
		for i := signalled; i < len(wrs); i++ {
			if wrs[i].SendFlags&ibv.SEND_SIGNALED != 0 {
				s.signals[signals&s.mask] = posted + uint32(i)
				signals++
				signal = posted + uint32(i) + 1
			}
		}
	}
	if len(wrs) == free && int32(signal-retired) <= 0 {
		return m, false
	}
	s.signal = signal
	s.store(posted+uint32(len(wrs)), signals)
	return m, true
}

// takeRecv takes slots for a list, unless it is too long.
func (s *slots) takeRecv(wrs []ibv.RecvWR) (m mark, ok bool) {
	posted, _ := s.load()
	m.posted = posted
	if len(wrs) > int(s.capacity-(posted-s.retired.Load())) {
		return m, false
	}
	for i := range wrs {
		s.ids[posted&s.mask] = wrs[i].WRID
		posted++
	}
	s.store(posted, 0)
	return m, true
}

// undo gives back the slots of a list behind the first n, which alone were posted. A slot that a completion gave back meanwhile, of
// another queue but with an id of this list, stays given back.
func (s *slots) undo(m mark, n int) {
	s.missing.Lock()
	defer s.missing.Unlock()
	end := m.posted + uint32(n)
	if retired := s.retired.Load(); int32(retired-end) > 0 {
		end = retired
	}
	_, signals := s.load()
	s.signal = m.signal
	if s.everyOne {
		s.signal = end
	}
	for signals != m.signals && int32(s.signals[(signals-1)&s.mask]-end) >= 0 {
		signals--
	}
	if signals != m.signals {
		s.signal = s.signals[(signals-1)&s.mask] + 1
	}
	s.store(end, signals)
}

// retire gives back the slots that a completion tells of, and says whether it told of any.
func (s *slots) retire(id uint64, succeeded bool) bool {
	if !succeeded {
		return s.retireAny(id, false)
	}
	if s.anyOrder {
		return s.retireOne()
	}
	posted, signals := s.load()
	retired := s.retired.Load()
	next := retired // to complete: a queue that works does so in order
	if s.everyOne {
		if posted == retired {
			return false
		}
	} else {
		if signals == s.seen {
			return false
		}
		next = s.signals[s.seen&s.mask]
	}
	if s.ids[next&s.mask] != id {
		return s.retireAny(id, true)
	}
	if !s.everyOne {
		s.seen++
		s.giveBack(retired, next)
	}
	runtime.StoreRelease32(&s.retired, next+1)
	return true
}

// retireAny is retire of a completion that is not the next one's. Perhaps it is none of the queue's, and is looked for in vain, up to the list
// that is just being posted.
func (s *slots) retireAny(id uint64, succeeded bool) bool {
	s.missing.Lock()
	defer s.missing.Unlock()
	switch {
	case s.anyOrder:
		return s.retireOne()
	case succeeded && !s.everyOne:
		return s.retireSignalled(id)
	}
	return s.retireFirst(id)
}

// retireSignalled gives back the slots up to the first signalled request with an id.
func (s *slots) retireSignalled(id uint64) bool {
	_, signals := s.load()
	for k := s.seen; k != signals; k++ {
		if p := s.signals[k&s.mask]; s.ids[p&s.mask] == id {
			s.seen = k + 1
			s.giveBack(s.retired.Load(), p)
			runtime.StoreRelease32(&s.retired, p+1)
			return true
		}
	}
	return false
}

// retireFirst gives back the slots up to the first request with an id.
func (s *slots) retireFirst(id uint64) bool {
	posted, signals := s.load()
	retired := s.retired.Load()
	for p := retired; int32(posted-p) > 0; p++ {
		if s.ids[p&s.mask] == id {
			for ; s.seen != signals && int32(s.signals[s.seen&s.mask]-p) <= 0; s.seen++ {
			}
			s.giveBack(retired, p)
			runtime.StoreRelease32(&s.retired, p+1)
			return true
		}
	}
	return false
}

// giveBack tells of the requests from one position up to another, exclusive.
func (s *slots) giveBack(from, to uint32) {
	for ; s.given != nil && from != to; from++ {
		s.given(s.ids[from&s.mask])
	}
}

// retireOne gives one slot back. Several completion queues may have completions of a shared receive queue, so any number may retire at once.
func (s *slots) retireOne() bool {
	for {
		retired := s.retired.Load()
		if posted, _ := s.load(); posted == retired {
			return false
		}
		if s.retired.CompareAndSwap(retired, retired+1) {
			return true
		}
	}
}

// reset forgets what is outstanding. The caller excludes who posts and who retires.
func (s *slots) reset() {
	posted, signals := s.load()
	if !s.anyOrder {
		s.giveBack(s.retired.Load(), posted)
	}
	s.signal, s.seen = posted, signals
	s.retired.Store(posted)
}

// resize changes how many requests a queue in any order holds. The caller excludes who posts.
func (s *slots) resize(capacity int) {
	size := uint32(1) << bits.Len(uint(capacity-1))
	s.capacity, s.mask, s.ids = uint32(capacity), size-1, make([]uint64, size)
}

// reason says why there are no slots for a list of n.
func (s *slots) reason(n int) string {
	free := s.free()
	switch {
	case n > int(s.capacity):
		return fmt.Sprintf("a list of %d is longer than the queue, which holds %d", n, s.capacity)
	case n > free:
		return fmt.Sprintf("a list of %d does not fit: %d of %d slots are free until completions are polled", n, free, s.capacity)
	}
	return fmt.Sprintf("a list of %d would fill the queue with %d requests none of which is signalled: no completion would ever give a slot back (at least one has to bear IBV_SEND_SIGNALED)", n, s.capacity)
}

// ofSend says whether a successful completion is of a send queue: those of the provider's own operations are, too.
func ofSend(op ibv.WCOpcode) bool { return op < ibv.WC_RECV || op > ibv.WC_TM_NO_TAG }

// ofRecv says whether a successful completion took a posted receive. Those of tag matching did not: a tagged message goes to the buffer
// that its tag was added with.
func ofRecv(op ibv.WCOpcode) bool {
	return op == ibv.WC_RECV || op == ibv.WC_RECV_RDMA_WITH_IMM || op == ibv.WC_TM_NO_TAG
}
