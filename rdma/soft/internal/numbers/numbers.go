// SPDX-License-Identifier: BSD-2-Clause

// Package numbers gives the queue pairs and shared receive queues of a fabric their numbers of 24 bits. It has no lock:
// callers have the fabric's.
package numbers

import (
	"crypto/rand"
	"encoding/binary"
)

const (
	// Bits of a number's 24 are the place in the table.
	Bits = 16
	// First is the lowest number: lower ones mean something on InfiniBand.
	First = 17
	// Most is how many objects a table can have.
	Most = 1<<Bits - First

	fewRest = 64
)

// Table has objects by their numbers, which are all different; one is not used again soon.
type Table[T any] struct {
	objects []T
	free    []int
	tops    []uint8  // the numbers' bits above those of the place
	uses    []uint32 // of places, from start on
	begin   uint32   // what is added to places
	low     uint8    // the least of tops
	start   uint32
	rest    int // a place is not used again before as many others are free
}

// Scatter lets numbers begin anywhere, because other processes know them: one that starts again at the same address
// must not have the numbers of the one before, to which peers may be connected still.
func (n *Table[T]) Scatter() {
	var b [3]byte
	rand.Read(b[:])
	n.low, n.start = 1, uint32(b[0]) // a number with nothing above its place could be a low one now
	n.rest = 1 << 12
	if len(n.objects) == 0 {
		n.begin = uint32(binary.NativeEndian.Uint16(b[1:]))
	}
}

// Low is the least value that the bits above the place may have.
func (n *Table[T]) Low() uint32 { return uint32(n.low) }

// place is where in the table a number is, if it is one.
func (n *Table[T]) place(number uint32) int { return int((number-n.begin)&(1<<Bits-1)) - First }

// Add gives an object a number, whose bits above the place begin with low and are of so many values. It says false if
// the table is full.
func (n *Table[T]) Add(object T, low, values uint32) (number uint32, ok bool) {
	var i int
	if len(n.free) > max(n.rest, fewRest) || len(n.objects) == Most && len(n.free) > 0 {
		i = n.free[0]
		n.free = n.free[1:]
	} else if len(n.objects) < Most {
		i = len(n.objects)
		var none T
		n.objects, n.tops, n.uses = append(n.objects, none), append(n.tops, 0), append(n.uses, n.start)
	} else {
		return 0, false
	}
	n.objects[i], n.tops[i] = object, uint8(low+n.uses[i]%values)
	n.uses[i]++
	return (uint32(i+First)+n.begin)&(1<<Bits-1) | uint32(n.tops[i])<<Bits, true
}

// Remove frees the number of an object, which the table has.
func (n *Table[T]) Remove(number uint32) {
	i := n.place(number)
	var none T
	n.objects[i] = none
	n.free = append(n.free, i)
}

// Get is what has a number, or nothing.
func (n *Table[T]) Get(number uint32) (object T) {
	i := n.place(number)
	if uint(i) >= uint(len(n.objects)) || number>>Bits != uint32(n.tops[i]) {
		return object
	}
	return n.objects[i]
}

// All are the objects and, where there is none any more, nothings.
func (n *Table[T]) All() []T { return n.objects }
