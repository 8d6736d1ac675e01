// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

const header = unsafe.Sizeof(uapi.RXEQueueBuf{})

// ring returns the mapping of a ring, aligned as the kernel's are.
func ring(shift, mask uint32, length uintptr) ([]byte, *uapi.RXEQueueBuf) {
	words := make([]uint64, length/8)
	buf := (*uapi.RXEQueueBuf)(unsafe.Pointer(unsafe.SliceData(words)))
	if length >= header {
		buf.Log2ElemSize, buf.IndexMask = shift, mask
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), length), buf
}

// TestOfRejects: a header of the kernel that does not fit the mapping is an error, not an access outside of it.
func TestOfRejects(t *testing.T) {
	for name, c := range map[string]struct {
		shift, mask uint32
		length      uintptr
	}{
		"no header":              {6, 3, header - 8},
		"elements too small":     {5, 3, header + 4*64},
		"elements too large":     {17, 0, header + 1<<17},
		"shift of 32":            {32, 3, header + 4*64},
		"mask with a hole":       {6, 5, header + 8*64},
		"one element too many":   {6, 3, header + 3*64},
		"largest possible index": {6, ^uint32(0), header + 4*64},
	} {
		mapping, _ := ring(c.shift, c.mask, c.length)
		_, err := Of(mapping, 48)
		assert.Error(t, err, name)
	}
	mapping, _ := ring(6, 3, header+4*64)
	_, err := Of(mapping, 48)
	require.NoError(t, err)
}

// TestRing: a ring of four elements holds three, indexes wrap around, and wild indexes stay inside the mapping.
func TestRing(t *testing.T) {
	mapping, buf := ring(6, 3, header+4*64)
	q, err := Of(mapping, 48)
	require.NoError(t, err)
	next := uint64(0)
	for range 3 {
		for range 3 {
			element := q.Free()
			require.NotNil(t, element)
			(*ibv.WC)(element).WRID = next
			next++
			q.Push()
		}
		assert.Nil(t, q.Free())
		var wcs [2]ibv.WC
		require.Equal(t, 2, q.Poll(wcs[:]))
		assert.Equal(t, []uint64{next - 3, next - 2}, []uint64{wcs[0].WRID, wcs[1].WRID})
		require.Equal(t, 1, q.Poll(wcs[:]))
		assert.Equal(t, next-1, wcs[0].WRID)
		require.Zero(t, q.Poll(wcs[:]))
	}
	buf.ProducerIndex, buf.ConsumerIndex = 0xdeadbeef, 0xfffffff0
	wcs := make([]ibv.WC, 8)
	assert.LessOrEqual(t, q.Poll(wcs), 3)
	buf.ConsumerIndex = 0x12345678
	q.Free()
}

// TestFillSend: requests that do not fit are rejected, and inline data is copied.
func TestFillSend(t *testing.T) {
	element := unsafe.Pointer(unsafe.SliceData(make([]uint64, 64)))
	data := []byte("inline data")
	sge := []ibv.SGE{{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), Length: uint32(len(data))}}
	limits := SendLimits{SGEs: 1, Inline: 16}
	request := func(op ibv.WROpcode, flags ibv.SendFlags) *ibv.SendWR {
		return &ibv.SendWR{WRID: 7, SGList: ibv.PtrTo(&sge[0]), NumSGE: 1, Opcode: op, SendFlags: flags}
	}
	require.True(t, FillSend(element, request(ibv.WR_SEND, ibv.SEND_INLINE), limits, ibv.QPT_RC, 0, 3))
	w := (*uapi.RXESendWQE)(element)
	assert.EqualValues(t, 7, w.WR.WRID)
	assert.EqualValues(t, 3, w.Ssn)
	assert.EqualValues(t, len(data), w.DMA.Length)
	assert.Zero(t, w.DMA.NumSGE)
	assert.Equal(t, data, w.DMA.InlineData(len(data)))

	two := request(ibv.WR_SEND, 0)
	two.NumSGE = 2
	negative := request(ibv.WR_SEND, 0)
	negative.NumSGE = -1
	for name, wr := range map[string]*ibv.SendWR{
		"two entries": two, "a negative number of entries": negative,
		"an inline read": request(ibv.WR_RDMA_READ, ibv.SEND_INLINE), "an unknown opcode": request(99, 0),
	} {
		assert.False(t, FillSend(element, wr, limits, ibv.QPT_RC, 0, 0), name)
	}
	assert.False(t, FillSend(element, request(ibv.WR_SEND, ibv.SEND_INLINE), SendLimits{SGEs: 1, Inline: 4}, ibv.QPT_RC,
		0, 0), "more inline data than the queue takes")
	unaligned := request(ibv.WR_ATOMIC_FETCH_AND_ADD, 0)
	unaligned.WR.Atomic().RemoteAddr = 4
	assert.False(t, FillSend(element, unaligned, limits, ibv.QPT_RC, 0, 0))
}
