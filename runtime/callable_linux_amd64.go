// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "encoding/binary"

// jump writes code that sets r10 to its own address and jumps to the address stored distance bytes after its start.
func jump(code []byte, distance int) {
	copy(code, []byte{0x4c, 0x8d, 0x15, 0xf9, 0xff, 0xff, 0xff, 0xff, 0x25}) // LEA -7(IP), R10; JMP *distance(IP)
	binary.LittleEndian.PutUint32(code[9:], uint32(distance-13))
}
