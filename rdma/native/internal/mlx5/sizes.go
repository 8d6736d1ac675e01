// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// Sizes of the parts of a request.
const (
	block      = mlx5dv.MLX5_SEND_WQE_BB // of the send queue
	control    = uint32(unsafe.Sizeof(mlx5dv.MLX5WQECtrlSeg{}))
	remote     = uint32(unsafe.Sizeof(mlx5dv.MLX5WQERAddrSeg{}))
	atomic     = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEAtomicSeg{}))
	datagram   = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEDatagramSeg{}))
	entry      = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEDataSeg{}))
	inlineHead = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEInlDataSeg{}))
	extended   = 16 // number of a shared receive queue, for XRC
	binding    = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEUMRCtrlSeg{})+unsafe.Sizeof(mlx5dv.MLX5WQEMKeyContextSeg{})) +
		block // of a list
)

// heads are the bytes of a request before its data, at most, for each type of queue pair.
var heads = map[ibv.QPType]uint32{
	ibv.QPT_RC:       control + max(remote+atomic, binding),
	ibv.QPT_UC:       control + max(remote, binding),
	ibv.QPT_UD:       control + datagram,
	ibv.QPT_XRC_SEND: control + extended + max(remote+atomic, binding),
	ibv.QPT_XRC_RECV: control + extended + max(remote+atomic, binding),
}

// queues are the sizes of a queue pair's queues.
type queues struct {
	blocks, mostSends, inline          uint32 // of the send queue
	places, stride, mostRecvs, entries uint32 // of the receive queue
}

// sizesOf returns the smallest queues with capacities, or false if the device has no such queues.
func sizesOf(kind ibv.QPType, cap ibv.QPCap, hasRecvs bool, most limits) (q queues, ok bool) {
	q.inline = cap.MaxInlineData
	if cap.MaxSendWR > 0 {
		head := heads[kind]
		size := head + cap.MaxSendSGE*entry
		if cap.MaxInlineData > 0 {
			size = max(size, head+round(inlineHead+cap.MaxInlineData, entry))
		}
		if size > most.sendBytes {
			return q, false
		}
		size = round(size, block)
		q.blocks = power(cap.MaxSendWR * size / block)
		if q.blocks > most.blocks {
			return q, false
		}
		q.mostSends = q.blocks * block / size
		q.inline = size - head - inlineHead
	}
	if hasRecvs && cap.MaxRecvWR > 0 {
		q.stride = power(max(cap.MaxRecvSGE, 1) * entry)
		if q.stride > most.recvBytes {
			return q, false
		}
		q.places = max(power(cap.MaxRecvWR), block/q.stride)
		if q.places > most.recvs {
			return q, false
		}
		q.mostRecvs, q.entries = q.places, q.stride/entry
	}
	return q, true
}

// limits are those of the device.
type limits struct{ sendBytes, recvBytes, blocks, recvs uint32 }

func round(n, to uint32) uint32 { return (n + to - 1) / to * to }

// power returns the smallest power of two that is not less than n.
func power(n uint32) uint32 {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len32(n-1)
}
