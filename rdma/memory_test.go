// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	goruntime "runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func TestRegion(t *testing.T) {
	gpu := Region{Address: 0xffff_8000_0000_0000, Length: 1 << 33, LKey: 7} // not in this process's address space
	assert.Equal(t, ibv.SGE{Addr: 0xffff_8001_0000_0000, Length: 64, LKey: 7}, gpu.SGE(1<<32, 64))
	assert.Equal(t, ibv.SGE{Addr: 0xffff_8002_0000_0000, LKey: 7}, gpu.SGE(1<<33, 0))
	assert.PanicsWithValue(t, "goverbs: 2 bytes at offset 8589934591 are not inside a region of 8589934592 bytes",
		func() { gpu.SGE(1<<33-1, 2) })
	assert.Panics(t, func() { gpu.SGE(^uint64(0), 2) })
}

func TestBuffer(t *testing.T) {
	b, err := NewBuffer(100, MapOptions{})
	require.NoError(t, err)
	assert.Len(t, b.Bytes(), 100)
	assert.Equal(t, 100, b.Len())
	assert.Zero(t, b.Address()%4096)
	b.Bytes()[99] = 1
	assert.Equal(t, Region{b.Address(), 100, 9}, b.Region(9))
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	assert.Empty(t, b.Bytes())
	_, err = NewBuffer(0, MapOptions{})
	assert.Error(t, err)
}

// Pinned memory is not collected before Unpin, even without other references.
func TestPin(t *testing.T) {
	collected := make(chan bool, 1)
	address := func() uint64 {
		data := make([]byte, 64<<10)
		goruntime.AddCleanup(&data[0], func(c chan bool) { c <- true }, collected)
		copy(data, "still here")
		return Pin(data).Address()
	}()
	for range 5 {
		goruntime.GC()
	}
	assert.Empty(t, collected)
	assert.Equal(t, "still here", string(unsafe.Slice(ibv.Ptr[byte](address).Deref(), 10)))
	pinned.Range(func(p, _ any) bool {
		if p.(*Pinned).Address() == address {
			assert.Equal(t, Region{address, 64 << 10, 5}, p.(*Pinned).Region(5))
			assert.Len(t, p.(*Pinned).Bytes(), p.(*Pinned).Len())
			p.(*Pinned).Unpin()
			p.(*Pinned).Unpin()
		}
		return true
	})
	for range 5 {
		goruntime.GC()
	}
	assert.True(t, <-collected)

	empty := Pin(nil)
	assert.Equal(t, Region{LKey: 1}, empty.Region(1))
	empty.Unpin()
}
