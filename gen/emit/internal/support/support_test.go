// SPDX-License-Identifier: BSD-2-Clause

package support

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

func TestByteOrder(t *testing.T) {
	be16, be32, be64 := ToBE16(0x0102), ToBE32(0x01020304), ToBE64(0x0102030405060708)
	assert.Equal(t, [2]byte{1, 2}, *(*[2]byte)(unsafe.Pointer(&be16)))
	assert.Equal(t, [4]byte{1, 2, 3, 4}, *(*[4]byte)(unsafe.Pointer(&be32)))
	assert.Equal(t, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, *(*[8]byte)(unsafe.Pointer(&be64)))
	assert.Equal(t, uint16(0x0102), be16.Host())
	assert.Equal(t, uint32(0x01020304), be32.Host())
	assert.Equal(t, uint64(0x0102030405060708), be64.Host())
	assert.Equal(t, "16909060", be32.String())
	assert.Zero(t, testing.AllocsPerRun(100, func() { be32 = ToBE32(be32.Host()) }))
}

func TestPtr(t *testing.T) {
	v := new(uint32)
	*v = 7
	p := PtrTo(v)
	assert.Same(t, v, p.Deref())
	assert.Nil(t, Ptr[uint32](0).Deref())
	assert.Equal(t, unsafe.Sizeof(uintptr(0)), unsafe.Sizeof(p))
}

func TestArmAndUnaligned(t *testing.T) {
	storage := [2]uint64{0, 0x1122334455667788}
	assert.Same(t, &storage[1], arm[uint64](unsafe.Pointer(&storage), 8))
	var bytes [9]byte
	storeUnaligned(bytes[1:], uint64(0x0102030405060708))
	assert.Equal(t, uint64(0x0102030405060708), loadUnaligned[uint64](bytes[1:]))
	assert.Zero(t, bytes[0])
	record := [3]uint32{1, 2, 3}
	assert.Equal(t, []uint32{2, 3}, trailing[uint32](unsafe.Pointer(&record), 4, 2))
}

func TestFormatFlags(t *testing.T) {
	names := []bitName{{1, "A"}, {2, "B"}, {6, "B_AND_C"}, {1 << 31, "HIGH"}}
	for v, want := range map[uint64]string{
		0: "0", 1: "A", 3: "A|B", 6: "B_AND_C", 7: "A|B|0x4", 1 << 31: "HIGH", 1<<31 | 1<<40: "HIGH|0x10000000000",
		0x40: "0x40",
	} {
		assert.Equal(t, want, formatFlags(v, names))
	}
	for _, v := range []int64{0, 9, 10, -77, math.MaxInt64, math.MinInt64} {
		assert.Equal(t, fmt.Sprintf("ibv_wr_opcode(%d)", v), formatUnknown("ibv_wr_opcode", v))
	}
	assert.Equal(t, "0xffffffffffffffff", formatFlags(math.MaxUint64, nil))
}
