// SPDX-License-Identifier: BSD-2-Clause

package mem

// Move copies memory, possibly overlapping, as a device does: invisible to the race detector, and for any registered
// address without checkptr's checks. It assigns arrays, because the built-in copy reports to the race detector even in
// a norace function.
//
//go:norace
//go:nocheckptr
func Move(to, from uint64, n uint64) {
	const large, small, word = 4096, 64, 8
	switch {
	case to == 0:
		return
	case from == 0:
		Zero(to, n)
		return
	}
	if to-from < n { // the ranges overlap
		for ; n >= word; n -= word {
			end := n - word
			*(*[word]byte)(Pointer(to + end)) = *(*[word]byte)(Pointer(from + end))
		}
		for ; n > 0; n-- {
			end := n - 1
			*(*byte)(Pointer(to + end)) = *(*byte)(Pointer(from + end))
		}
		return
	}
	for ; n >= large; n -= large {
		*(*[large]byte)(Pointer(to)) = *(*[large]byte)(Pointer(from))
		to, from = to+large, from+large
	}
	for ; n >= small; n -= small {
		*(*[small]byte)(Pointer(to)) = *(*[small]byte)(Pointer(from))
		to, from = to+small, from+small
	}
	for ; n >= word; n -= word {
		*(*[word]byte)(Pointer(to)) = *(*[word]byte)(Pointer(from))
		to, from = to+word, from+word
	}
	for ; n > 0; n-- {
		*(*byte)(Pointer(to)) = *(*byte)(Pointer(from))
		to, from = to+1, from+1
	}
}

// Zero clears memory, invisible to the race detector like Move.
//
//go:norace
//go:nocheckptr
func Zero(to uint64, n uint64) {
	const word = 8
	for ; n >= word; n -= word {
		*(*[word]byte)(Pointer(to)) = [word]byte{}
		to += word
	}
	for ; n > 0; n-- {
		*(*byte)(Pointer(to)) = 0
		to++
	}
}

// Load64 and Store64 are the memory accesses of atomic operations. The fabric's lock makes them atomic to each other.
//
//go:norace
//go:nocheckptr
func Load64(at uint64) uint64 { return *(*uint64)(Pointer(at)) }

//go:norace
//go:nocheckptr
func Store64(at uint64, v uint64) { *(*uint64)(Pointer(at)) = v }

// Scatter copies from one list to another, which is at least as long.
func Scatter(to, from []Segment) {
	if len(from) == 1 && len(to) > 0 && to[0].Length >= from[0].Length { // the usual case
		Move(to[0].Base, from[0].Base, from[0].Length)
		return
	}
	var t Segment
	for _, s := range from {
		for s.Length > 0 {
			for t.Length == 0 {
				t, to = to[0], to[1:]
			}
			n := min(s.Length, t.Length)
			Move(t.Base, s.Base, n)
			s.Skip(n)
			t.Skip(n)
		}
	}
}
