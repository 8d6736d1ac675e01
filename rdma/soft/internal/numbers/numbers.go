// SPDX-License-Identifier: BSD-2-Clause

// Package numbers assigns 24-bit numbers to the queue pairs and shared receive queues of a fabric. Callers hold the
// fabric's lock.
package numbers

import (
	"crypto/rand"
	"encoding/binary"
)

const (
	// Bits is the number of bits that are an index into the table.
	Bits = 16
	// First is the lowest number: lower ones are reserved by InfiniBand.
	First = 17
	// Most is the maximum number of objects in a table.
	Most = 1<<Bits - First

	fewRest = 64
)

// Table maps unique numbers to objects. A number is not reused soon.
type Table[T any] struct {
	objects []T
	free    []int
	tops    []uint8  // bits of numbers above the index
	uses    []uint32 // number of uses by index

	// Only for scattered numbers.
	drawn  []uint16           // index to random bits in its number
	places *[1 << Bits]uint16 // random bits to index plus 1; 0 for none
}

// scatteredRest is the number of free indexes to keep before one is reused, because peers may still be connected to its
// old number.
const scatteredRest = 1 << 12

// Scatter makes numbers random, because other processes and hosts know some of them: one number does not predict the
// next, and a restarted process at the same address does not reuse the numbers of its predecessor, to which peers may
// still be connected.
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

// Low returns the lowest value for the bits above the index. With 0 above the index, a scattered number could be below
// First.
func (n *Table[T]) Low() uint32 {
	if n.places != nil {
		return 1
	}
	return 0
}

// place returns the index of a number, or a negative value.
func (n *Table[T]) place(number uint32) int {
	bits := number & (1<<Bits - 1)
	if n.places != nil {
		return int(n.places[bits]) - 1
	}
	return int(bits) - First
}

// Add assigns a number to an object. The bits above the index are one of the given number of values from low on. It
// returns false if the table is full.
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

// draw draws new bits for an index and the bits above them.
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

// Remove frees the number of an object in the table.
func (n *Table[T]) Remove(number uint32) {
	i := n.place(number)
	var none T
	n.objects[i] = none
	n.free = append(n.free, i)
}

// Get returns the object with a number, or the zero value.
func (n *Table[T]) Get(number uint32) (object T) {
	i := n.place(number)
	if uint(i) >= uint(len(n.objects)) || number>>Bits != uint32(n.tops[i]) {
		return object
	}
	return n.objects[i]
}

// All returns the objects, with zero values at free indexes.
func (n *Table[T]) All() []T { return n.objects }
