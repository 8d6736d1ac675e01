// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// TestTrackings: the table behaves like a map for any sequence of added and removed numbers.
func TestTrackings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table trackedTable
		table.resize(minPlaces)
		want := map[uint32]trackedQueues{}
		step := rapid.SampledFrom([]uint32{1, 3, 64, 1 << 20, 0x61c88647}).Draw(t, "distance of numbers")
		nums := rapid.Custom(func(t *rapid.T) uint32 { return step * rapid.Uint32Range(0, 50).Draw(t, "num") })
		agree := func() {
			assert.Equal(t, len(want), table.count)
			n := 0
			for range table.all() {
				n++
			}
			assert.Equal(t, len(want), n)
			for i := range uint32(51) {
				is, ok := want[step*i]
				if p := table.find(step * i); assert.Equal(t, ok, p != nil) && ok {
					assert.Same(t, is.Send, p.Send)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				num, is := nums.Draw(t, "num"), trackedQueues{Send: new(SendQueue)}
				table.set(num, is)
				want[num] = is
			},
			"remove": func(t *rapid.T) {
				num := nums.Draw(t, "num")
				table.remove(num)
				delete(want, num)
			},
			"": func(*rapid.T) { agree() },
		})
		for num := range want {
			table.remove(num)
		}
		clear(want)
		agree()
		assert.LessOrEqual(t, table.mask+1, uint32(16), "the table shrinks")
	})
}

// TestCacheLinesOfPost: a checked post accesses only two cache lines of the queue; the fields that locate the wr_id's
// slot are in the first. The fields that a completion writes are in another line.
func TestCacheLinesOfPost(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Log("64-bit machines only")
		return
	}
	line := func(offset uintptr) int { return int(offset / 64) }
	var q queue
	for of, offsets := range [][]uintptr{
		{unsafe.Offsetof(q.ring), unsafe.Offsetof(q.posted), unsafe.Offsetof(q.mask), unsafe.Offsetof(q.posting),
			unsafe.Offsetof(q.posting) + unsafe.Sizeof(q.posting) - 1, unsafe.Offsetof(q.limit)},
		{unsafe.Offsetof(q.plain), unsafe.Offsetof(q.mu),
			unsafe.Offsetof(q.mu) + 2*8}, // owner, held and a word of inside
		2: {},
		3: {unsafe.Offsetof(q.retired), unsafe.Offsetof(q.num)},
	} {
		for _, offset := range offsets {
			assert.Equal(t, of, line(offset))
		}
	}
	assert.Zero(t, unsafe.Offsetof(q.slots))
	assert.Equal(t, uintptr(32), unsafe.Sizeof(trackedPlace{}))
	for range 20 { // the allocator aligns objects to their size class
		sendQueue, recvQueue := new(SendQueue), new(RecvQueue)
		escaped = append(escaped, sendQueue, recvQueue)
		assert.Zero(t, uintptr(unsafe.Pointer(sendQueue))%64)
		assert.Zero(t, uintptr(unsafe.Pointer(recvQueue))%64)
	}
}

// escaped makes allocations escape to the heap.
var escaped []any
