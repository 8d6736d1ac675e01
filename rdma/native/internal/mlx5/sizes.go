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
	ethernet   = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEEthSeg{}))
	extended   = 16 // number of a shared receive queue, for XRC
	binding    = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEUMRCtrlSeg{})+unsafe.Sizeof(mlx5dv.MLX5WQEMKeyContextSeg{})) +
		block // of a list
)

// operations are those that queue pairs of a type can build.
var operations = map[ibv.QPType]ibv.QPCreateSendOpsFlags{
	ibv.QPT_RC:       connected,
	ibv.QPT_UC:       connected &^ (ibv.QP_EX_WITH_RDMA_READ | atomics),
	ibv.QPT_UD:       messages,
	ibv.QPT_XRC_SEND: connected,
	ibv.QPT_DRIVER:   connected, // initiators of dynamic connections

	ibv.QPT_RAW_PACKET: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_TSO,
}

// Groups of operations.
const (
	messages  = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM
	remotes   = ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ
	atomics   = ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP | ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD
	keys      = ibv.QP_EX_WITH_BIND_MW | ibv.QP_EX_WITH_LOCAL_INV
	connected = messages | ibv.QP_EX_WITH_SEND_WITH_INV | remotes | atomics | keys
)

// headOf returns the bytes of a request before its data, at most, on a queue pair of a type with operations.
func headOf(kind ibv.QPType, ops ibv.QPCreateSendOpsFlags) uint32 {
	size := uint32(0)
	switch {
	case ops&keys != 0:
		size = binding
	case ops&atomics != 0:
		size = remote + atomic
	case ops&remotes != 0:
		size = remote
	}
	switch kind {
	case ibv.QPT_UD, ibv.QPT_DRIVER:
		size += datagram
	case ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
		size += extended
	case ibv.QPT_RAW_PACKET:
		size += ethernet
	}
	return control + size
}

// queues are the sizes of a queue pair's queues.
type queues struct {
	blocks, mostSends, inline          uint32 // of the send queue
	places, stride, mostRecvs, entries uint32 // of the receive queue
}

// sizesOf returns the smallest queues with capacities for requests with heads and headers of a size, or false if the
// device has no such queues. Requests with inline data have no header.
func sizesOf(head, header uint32, cap ibv.QPCap, hasRecvs bool, most limits) (q queues, ok bool) {
	q.inline = cap.MaxInlineData
	if cap.MaxSendWR > 0 {
		size := head + round(header, entry) + cap.MaxSendSGE*entry
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
