// SPDX-License-Identifier: BSD-2-Clause

package packet

import "hash/crc32"

// Package crc32 takes its bytes on the heap, since it calls the code of the processor by a variable. So the few bytes
// of headers, which are on the stack, are added here.

// The state of a CRC here is the register itself: that of crc32.Update is inverted.

// afterOnes is the state after 8 bytes of ones, which stand for InfiniBand's local route header.
var afterOnes = ^crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

// tables[i][b] is what a byte b becomes by i bytes of zeros that follow it.
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

// What is below calculates with the polynomials that a CRC is of: the highest bit is the coefficient of 1, the one
// below it that of x, and so on, modulo the CRC's own polynomial. A byte of zeros multiplies the state by x to the 8th.
const one = 1 << 31

// timesX and overX multiply by x, and by what x times is 1.
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

// near and far are what takes back as many words of 4 bytes of zeros as the index says, or 32 times as many.
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

// rewind is the state before as many words of zeros.
func rewind(state uint32, words int) uint32 {
	return product(near[words%len(near)], product(far[words/len(near)], state))
}
