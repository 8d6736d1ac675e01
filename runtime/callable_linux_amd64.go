// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "encoding/binary"

// jump writes instructions that jump to the address stored at a distance from them, with their own address in r10.
func jump(code []byte, distance int) {
	copy(code, []byte{0x4c, 0x8d, 0x15, 0xf9, 0xff, 0xff, 0xff, 0xff, 0x25}) // LEA -7(IP), R10; JMP *distance(IP)
	binary.LittleEndian.PutUint32(code[9:], uint32(distance-13))
}
