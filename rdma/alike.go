// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
)

// takeAlike is takeSend for the usual list, or says that it is none: its requests are of one shape, fewer than the
// slots that are known to be free, and their bits are in one word. A list of four takes a ninth less time so.
func (s *slots) takeAlike(wrs []ibv.SendWR, rules *sendChecks) (m mark, ok bool) {
	n, posted := len(wrs), s.posted.Load()
	place := posted & s.mask
	if n == 0 || n > int(64-place%64) || n > int(s.mask-place)+1 || n >= int(s.limit-posted) {
		return m, false
	}
	rule := rules.allows(&wrs[0])
	if rule == nil || rule.look || wrs[0].NumSGE != 1 {
		return m, false
	}
	count, signalled := alike(&wrs[0], n, s.id(place), rule.denied|ibv.SEND_INLINE, rule.most)
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
func alike(w *ibv.SendWR, n int, id *uint64, flags ibv.SendFlags, most uint32) (count int, signalled uint64) {
	shape, first := *shapeOf(w), w.SendFlags
	from, run, begin := w, first, 0
	last := (*ibv.SendWR)(unsafe.Add(unsafe.Pointer(w), uintptr(n-1)*unsafe.Sizeof(*w)))
	for {
		if w.SGList.Deref().Length > most {
			return 0, 0
		}
		*id = w.WRID
		if w == last {
			return n, signalled | runOf(run, begin, n)
		}
		w = (*ibv.SendWR)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w)))
		id = (*uint64)(unsafe.Add(unsafe.Pointer(id), unsafe.Sizeof(*id)))
		if *shapeOf(w) == shape && w.SendFlags == run {
			continue
		}
		count = int((uintptr(unsafe.Pointer(w)) - uintptr(unsafe.Pointer(from))) / unsafe.Sizeof(*w))
		signalled |= runOf(run, begin, count)
		if *shapeOf(w) != shape || (w.SendFlags^first)&flags != 0 {
			return count, signalled
		}
		run, begin = w.SendFlags, count
	}
}

// runOf is the bits of requests from one index up to another, exclusive, if they are signalled.
func runOf(flags ibv.SendFlags, from, to int) uint64 {
	if flags&ibv.SEND_SIGNALED == 0 {
		return 0
	}
	return ^uint64(0) >> ((from - to) & 63) << (from & 63)
}

// shapeOf is the opcode and the number of entries of a request.
func shapeOf(w *ibv.SendWR) *uint64 { return (*uint64)(unsafe.Pointer(&w.NumSGE)) }

var _ = [1]byte{}[unsafe.Offsetof(ibv.SendWR{}.Opcode)-
	unsafe.Offsetof(ibv.SendWR{}.NumSGE)-unsafe.Sizeof(ibv.SendWR{}.NumSGE)]
