// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

// recvQueue is a ring of receives, each with space for the same number of entries.
type recvQueue struct {
	mu             lock.Lock
	first          unsafe.Pointer
	stride         uintptr
	mask           uint32
	sges           int32
	posted         uint32        // number of posted receives since creation
	maxOutstanding uint32        // maximum number of outstanding receives
	done           atomic.Uint32 // number of completed receives since creation
	ids            []uint64      // wr_ids by slot
	record         *uint32
	passed         passed
	late           bool // the device sees receives only in RTR: raw packets
	c              *ibv.QP
}

func (q *recvQueue) init(qp *queuePair, out *mlx5dv.QP, cap ibv.QPCap) {
	q.c = qp.c
	if qp.srq != nil || out.RQ.WQECnt == 0 {
		return // no receive queue: maxOutstanding is 0
	}
	q.first, q.stride, q.mask = pointer(out.RQ.Buf), uintptr(out.RQ.Stride), out.RQ.WQECnt-1
	q.maxOutstanding, q.sges = cap.MaxRecvWR, int32(cap.MaxRecvSGE)
	q.ids = make([]uint64, out.RQ.WQECnt)
	q.record = (*uint32)(unsafe.Add(unsafe.Pointer(out.DBRec.Deref()), 4*mlx5dv.MLX5_RCV_DBR))
}

func (q *recvQueue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.posted = 0
	q.done.Store(0)
}

// at returns the address of the receive in a slot.
func (q *recvQueue) at(place uint32) unsafe.Pointer {
	return unsafe.Add(q.first, uintptr(place)*q.stride)
}

func (q *recvQueue) post(list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) (errno int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := uint32(0)
	for w := list; w != nil; w = w.Next.Deref() {
		switch {
		case q.posted+n-q.done.Load() >= q.maxOutstanding:
			errno = enomem
		case w.NumSGE > q.sges || q.c.State == ibv.QPS_RESET:
			errno = einval
		}
		if errno != 0 {
			*bad = ibv.PtrTo(w)
			break
		}
		place := (q.posted + n) & q.mask
		scatter(q.at(place), w, q.sges)
		q.ids[place] = w.WRID
		n++
	}
	if n > 0 {
		q.posted += n
		q.passed.give()
		if q.late && q.c.State < ibv.QPS_RTR {
			return errno
		}
		publish(q.record, uint32(be32(q.posted&0xffff)))
	}
	return errno
}

// ready makes the device see receives that were posted before RTR.
func (q *recvQueue) ready() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.record != nil {
		publish(q.record, uint32(be32(q.posted&0xffff)))
	}
}

// scatter writes the entries of a receive that has space for room entries. If there are fewer, an entry with an invalid
// key ends the list.
func scatter(at unsafe.Pointer, w *ibv.RecvWR, room int32) {
	n := int32(0)
	for _, e := range unsafe.Slice(w.SGList.Deref(), max(0, w.NumSGE)) {
		if e.Length == 0 { // the device treats 0 as 2 GiB
			continue
		}
		*entry(at, n) = mlx5dv.MLX5WQEDataSeg{ByteCount: be32(e.Length), LKey: be32(e.LKey),
			Addr: be64(e.Addr)}
		n++
	}
	if n < room {
		*entry(at, n) = mlx5dv.MLX5WQEDataSeg{LKey: be32(mlx5dv.MLX5_INVALID_LKEY)}
	}
}

func entry(at unsafe.Pointer, i int32) *mlx5dv.MLX5WQEDataSeg {
	return (*mlx5dv.MLX5WQEDataSeg)(unsafe.Add(at, uintptr(i)*unsafe.Sizeof(mlx5dv.MLX5WQEDataSeg{})))
}
