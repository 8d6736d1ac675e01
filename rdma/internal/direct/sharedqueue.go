// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

// sharedQueue is a shared receive queue: a linked list of receives. The device consumes them in order from the front,
// and completes them in any order.
type sharedQueue struct {
	refusing
	mu     lock.Lock
	first  unsafe.Pointer
	stride uintptr
	sges   int32
	head   uint16 // slot of the next receive to write
	tail   uint16 // last slot of the list; never written, so that the list never becomes empty
	posted uint16
	ids    []uint64 // wr_ids by slot
	record *uint32
	inC    [2]uint32 // libmlx5's head and tail, which must not change
	device *Queues
	c      *ibv.SRQ
	index  uint32           // for XRC: index in completions
	cq     *completionQueue // for XRC: completion queue of the receives
}

func newSharedQueue(d *Queues, c *ibv.SRQ, out *mlx5dv.SRQ, sges uint32) *sharedQueue {
	return &sharedQueue{device: d, c: c, first: pointer(out.Buf), stride: uintptr(out.Stride), sges: int32(sges),
		head: uint16(out.Head), tail: uint16(out.Tail), ids: make([]uint64, out.Tail+1),
		record: (*uint32)(unsafe.Pointer(out.DBRec.Deref())), inC: [2]uint32{out.Head, out.Tail}}
}

// next returns the link segment of a slot.
func (q *sharedQueue) next(place uint16) *mlx5dv.MLX5WQESRQNextSeg {
	return (*mlx5dv.MLX5WQESRQNextSeg)(unsafe.Add(q.first, uintptr(place)*q.stride))
}

// data returns the address of the entries in a slot.
func (q *sharedQueue) data(place uint16) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(q.next(place)), unsafe.Sizeof(mlx5dv.MLX5WQESRQNextSeg{}))
}

func (q *sharedQueue) PostSRQRecv(_ *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) (errno int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := uint16(0)
	for w := list; w != nil; w = w.Next.Deref() {
		switch {
		case w.NumSGE > q.sges:
			errno = einval
		case q.head == q.tail:
			errno = enomem
		}
		if errno != 0 {
			*bad = ibv.PtrTo(w)
			break
		}
		q.ids[q.head] = w.WRID
		scatter(q.data(q.head), w, q.sges)
		q.head = host16(q.next(q.head).NextWQEIndex)
		n++
	}
	if n > 0 {
		q.posted += n
		publish(q.record, uint32(be32(uint32(q.posted))))
	}
	return errno
}

// free appends the slot of a completed receive to the list.
func (q *sharedQueue) free(place uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.append(place)
}

// append is free for callers that hold sharedQueue.mu.
func (q *sharedQueue) append(place uint16) {
	q.next(q.tail).NextWQEIndex = be16(place)
	q.tail = place
}

// again reposts a receive that the device could not use.
func (q *sharedQueue) again(place uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.append(place)
	to := q.head // a different slot: one is always free before the tail
	q.head = host16(q.next(to).NextWQEIndex)
	q.ids[to] = q.ids[place]
	for i := range q.sges {
		*entry(q.data(to), i) = *entry(q.data(place), i)
	}
	q.posted++
	publish(q.record, uint32(be32(uint32(q.posted))))
}

// id returns the wr_id of the receive in a slot.
func (q *sharedQueue) id(place uint16) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ids[place]
}

// End destroys the queue.
func (q *sharedQueue) End(destroy func() error) error {
	err := destroy()
	if err == nil {
		forget(&q.device.mu, q.device.srqs, q.c, q)
		q.cq.forget(q)
	}
	return err
}
