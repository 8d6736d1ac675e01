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
	uses    []uint32 // of places

	// Of a table whose numbers are scattered.
	drawn  []uint16           // of places: the bits that stand for the place in its number
	places *[1 << Bits]uint16 // by these bits: the place, and 1; 0 for none
}

// scatteredRest is how many places are free before one is used again whose number peers may be connected to.
const scatteredRest = 1 << 12

// Scatter has numbers drawn at random, because other processes and hosts know some of them: who knows one cannot guess
// the next, and a process that starts again at the same address does not have the numbers of the one before, to which
// peers may be connected still.
func (n *Table[T]) Scatter() {
	if n.places != nil {
		return
	}
	n.places = new([1 << Bits]uint16)
	for i := range n.objects {
		n.drawn = append(n.drawn, uint16(i+First))
		n.places[i+First] = uint16(i + 1)
	}
}

// Low is the least value that the bits above the place may have. With nothing above its place, a scattered number could
// be a low one.
func (n *Table[T]) Low() uint32 {
	if n.places != nil {
		return 1
	}
	return 0
}

// place is where in the table a number is, if it is one.
func (n *Table[T]) place(number uint32) int {
	bits := number & (1<<Bits - 1)
	if n.places != nil {
		return int(n.places[bits]) - 1
	}
	return int(bits) - First
}

// Add gives an object a number, whose bits above the place begin with low and are of so many values. It says false if
// the table is full.
func (n *Table[T]) Add(object T, low, values uint32) (number uint32, ok bool) {
	var i int
	rest := fewRest
	if n.places != nil {
		rest = scatteredRest
	}
	if len(n.free) > rest || len(n.objects) == Most && len(n.free) > 0 {
		i = n.free[0]
		n.free = n.free[1:]
	} else if len(n.objects) < Most {
		i = len(n.objects)
		var none T
		n.objects, n.tops, n.uses = append(n.objects, none), append(n.tops, 0), append(n.uses, 0)
	} else {
		return 0, false
	}
	bits, top := uint32(i+First), n.uses[i]
	n.uses[i]++
	if n.places != nil {
		bits, top = n.draw(i)
	}
	n.objects[i], n.tops[i] = object, uint8(low+top%values)
	return bits | uint32(n.tops[i])<<Bits, true
}

// draw draws new bits for a place, and those above them.
func (n *Table[T]) draw(i int) (bits, top uint32) {
	var b [4]byte
	rand.Read(b[:])
	drawn := binary.NativeEndian.Uint16(b[:])
	for n.places[drawn] != 0 {
		drawn++
	}
	if i < len(n.drawn) {
		n.places[n.drawn[i]] = 0
		n.drawn[i] = drawn
	} else {
		n.drawn = append(n.drawn, drawn)
	}
	n.places[drawn] = uint16(i + 1)
	return uint32(drawn), uint32(binary.NativeEndian.Uint16(b[2:]))
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
