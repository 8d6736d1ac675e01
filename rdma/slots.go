// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
)

// slots counts the slots of a queue. A position counts the work requests that were ever posted, modulo 2³²; those from
// retired up to posted are outstanding. One caller at a time posts (takeSend, undo and their like), under slots.mu, and
// one retires (with anyOrder, any number). Neither waits for the other: the places between retired and posted belong to
// the one that retires, the rest of the ring to the one that posts. Both need slots.missing for two things: to take
// back a list that the device refused, which counted as posted before the call, and to look for a completion beyond the
// next one.
//
// A send queue's completions come in order. A successful one exists for a signalled request alone, and means that all
// before it are done, too; after a failure every request completes, one by one. So a completion stands for the first
// outstanding request that bears its wr_id, and, when it succeeded, is signalled.
//
// With many queues, a post costs mostly cache misses: see queue for the layout.
type slots struct {
	// The first cache line has all that leads to the place of the next wr_id: of many queues, no other is waited for.
	ring   unsafe.Pointer // mask + 1 wr_ids by position, and behind them a bit for each: the request is signalled
	posted atomic.Uint32  // of the one that posts
	mask   uint32

	posting // which a post reads, too

	limit    uint32 // position of the first request that may find no slot, as the last post that read retired knew it
	capacity uint32
	signal   uint32      // position behind the last signalled request, kept while mixed; of the one that posts
	mixed    atomic.Bool // some requests complete by themselves, others do not; otherwise all do, and the bits are set
	everyOne bool        // completes, whatever its flags: receive queues, and send queues with sq_sig_all
	anyOrder bool        // shared receive queues: a completion gives one slot back, whichever it is
	locked   bool        // posts hold mu: the queue is checked, or has an owner
	plain    bool        // guarded by mu: posts may call C by runtime.CallDirect, and nothing refuses them
	direct   bool        // plain, and nothing stands before the call: no lock, no check
	checked  bool        // a send queue with checks
	// a checked send queue whose requests have no addresses, as far as the tables know
	connected  bool
	hasPostOne bool // quick is not nil
	inPath     bool // guarded by mu: a path is called for a queue that counts

	mu lock.Lock

	quick    datapath.Queue  // of a send queue whose path owns it, for PostOne; or nil
	_        [24]byte        // the one that retires writes to another line
	retired  atomic.Uint32   // of the one that retires
	num      uint32          // of the queue pair, which may be gone
	searchMu sync.Mutex      // see above
	onSilent func(id uint64) // called for every request that is done without a completion of its own; or nil
}

// begins spreads the positions at which rings begin: rings that are aligned to pages would share a few lines of the
// cache. A list of a power of two then mostly has its bits in one word.
var ringStarts atomic.Uint32

// init makes room for capacity requests. It needs no lock: nobody posts yet.
func (s *slots) init(capacity int, everyOne bool) error {
	if capacity <= 0 || capacity > 1<<30 {
		return invalid("", "", "a checked queue needs its number of work requests: QueueOptions.Cap, as C returned "+
			"it, has %d", capacity)
	}
	s.everyOne = everyOne
	s.resize(capacity)
	s.start(ringStarts.Add(64) & s.mask)
	return nil
}

// resize changes how many requests a queue holds of which nothing is outstanding, or one in any order, whose wr_ids are
// never asked for. No more may be outstanding than it will hold. The caller holds slots.mu.
func (s *slots) resize(capacity int) {
	size := 1 << bits.Len(uint(capacity-1))
	ring := make([]uint64, size+(size+63)/64)
	for i := 0; i < len(ring); i += 4096 / 8 {
		ring[i] = 0 // the kernel finds the page now and not during a post
	}
	s.capacity, s.mask, s.ring = uint32(capacity), uint32(size-1), unsafe.Pointer(unsafe.SliceData(ring))
	s.limit = s.retired.Load() + s.capacity // what was seen long ago may be more behind than a smaller queue is long
}

// begin sets where a queue begins in which nothing is outstanding. The caller holds slots.mu.
func (s *slots) start(position uint32) {
	s.limit = position + s.capacity
	s.mixed.Store(false)
	s.posted.Store(position)
	s.retired.Store(position)
}

// mix prepares for the first request that is not signalled: until here, all were. Bits that no position has stay 0, or
// a search for the next one in a word would find them.
func (s *slots) startSignals(posted uint32) {
	words := unsafe.Slice((*atomic.Uint64)(unsafe.Add(s.ring, (uintptr(s.mask)+1)*8)), s.mask/64+1)
	all := ^uint64(0)
	if s.mask < 63 {
		all = 1<<(s.mask+1) - 1
	}
	for i := range words {
		words[i].Store(all)
	}
	s.signal = posted
	s.mixed.Store(true) // whoever sees a request that is not signalled sees this, too
}

// id is the place of a position's wr_id. The ring has one for each value under the mask.
func (s *slots) id(position uint32) *uint64 {
	return (*uint64)(unsafe.Add(s.ring, uintptr(position&s.mask)*8))
}

// signals is the word of the ring that has a position's bit, and which one that is. A ring of fewer than 64 positions
// has one word.
func (s *slots) signals(position uint32) (word *atomic.Uint64, bit uint32) {
	at := position & s.mask
	return (*atomic.Uint64)(unsafe.Add(s.ring, (uintptr(s.mask)+1+uintptr(at/64))*8)), at % 64
}

func (s *slots) free() int { return int(s.capacity) - s.outstanding() }

// outstanding is the number of slots that are taken, at one moment of the call: others post and retire at the same time.
func (s *slots) outstanding() int {
	for {
		retired := s.retired.Load()
		if posted := s.posted.Load(); s.retired.Load() == retired {
			return int(posted - retired)
		}
	}
}

// positions returns the numbers for Positions. It reads retired first, so that posted is never less.
func (s *slots) positions() (done, posted, slots uint32) {
	done = s.retired.Load()
	return done, s.posted.Load(), s.capacity
}

// silent is outstanding if none of those requests is signalled, or 0.
func (s *slots) silent() int {
	if s.everyOne || s.anyOrder || !s.mixed.Load() {
		return 0
	}
	n, first := s.outstanding(), s.retired.Load()
	if _, some := s.nextSignalled(first, first+uint32(n)); some {
		return 0
	}
	return n
}

// room is how many slots are free for a list of n, as far as that matters. The caller holds slots.mu.
func (s *slots) freeFor(posted uint32, n int) int {
	free := s.limit - posted
	if n >= int(free) {
		s.limit = s.retired.Load() + s.capacity
		free = s.limit - posted
	}
	return int(free)
}

// reason returns why a list of n finds no slots.
func (s *slots) fullReason(n int) string {
	free := s.free()
	switch {
	case n > int(s.capacity):
		return fmt.Sprintf("a list of %d is longer than the queue, which holds %d", n, s.capacity)
	case n > free:
		return fmt.Sprintf("a list of %d does not fit: %d of %d slots are free until completions are polled", n,
			free, s.capacity)
	}
	return fmt.Sprintf("a list of %d would fill the queue with %d unsignalled requests: no completion would ever "+
		"give a slot back (set IBV_SEND_SIGNALED on at least one)", n, s.capacity)
}

// mark is the state before a list, for undo.
type reservation struct{ posted, signal uint32 }

// takeSend takes slots for a list that breaks no rule, unless it is too long or no completion would ever give slots
// back. The completions may come before the call that posts returns, so the list counts as posted from here on. rules
// may be nil.
func (s *slots) reserveSends(wrs []ibv.SendWR, rules *sendChecks) (m reservation, ok bool) {
	posted, signal := s.posted.Load(), s.signal
	m = reservation{posted, signal}
	free := s.freeFor(posted, len(wrs))
	if len(wrs) > free {
		return m, false
	}
	for done := 0; done < len(wrs); {
		at := posted + uint32(done)
		place := at & s.mask
		// up to the end of a word of bits, or of the ring
		n := min(len(wrs)-done, int(64-place%64), int(s.mask-place)+1)
		part := wrs[done : done+n]
		signalled, ok := rules.check(part, s.id(place))
		if !ok {
			return m, false
		}
		all := ^uint64(0) >> (-n & 63)
		if s.everyOne || signalled == all && !s.mixed.Load() {
			signal = at + uint32(n)
		} else {
			if !s.mixed.Load() {
				s.startSignals(posted)
				m.signal, signal = posted, at
			}
			if signalled != 0 {
				signal = at + uint32(bits.Len64(signalled))
			}
			s.setSignals(at, all, signalled)
		}
		done += n
	}
	// nothing outstanding is signalled
	if retired := s.limit - s.capacity; len(wrs) == free && int32(signal-retired) <= 0 {
		return m, false
	}
	s.signal = signal
	lock.StoreRelease32(&s.posted, posted+uint32(len(wrs)))
	return m, true
}

// signalOne is setSignals of one request.
func (s *slots) setSignal(position uint32, w *ibv.SendWR) {
	signalled := uint64(w.SendFlags>>signalledBit) & 1
	if signalled != 0 {
		s.signal = position + 1
	}
	s.setSignals(position, 1, signalled)
}

// setSignals writes the bits of a mask that a word has from a position on.
func (s *slots) setSignals(position uint32, mask, signalled uint64) {
	word, bit := s.signals(position)
	old := word.Load()
	if value := old&^(mask<<(bit&63)) | signalled<<(bit&63); value != old {
		lock.StoreRelease64(word, value)
	}
}

// signalled is the first signalled request between two positions.
func (s *slots) nextSignalled(from, to uint32) (position uint32, ok bool) {
	for int32(to-from) > 0 {
		word, bit := s.signals(from)
		if value := word.Load() >> bit; value != 0 {
			position = from + uint32(bits.TrailingZeros64(value))
			return position, int32(to-position) > 0
		}
		from += min(64-bit, s.mask+1-from&s.mask)
	}
	return from, false
}

// takeRecv takes slots for a list, unless it is too long. The caller holds slots.mu.
func (s *slots) reserveRecvs(b *batch, from, to int) (m reservation, ok bool) {
	posted := s.posted.Load()
	m.posted = posted
	if to-from > s.freeFor(posted, to-from) {
		return m, false
	}
	for ; from < to; from++ {
		*s.id(posted) = b.wr(from).WRID
		posted++
	}
	lock.StoreRelease32(&s.posted, posted)
	return m, true
}

// undo gives back the slots of a list behind the first n, which alone were posted. By then a completion of another
// queue may have given back some, if its id is one of this list: those stay given back. The caller holds slots.mu. It
// takes slots.missing.
func (s *slots) undo(m reservation, n int) {
	s.searchMu.Lock()
	defer s.searchMu.Unlock()
	end := m.posted + uint32(n)
	if retired := s.retired.Load(); int32(retired-end) > 0 {
		end = retired
	}
	s.signal = m.signal
	if s.mixed.Load() {
		for p := end; p != m.posted; p-- {
			if word, bit := s.signals(p - 1); word.Load()>>bit&1 != 0 {
				s.signal = p
				break
			}
		}
	}
	lock.StoreRelease32(&s.posted, end)
}

// retire frees the slots that a completion stands for, and reports whether there were any.
func (s *slots) retire(id uint64, succeeded bool) bool {
	if !succeeded {
		return s.retireOutOfOrder(id, false)
	}
	if s.anyOrder {
		return s.retireOne()
	}
	posted, retired := s.posted.Load(), s.retired.Load()
	next, ok := retired, posted != retired // to complete: a queue that works does so in order
	if ok && s.mixed.Load() {
		next, ok = s.nextSignalled(retired, posted)
	}
	if !ok {
		return false
	}
	if *s.id(next) != id {
		return s.retireOutOfOrder(id, true)
	}
	if next != retired {
		s.reportSilent(retired, next)
	}
	lock.StoreRelease32(&s.retired, next+1)
	return true
}

// retireAny retires a completion out of order. It searches the queue's requests, up to the list that is just being
// posted, and may find none. It takes slots.missing.
func (s *slots) retireOutOfOrder(id uint64, succeeded bool) bool {
	s.searchMu.Lock()
	defer s.searchMu.Unlock()
	if s.anyOrder {
		return s.retireOne()
	}
	posted, retired := s.posted.Load(), s.retired.Load()
	for p := retired; int32(posted-p) > 0; p++ {
		if succeeded && s.mixed.Load() {
			var ok bool
			if p, ok = s.nextSignalled(p, posted); !ok {
				break
			}
		}
		if *s.id(p) == id {
			s.reportSilent(retired, p)
			lock.StoreRelease32(&s.retired, p+1)
			return true
		}
	}
	return false
}

// giveBack calls given for the requests from one position to another, exclusive.
func (s *slots) reportSilent(from, to uint32) {
	for ; s.onSilent != nil && from != to; from++ {
		s.onSilent(*s.id(from))
	}
}

// retireOne gives one slot back. Several completion queues may have completions of a shared receive queue, so any
// number may retire at once.
func (s *slots) retireOne() bool {
	for {
		retired := s.retired.Load()
		if s.posted.Load() == retired {
			return false
		}
		if s.retired.CompareAndSwap(retired, retired+1) {
			return true
		}
	}
}

// reset frees all slots. The caller holds slots.mu, and excludes completions.
func (s *slots) reset() {
	posted := s.posted.Load()
	if !s.anyOrder {
		s.reportSilent(s.retired.Load(), posted)
	}
	s.start(posted)
}

// takeAlike is takeSend for the usual list, or returns false: its requests are of one shape, fewer than the slots that
// are known to be free, and their bits are in one word. It makes a checked post of 16 a ninth faster (make bench).
func (s *slots) reserveUniform(wrs []ibv.SendWR, rules *sendChecks) (m reservation, ok bool) {
	n, posted := len(wrs), s.posted.Load()
	place := posted & s.mask
	if n == 0 || n > int(64-place%64) || n > int(s.mask-place)+1 || n >= int(s.limit-posted) {
		return m, false
	}
	rule := rules.allows(&wrs[0])
	if rule == nil || rule.hasOperands || wrs[0].NumSGE != 1 {
		return m, false
	}
	count, signalled := uniformPrefix(&wrs[0], n, s.id(place), rule.denied|ibv.SEND_INLINE, rule.maxBytes)
	if count != n {
		return m, false
	}
	m.posted, m.signal = posted, s.signal
	all := ^uint64(0) >> (-n & 63)
	switch {
	case s.everyOne || signalled == all && !s.mixed.Load():
		s.signal = posted + uint32(n)
	case !s.mixed.Load():
		return m, false
	default:
		if signalled != 0 {
			s.signal = posted + uint32(bits.Len64(signalled))
		}
		s.setSignals(posted, all, signalled)
	}
	lock.StoreRelease32(&s.posted, posted+uint32(n))
	return m, true
}

// alike does what pass does for the first of at most n requests, and those that follow with the same opcode, one entry,
// and the same of some flags: a message has at most so many bytes. It returns how many they are, or 0 if one is longer.
// Most have all flags of the one before, so that whether they are signalled is noted once for a run of them.
func uniformPrefix(w *ibv.SendWR, n int, id *uint64, flags ibv.SendFlags, most uint32) (count int, signalled uint64) {
	shape, first := *shapeOf(w), w.SendFlags
	from, run, begin := w, first, 0
	last := (*ibv.SendWR)(unsafe.Add(unsafe.Pointer(w), uintptr(n-1)*unsafe.Sizeof(*w)))
	for {
		if w.SGList.Deref().Length > most {
			return 0, 0
		}
		*id = w.WRID
		if w == last {
			return n, signalled | signalBits(run, begin, n)
		}
		w = (*ibv.SendWR)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w)))
		id = (*uint64)(unsafe.Add(unsafe.Pointer(id), unsafe.Sizeof(*id)))
		if *shapeOf(w) == shape && w.SendFlags == run {
			continue
		}
		count = int((uintptr(unsafe.Pointer(w)) - uintptr(unsafe.Pointer(from))) / unsafe.Sizeof(*w))
		signalled |= signalBits(run, begin, count)
		if *shapeOf(w) != shape || (w.SendFlags^first)&flags != 0 {
			return count, signalled
		}
		run, begin = w.SendFlags, count
	}
}

// runOf is the bits of requests from one index up to another, exclusive, if they are signalled.
func signalBits(flags ibv.SendFlags, from, to int) uint64 {
	if flags&ibv.SEND_SIGNALED == 0 {
		return 0
	}
	return ^uint64(0) >> ((from - to) & 63) << (from & 63)
}

// shapeOf is the opcode and the number of entries of a request.
func shapeOf(w *ibv.SendWR) *uint64 { return (*uint64)(unsafe.Pointer(&w.NumSGE)) }

var _ = [1]byte{}[unsafe.Offsetof(ibv.SendWR{}.Opcode)-
	unsafe.Offsetof(ibv.SendWR{}.NumSGE)-unsafe.Sizeof(ibv.SendWR{}.NumSGE)]
