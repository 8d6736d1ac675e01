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

// slots accounts for the slots of a queue. A position is the number of requests posted before a request, modulo 2³².
// Requests at positions retired to posted-1 are outstanding. One poster at a time, under slots.mu, reserves and undoes;
// one poller at a time retires (any number if anyOrder is set). They do not wait for each other: ring entries between
// retired and posted belong to the poller, the others to the poster. Two rare operations lock searchMu as well: undo,
// because the list counted as posted before the call, and retiring a request other than the next one.
//
// A send queue completes in order. Only signalled requests have successful completions, and such a completion implies
// that all earlier requests completed. After a failure, every request completes individually. A completion therefore
// belongs to the first outstanding request with its wr_id; if successful, to the first one that is also signalled.
//
// With many queues, the cost of a post is mostly cache misses: see queue for the layout.
type slots struct {
	// The first cache line holds everything needed to find the ring entry of the next request.
	ring   unsafe.Pointer // mask+1 wr_ids by position, followed by one bit each: the request is signalled
	posted atomic.Uint32  // written by the poster
	mask   uint32

	posting

	limit    uint32 // cached retired + capacity: requests from this position on may find no slot
	capacity uint32
	signal   uint32      // position after the last signalled request, maintained while mixed; written by the poster
	mixed    atomic.Bool // some requests are not signalled; while false, all are, and the ring's bits are unused
	everyOne bool        // every request completes, whatever its flags: receive queues, and sends with sq_sig_all
	anyOrder bool        // shared receive queues: a completion frees any one slot
	locked   bool        // posts hold mu: the queue is checked or has an owner
	plain    bool        // guarded by mu: posts may use runtime.CallDirect, and refusal is nil
	direct   bool        // plain, and posts need neither lock nor checks
	checked  bool        // a send queue with checks
	// a checked send queue whose requests carry no addresses, as far as the tables know
	connected  bool
	hasPostOne bool // quick is not nil
	inPath     bool // guarded by mu: a counting queue is inside a path call

	mu lock.Lock

	quick    datapath.Queue  // the path of a send queue that has PostOne, or nil
	_        [24]byte        // the poller writes to the next cache line
	retired  atomic.Uint32   // written by the poller
	num      uint32          // of the queue pair, which may have been destroyed
	searchMu sync.Mutex      // see above
	onSilent func(id uint64) // called for each request that completed without a completion, or nil
}

// ringStarts staggers the first positions of rings. Page-aligned rings that all start at 0 would compete for the same
// cache sets. Steps of 64 keep the bits of lists whose length is a power of two in one word.
var ringStarts atomic.Uint32

// init allocates a ring for capacity requests. It is called before the first post, without a lock.
func (s *slots) init(capacity int, everyOne bool) error {
	if capacity <= 0 || capacity > 1<<30 {
		return invalid("", "", "QueueOptions.Cap allows %d work requests; a checked queue needs the capacities that C "+
			"returned", capacity)
	}
	s.everyOne = everyOne
	s.resize(capacity)
	s.start(ringStarts.Add(64) & s.mask)
	return nil
}

// resize changes the capacity of a queue without outstanding requests, or of one with anyOrder, which does not look up
// wr_ids. Outstanding requests must fit. The caller holds slots.mu.
func (s *slots) resize(capacity int) {
	size := 1 << bits.Len(uint(capacity-1))
	ring := make([]uint64, size+(size+63)/64)
	for i := 0; i < len(ring); i += 4096 / 8 {
		ring[i] = 0 // fault the page in now instead of during a post
	}
	s.capacity, s.mask, s.ring = uint32(capacity), uint32(size-1), unsafe.Pointer(unsafe.SliceData(ring))
	s.limit = s.retired.Load() + s.capacity // the cached limit may be stale by more than the new capacity
}

// start sets the next position of a queue without outstanding requests. The caller holds slots.mu.
func (s *slots) start(position uint32) {
	s.limit = position + s.capacity
	s.mixed.Store(false)
	s.posted.Store(position)
	s.retired.Store(position)
}

// startSignals starts to maintain the bits of signalled requests, before the first unsignalled request. All earlier
// requests were signalled. Bits without a position stay 0, so that nextSignalled does not find them.
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
	s.mixed.Store(true) // before posted, so a poller that sees the request sees this too
}

// id returns the ring entry for the wr_id of a position.
func (s *slots) id(position uint32) *uint64 {
	return (*uint64)(unsafe.Add(s.ring, uintptr(position&s.mask)*8))
}

// signals returns the word with a position's signalled bit, and the number of the bit.
func (s *slots) signals(position uint32) (word *atomic.Uint64, bit uint32) {
	at := position & s.mask
	return (*atomic.Uint64)(unsafe.Add(s.ring, (uintptr(s.mask)+1+uintptr(at/64))*8)), at % 64
}

func (s *slots) free() int { return int(s.capacity) - s.outstanding() }

// outstanding returns the number of reserved slots at some moment during the call.
func (s *slots) outstanding() int {
	for {
		retired := s.retired.Load()
		if posted := s.posted.Load(); s.retired.Load() == retired {
			return int(posted - retired)
		}
	}
}

// positions returns the counters for Positions. It reads retired first, so that done never exceeds posted.
func (s *slots) positions() (done, posted, slots uint32) {
	done = s.retired.Load()
	return done, s.posted.Load(), s.capacity
}

// silent returns the number of outstanding requests if none of them is signalled, or 0.
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

// freeFor returns the number of free slots, at least as precisely as a list of n needs. The caller holds slots.mu.
func (s *slots) freeFor(posted uint32, n int) int {
	free := s.limit - posted
	if n >= int(free) {
		s.limit = s.retired.Load() + s.capacity
		free = s.limit - posted
	}
	return int(free)
}

// fullReason returns the reason why a list of n does not fit.
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

// reservation is the state before a list was reserved, for undo.
type reservation struct{ posted, signal uint32 }

// reserveSends checks a list and reserves its slots. It returns false if a request breaks a rule, the list is too long,
// or no outstanding request would have a completion that frees slots. Completions may arrive before the posting call
// returns, so the list counts as posted from now on. rules may be nil.
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
		// up to the end of a bit word or of the ring
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

// setSignal is setSignals for one request.
func (s *slots) setSignal(position uint32, w *ibv.SendWR) {
	signalled := uint64(w.SendFlags>>signalledBit) & 1
	if signalled != 0 {
		s.signal = position + 1
	}
	s.setSignals(position, 1, signalled)
}

// setSignals writes the signalled bits under mask, starting at a position. They are in one word.
func (s *slots) setSignals(position uint32, mask, signalled uint64) {
	word, bit := s.signals(position)
	old := word.Load()
	if value := old&^(mask<<(bit&63)) | signalled<<(bit&63); value != old {
		lock.StoreRelease64(word, value)
	}
}

// nextSignalled returns the first signalled request from one position to another, exclusive.
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

// reserveRecvs reserves slots for a list unless it is too long. The caller holds slots.mu.
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

// undo frees the slots of a list except the first n, which were posted. A completion of another queue with an equal
// wr_id may have freed some already; those stay free. The caller holds slots.mu; undo locks searchMu.
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

// retire frees the slots that a completion accounts for, and reports whether there were any.
func (s *slots) retire(id uint64, succeeded bool) bool {
	if !succeeded {
		return s.retireOutOfOrder(id, false)
	}
	if s.anyOrder {
		return s.retireOne()
	}
	posted, retired := s.posted.Load(), s.retired.Load()
	next, ok := retired, posted != retired // the next request to complete
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

// retireOutOfOrder retires a completion that is not of the next request. It searches the outstanding requests, including
// the list that is being posted. It locks searchMu.
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

// reportSilent calls onSilent for the requests from one position to another, exclusive.
func (s *slots) reportSilent(from, to uint32) {
	for ; s.onSilent != nil && from != to; from++ {
		s.onSilent(*s.id(from))
	}
}

// retireOne frees one slot. Several completion queues may retire requests of a shared receive queue at the same time.
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

// reset frees all slots. The caller holds slots.mu and prevents concurrent retires.
func (s *slots) reset() {
	posted := s.posted.Load()
	if !s.anyOrder {
		s.reportSilent(s.retired.Load(), posted)
	}
	s.start(posted)
}

// reserveUniform is reserveSends for the common case, or returns false: all requests have the same opcode and one entry,
// the list is shorter than the cached number of free slots, and its bits are in one word. It makes checked posts of 16
// one ninth faster (make bench).
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

// uniformPrefix checks requests as sendChecks.check does, up to the first of n that differs from the first request in
// opcode, number of entries, or one of flags. It copies their wr_ids and returns their number and signalled bits, or 0
// if a message is longer than most. Signalled bits are collected per run of requests with equal flags.
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

// signalBits returns the signalled bits of requests with these flags, from one index to another, exclusive.
func signalBits(flags ibv.SendFlags, from, to int) uint64 {
	if flags&ibv.SEND_SIGNALED == 0 {
		return 0
	}
	return ^uint64(0) >> ((from - to) & 63) << (from & 63)
}

// shapeOf returns the opcode and the number of entries of a request as one word.
func shapeOf(w *ibv.SendWR) *uint64 { return (*uint64)(unsafe.Pointer(&w.NumSGE)) }

var _ = [1]byte{}[unsafe.Offsetof(ibv.SendWR{}.Opcode)-
	unsafe.Offsetof(ibv.SendWR{}.NumSGE)-unsafe.Sizeof(ibv.SendWR{}.NumSGE)]
