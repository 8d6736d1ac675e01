// SPDX-License-Identifier: BSD-2-Clause

package support

import (
	"encoding/json"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// TestByteOrderInJSON checks that numbers, including keys, are written in host byte order.
func TestByteOrderInJSON(t *testing.T) {
	type all struct {
		A BE16
		B BE32
		C BE64
		M map[BE32]bool
	}
	v := all{ToBE16(258), ToBE32(16909060), ToBE64(1 << 63), map[BE32]bool{ToBE32(7): true}}
	text, err := json.Marshal(v)
	require.NoError(t, err)
	assert.Equal(t, `{"A":258,"B":16909060,"C":9223372036854775808,"M":{"7":true}}`, string(text))
	var back all
	require.NoError(t, json.Unmarshal([]byte(`{"A":"0x102","B":16909060,"C":"9223372036854775808",
		"M":{"7":true}}`), &back))
	assert.Equal(t, v, back)
	for _, text := range []string{"65536", "-1", "1.0", `""`, "true"} {
		assert.ErrorContains(t, json.Unmarshal([]byte(text), &back.A), "is not a number of 16 bits", text)
	}
}
