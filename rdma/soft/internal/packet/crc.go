// SPDX-License-Identifier: BSD-2-Clause

package packet

import "hash/crc32"

// Bytes passed to package crc32 escape to the heap, because it calls assembly through a variable. So the few header
// bytes, which are on the stack, are added here.

// The state of a CRC in this file is the register itself, the complement of crc32.Update's.

// afterOnes is the state after 8 bytes of ones, which replace InfiniBand's local route header.
var afterOnes = ^crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

// tables[i][b] is the state after byte b and i zero bytes.
var tables = tablesOf()

func tablesOf() (t [4][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := 1; i < len(t); i++ {
		for b := range t[i] {
			v := t[i-1][b]
			t[i][b] = t[0][byte(v)] ^ v>>8
		}
	}
	return t
}

// short adds bytes, a multiple of 4, to the state.
func short(state uint32, b []byte) uint32 {
	for ; len(b) >= 4; b = b[4:] {
		state = tables[3][byte(state)^b[0]] ^ tables[2][byte(state>>8)^b[1]] ^ tables[1][byte(state>>16)^b[2]] ^
			tables[0][byte(state>>24)^b[3]]
	}
	return state
}

// The functions below calculate with polynomials modulo the CRC's polynomial: the highest bit is the coefficient of 1,
// the next that of x, and so on. A zero byte multiplies the state by x to the 8th.
const one = 1 << 31

// timesX multiplies by x, and overX divides by x.
func timesX(a uint32) uint32 { return a>>1 ^ a&1*crc32.IEEE }
func overX(a uint32) uint32  { return (a^a>>31*crc32.IEEE)<<1 | a>>31 }

func product(a, b uint32) uint32 {
	p := uint32(0)
	for ; a != 0; a <<= 1 {
		p ^= a >> 31 * b
		b = timesX(b)
	}
	return p
}

// near and far hold the factors that undo as many zero words of 4 bytes as the index, or 32 times as many.
var near, far = inverses()

func inverses() (near [32]uint32, far [2*MaxSize/4/32 + 2]uint32) {
	a := uint32(one)
	for i := range near {
		near[i] = a
		for range 32 {
			a = overX(a)
		}
	}
	far[0] = one
	for i := 1; i < len(far); i++ {
		far[i] = product(far[i-1], a)
	}
	return near, far
}

// rewind returns the state before a number of zero words.
func rewind(state uint32, words int) uint32 {
	return product(near[words%len(near)], product(far[words/len(near)], state))
}
