// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "encoding/binary"

// jump writes code that sets x16 to its own address and jumps to the address stored distance bytes after its start.
func jump(code []byte, distance int) {
	binary.LittleEndian.PutUint32(code, 0x10000010)                               // ADR x16, .
	binary.LittleEndian.PutUint32(code[4:], 0x58000011|uint32((distance-4)/4)<<5) // LDR x17, distance
	binary.LittleEndian.PutUint32(code[8:], 0xd61f0220)                           // BR x17
}
