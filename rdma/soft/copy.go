package soft

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// segment is a piece of memory that was looked up: of a registered region, or of the inline bytes of a request.
type segment struct {
	base   uint64 // 0 in a null region
	length uint64
}

// skip leaves out the first bytes.
func (s *segment) skip(n uint64) {
	if s.base != 0 {
		s.base += n
	}
	s.length -= n
}

// move copies as a device does, also where both ranges have bytes in common: the race detector sees none of it, and checkptr lets go any address that a program registered. It
// copies arrays, since the runtime tells the race detector of what copy does, whoever calls it.
//
//go:norace
//go:nocheckptr
func move(to, from uint64, n uint64) {
	const large, small, word = 4096, 64, 8
	switch {
	case to == 0:
		return
	case from == 0:
		zero(to, n)
		return
	}
	if to-from < n { // the end of the source is where the destination begins
		for ; n >= word; n -= word {
			end := n - word
			*(*[word]byte)(pointer(to + end)) = *(*[word]byte)(pointer(from + end))
		}
		for ; n > 0; n-- {
			end := n - 1
			*(*byte)(pointer(to + end)) = *(*byte)(pointer(from + end))
		}
		return
	}
	for ; n >= large; n -= large {
		*(*[large]byte)(pointer(to)) = *(*[large]byte)(pointer(from))
		to, from = to+large, from+large
	}
	for ; n >= small; n -= small {
		*(*[small]byte)(pointer(to)) = *(*[small]byte)(pointer(from))
		to, from = to+small, from+small
	}
	for ; n >= word; n -= word {
		*(*[word]byte)(pointer(to)) = *(*[word]byte)(pointer(from))
		to, from = to+word, from+word
	}
	for ; n > 0; n-- {
		*(*byte)(pointer(to)) = *(*byte)(pointer(from))
		to, from = to+1, from+1
	}
}

// zero clears memory as move copies.
//
//go:norace
//go:nocheckptr
func zero(to uint64, n uint64) {
	const word = 8
	for ; n >= word; n -= word {
		*(*[word]byte)(pointer(to)) = [word]byte{}
		to += word
	}
	for ; n > 0; n-- {
		*(*byte)(pointer(to)) = 0
		to++
	}
}

// load64 and store64 are what atomics do to memory; the fabric's lock makes them atomic to each other.
//
//go:norace
//go:nocheckptr
func load64(at uint64) uint64 { return *(*uint64)(pointer(at)) }

//go:norace
//go:nocheckptr
func store64(at uint64, v uint64) { *(*uint64)(pointer(at)) = v }

// scatter copies as many bytes as the source has; the destination has as many at least.
func scatter(to, from []segment) {
	var t segment
	for _, s := range from {
		for s.length > 0 {
			for t.length == 0 {
				t, to = to[0], to[1:]
			}
			n := min(s.length, t.length)
			move(t.base, s.base, n)
			s.skip(n)
			t.skip(n)
		}
	}
}

// pointer reads an address as a pointer: the bits are the same.
func pointer(address uint64) unsafe.Pointer {
	bits := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&bits))
}

// at is the T at an address that C's layout or a caller gave, or nil for NULL.
func at[T any](address uint64) *T { return (*T)(pointer(address)) }

// list is the n T's at an address.
func list[T any](address uint64, n int) []T { return unsafe.Slice(at[T](address), n) }

// addressOf is where v is: not on a goroutine's stack, which moves.
func addressOf[T any](v *T) uint64 { return uint64(ibv.PtrTo(v)) }
