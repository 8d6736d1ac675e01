// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// inside returns the small message inside a completion, or nil. It has up to 32 bytes, at the start of the completion,
// or in completions of 128 bytes up to 64, in the first half.
func inside(e *mlx5dv.MLX5CQE64, length uint32) []byte {
	if e.OpOwn&formats == 0 || length == 0 {
		return nil
	}
	at, most := unsafe.Pointer(e), uint32(32)
	if e.OpOwn&mlx5dv.MLX5_INLINE_SCATTER_32 == 0 {
		at, most = unsafe.Add(at, -int(cqe)), 64
	}
	return unsafe.Slice((*byte)(at), min(length, most))
}

// spread copies a message to the memory of entries and removes the copied part from it.
func spread(at unsafe.Pointer, entries int, message *[]byte) ibv.WCStatus {
	for i := int32(0); int(i) < entries && len(*message) > 0; i++ {
		s := entry(at, i)
		n := min(int(host32(s.ByteCount)), len(*message))
		if n == 0 {
			break // ends the list
		}
		bring(unsafe.Slice(ibv.Ptr[byte](host64(s.Addr)).Deref(), n), *message)
		*message = (*message)[n:]
	}
	if len(*message) > 0 {
		return ibv.WC_LOC_LEN_ERR
	}
	return ibv.WC_SUCCESS
}

// spread copies read data to the memory of a request's entries, which may wrap around the ring. Like libmlx5, it does
// so only for RC queue pairs; others do not request data in completions.
func (q *sendQueue) spread(e *mlx5dv.MLX5CQE64, message []byte) ibv.WCStatus {
	if q.kind != ibv.QPT_RC {
		return ibv.WC_GENERAL_ERR
	}
	control := unsafe.Add(q.first, uintptr(uint32(host16(e.WQECounter))&q.mask)*block)
	c := (*mlx5dv.MLX5WQECtrlSeg)(control)
	front := uintptr(2 * unit) // size of the control segment and the remote address
	switch host32(c.OpmodIdxOpcode) & 0xff {
	case mlx5dv.MLX5_OPCODE_ATOMIC_CS, mlx5dv.MLX5_OPCODE_ATOMIC_FA:
		front += unit
	}
	at := unsafe.Add(control, front)
	entries := uintptr(host32(c.QPNDs)&0x3f) - front/unit
	if here := (uintptr(q.end) - uintptr(at)) / unit; entries > here {
		if status := spread(at, int(here), &message); status == ibv.WC_SUCCESS {
			return status
		}
		at, entries = q.first, entries-here
	}
	return spread(at, int(entries), &message)
}
