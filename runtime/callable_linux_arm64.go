// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "encoding/binary"

// jump writes instructions that jump to the address stored at a distance from them, with their own address in x16.
func jump(code []byte, distance int) {
	binary.LittleEndian.PutUint32(code, 0x10000010)                               // ADR x16, .
	binary.LittleEndian.PutUint32(code[4:], 0x58000011|uint32((distance-4)/4)<<5) // LDR x17, distance
	binary.LittleEndian.PutUint32(code[8:], 0xd61f0220)                           // BR x17
}
