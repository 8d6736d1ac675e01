// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// words is a block of the ring as 8-byte words. A block that is copied to a register is read immediately after it is
// written, and store forwarding fails if one load reads several smaller stores.
type words [block / 8]uint64

// inlineHead is the size of the header of inline data.
const inlineHead = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEInlDataSeg{}))

// The common operations include two sends and two operations with immediate data; one comparison distinguishes each.
func isSend(op ibv.WROpcode) bool { return op&^1 == ibv.WR_SEND }
func hasImm(op ibv.WROpcode) bool { return op&^2 == ibv.WR_RDMA_WRITE_WITH_IMM }

var _ = [1]byte{}[ibv.WR_SEND-2|ibv.WR_SEND_WITH_IMM-3|ibv.WR_RDMA_WRITE_WITH_IMM-1]

// short writes a request of a common kind that fits into one block: a send, write or read with one entry, or with the
// entry's data inline. number is the number of the block. short returns the request's size in units, or 0 for other
// requests.
//
// It calls no function: a call for the copy would make each request of a list a tenth slower.
func (q *sendQueue) short(w *ibv.SendWR, number uint32, fence uint8) (units uint32) {
	op, flags := w.Opcode, w.SendFlags
	if w.NumSGE != 1 || uint32(op) >= q.usual || *q.state < ibv.QPS_RTS {
		return 0
	}
	front := uint32(2) // words of the control segment and the remote address
	if !isSend(op) {
		front = 4
	}
	e := w.SGList.Deref()
	b := (*words)(unsafe.Add(q.first, uintptr(number&q.mask)*block))
	data := unsafe.Add(unsafe.Pointer(b), front*8)
	switch length := e.Length; {
	case length == 0:
		return 0
	case flags&ibv.SEND_INLINE == 0:
		*(*[2]uint64)(data) = [2]uint64{pair(be32(length), be32(e.LKey)), uint64(be64(e.Addr))}
		units = front/2 + 1
	case length > q.inline || front*8+inlineHead+length > block || op == ibv.WR_RDMA_READ:
		return 0
	default:
		units = (front*8 + inlineHead + length + unit - 1) / unit
		from, count := unsafe.Pointer(ibv.Ptr[byte](e.Addr).Deref()), bits.ReverseBytes32(length|mlx5dv.MLX5_INLINE_SEG)
		if length < 4 {
			*(*uint32)(data) = count
			data = unsafe.Add(data, inlineHead)
		} else {
			*(*uint64)(data) = uint64(count) | uint64(*(*uint32)(from))<<32
			for data, from, length = unsafe.Add(data, 8), unsafe.Add(from, 4), length-4; length >= 8; length -= 8 {
				*(*uint64)(data) = *(*uint64)(from)
				data, from = unsafe.Add(data, 8), unsafe.Add(from, 8)
			}
			if length >= 4 {
				*(*uint32)(data) = *(*uint32)(from)
				data, from, length = unsafe.Add(data, 4), unsafe.Add(from, 4), length-4
			}
		}
		for ; length > 0; length-- {
			*(*byte)(data) = *(*byte)(from)
			data, from = unsafe.Add(data, 1), unsafe.Add(from, 1)
		}
	}
	if front == 4 {
		r := w.WR.RDMA()
		b[2], b[3] = uint64(be64(r.RemoteAddr)), pair(be32(r.RKey), 0)
	}
	b[0], b[1] = q.head(op, number, units), q.tail(w, fence)
	return units
}

// head returns the first 8 bytes of a request's control segment.
func (q *sendQueue) head(op ibv.WROpcode, number, units uint32) uint64 {
	return pair(be32(number<<8&0xffff00|opcodes[op&15]), be32(q.number|units))
}

// tail returns the second 8 bytes.
func (q *sendQueue) tail(w *ibv.SendWR, fence uint8) uint64 {
	flags := w.SendFlags
	control := q.signal | controls[flags&(ibv.SEND_FENCE|ibv.SEND_SIGNALED|ibv.SEND_SOLICITED)]
	if flags&ibv.SEND_FENCE == 0 {
		control |= fence
	}
	t := uint64(control) << 24 // fourth byte
	if hasImm(w.Opcode) {
		t |= pair(0, *w.ImmData())
	}
	return t
}

// PostOne posts a request of a common kind and returns true. For others, it does nothing and returns false.
func (p *queuePair) PostOne(w *ibv.SendWR) bool {
	q := &p.send
	r, op, at := q.register, w.Opcode, q.next
	if w.NumSGE != 1 || uint32(op) >= q.usual || w.SendFlags&ibv.SEND_INLINE != 0 || int32(q.limit-q.posted) <= 0 ||
		*q.state < ibv.QPS_RTS || !r.whole[0] || r.shared.Load() {
		return q.one(w)
	}
	e := w.SGList.Deref()
	if e.Length == 0 {
		return false
	}
	b := (*words)(unsafe.Add(q.first, uintptr(at&q.mask)*block))
	tail := q.tail(w, q.fence)
	var head uint64
	if isSend(op) {
		b[2], b[3] = pair(be32(e.Length), be32(e.LKey)), uint64(be64(e.Addr))
		head = q.head(op, at, 2)
	} else {
		to := w.WR.RDMA()
		b[2], b[3] = uint64(be64(to.RemoteAddr)), pair(be32(to.RKey), 0)
		b[4], b[5] = pair(be32(e.Length), be32(e.LKey)), uint64(be64(e.Addr))
		head = q.head(op, at, 3)
	}
	b[0], b[1] = head, tail
	q.requests[at&q.mask] = sendRequest{id: w.WRID, number: q.posted + 1}
	q.next, q.posted, q.fence = at+1, q.posted+1, 0
	to := unsafe.Add(r.at, r.other)
	r.other ^= r.size
	q.passed.give()
	flame(q.record, uint32(be32((at+1)&0xffff)), to, unsafe.Pointer(b))
	return true
}
