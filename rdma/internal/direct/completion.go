// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

func isReceive(opcode uint8) bool {
	return opcode >= mlx5dv.MLX5_CQE_RESP_WR_IMM && opcode <= mlx5dv.MLX5_CQE_RESP_SEND_INV ||
		opcode == mlx5dv.MLX5_CQE_RESP_ERR
}

// read converts a device's completion to a work completion. Like libmlx5, it leaves undefined fields unchanged. The
// caller holds the queue's lock.
func (q *completionQueue) read(e *mlx5dv.MLX5CQE64, wc *ibv.WC) outcome {
	number := host32(e.SOPDropQPN) & 0xffffff
	p := q.pair(number)
	if p == nil && isReceive(e.OpOwn>>4) {
		if p = q.targets[host32(e.SRQNUIdx)&0xffffff]; p != nil && p.c != nil {
			number = p.c.QPNum // the receive queue of raw packets has another number
		}
	}
	switch {
	case number == noQueuePair:
		return dropped
	case p == nil:
		q.unknownQP = number
		return broken
	case e.OpOwn&formats == compressed:
		return broken
	case p.ending.Load():
		q.releaseRecv(e, p)
		return dropped
	}
	p.send.passed.take()
	p.recv.passed.take()
	wc.WCFlags, wc.QPNum = 0, number
	switch opcode := e.OpOwn >> 4; opcode {
	case mlx5dv.MLX5_CQE_REQ:
		p.send.completed(e, wc)
	case mlx5dv.MLX5_CQE_RESP_WR_IMM, mlx5dv.MLX5_CQE_RESP_SEND, mlx5dv.MLX5_CQE_RESP_SEND_IMM,
		mlx5dv.MLX5_CQE_RESP_SEND_INV:
		p.received(e, wc)
	case mlx5dv.MLX5_CQE_REQ_ERR, mlx5dv.MLX5_CQE_RESP_ERR:
		failure := (*mlx5dv.MLX5ErrCQE)(unsafe.Pointer(e))
		if opcode == mlx5dv.MLX5_CQE_RESP_ERR && p.srq != nil && isPageFault(failure) {
			p.srq.repost(host16(e.WQECounter))
			return dropped
		}
		wc.Status, wc.VendorErr = status(failure.Syndrome), uint32(failure.VendorErrSynd)
		if opcode == mlx5dv.MLX5_CQE_REQ_ERR {
			wc.WRID = p.send.finish(e).id
		} else {
			wc.WRID, _, _ = p.finish(e)
			p.release(e)
		}
	default:
		return broken
	}
	return read
}

// checksummed reports whether the device found the checksums of an IPv4 packet correct.
func checksummed(e *mlx5dv.MLX5CQE64) bool {
	const both = mlx5dv.MLX5_CQE_L3_OK | mlx5dv.MLX5_CQE_L4_OK
	return *e.HDSIPExt()&both == both && *e.L4HdrTypeEtc()>>2&3 == mlx5dv.MLX5_CQE_L3_HDR_TYPE_IPV4
}

// extend sets the fields that libmlx5's extended completion queues return. All except the status and the opcode come
// from the device's completion, regardless of its type.
func extend(e *mlx5dv.MLX5CQE64, wc *ibv.WC) {
	if wc.Status != ibv.WC_SUCCESS {
		return
	}
	flags := host32(*e.FlagsRQPN())
	wc.WCFlags &= ibv.WC_IP_CSUM_OK
	if flags>>28&3 != 0 {
		wc.WCFlags = ibv.WC_GRH
	}
	*wc.ImmData() = e.ImmInvalPKey
	switch e.OpOwn >> 4 {
	case mlx5dv.MLX5_CQE_RESP_WR_IMM, mlx5dv.MLX5_CQE_RESP_SEND_IMM:
		wc.WCFlags |= ibv.WC_WITH_IMM
	case mlx5dv.MLX5_CQE_RESP_SEND_INV:
		wc.WCFlags |= ibv.WC_WITH_INV
		*wc.InvalidatedRKey() = host32(e.ImmInvalPKey)
	}
	wc.VendorErr, wc.ByteLen = 0, host32(e.ByteCnt)
	wc.SrcQP, wc.SLID, wc.SL = flags&0xffffff, host16(*e.SLID()), uint8(flags>>24&0xf)
	wc.DLIDPathBits = *e.MLPath() & 0x7f
}

// isPageFault reports whether a receive failed because on-demand memory was not present. It will be present at the next
// attempt.
func isPageFault(e *mlx5dv.MLX5ErrCQE) bool {
	return e.Syndrome == mlx5dv.MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR &&
		e.VendorErrSynd == mlx5dv.MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT
}

// finish returns the request of a completion and marks it and all requests before it as completed.
func (q *sendQueue) finish(e *mlx5dv.MLX5CQE64) *sendRequest {
	r := &q.requests[uint32(host16(e.WQECounter))&q.mask]
	lock.StoreRelease32(&q.done, r.number)
	return r
}

// completed converts the completion of a successful send request.
func (q *sendQueue) completed(e *mlx5dv.MLX5CQE64, wc *ibv.WC) {
	r := &q.requests[uint32(host16(e.WQECounter))&q.mask]
	length := uint32(0) // length of data inside the completion
	switch host32(e.SOPDropQPN) >> 24 {
	case mlx5dv.MLX5_OPCODE_RDMA_WRITE_IMM:
		wc.WCFlags |= ibv.WC_WITH_IMM
		wc.Opcode = ibv.WC_RDMA_WRITE
	case mlx5dv.MLX5_OPCODE_RDMA_WRITE:
		wc.Opcode = ibv.WC_RDMA_WRITE
	case mlx5dv.MLX5_OPCODE_SEND_IMM:
		wc.WCFlags |= ibv.WC_WITH_IMM
		wc.Opcode = ibv.WC_SEND
	case mlx5dv.MLX5_OPCODE_SEND, mlx5dv.MLX5_OPCODE_SEND_INVAL:
		wc.Opcode = ibv.WC_SEND
	case mlx5dv.MLX5_OPCODE_TSO:
		wc.Opcode = ibv.WC_TSO
	case mlx5dv.MLX5_OPCODE_RDMA_READ:
		wc.Opcode, wc.ByteLen = ibv.WC_RDMA_READ, host32(e.ByteCnt)
		length = wc.ByteLen
	case mlx5dv.MLX5_OPCODE_ATOMIC_CS:
		wc.Opcode, wc.ByteLen, length = ibv.WC_COMP_SWAP, 8, 8
	case mlx5dv.MLX5_OPCODE_ATOMIC_FA:
		wc.Opcode, wc.ByteLen, length = ibv.WC_FETCH_ADD, 8, 8
	case mlx5dv.MLX5_OPCODE_UMR, mlx5dv.MLX5_OPCODE_NOP:
		wc.Opcode = r.opcode
	}
	wc.Status, wc.WRID = ibv.WC_SUCCESS, r.id
	if m := inside(e, length); m != nil {
		wc.Status = q.spread(e, m)
	}
	lock.StoreRelease32(&q.done, r.number)
}

// received converts the completion of a receive.
func (p *queuePair) received(e *mlx5dv.MLX5CQE64, wc *ibv.WC) {
	wc.ByteLen = host32(e.ByteCnt)
	id, at, room := p.finish(e)
	wc.WRID, wc.Status = id, ibv.WC_SUCCESS
	if m := inside(e, wc.ByteLen); m != nil {
		wc.Status = spread(at, room, &m)
	}
	p.release(e)
	if wc.Status != ibv.WC_SUCCESS {
		return
	}
	wc.Opcode = ibv.WC_RECV
	switch e.OpOwn >> 4 {
	case mlx5dv.MLX5_CQE_RESP_WR_IMM:
		wc.Opcode = ibv.WC_RECV_RDMA_WITH_IMM
		fallthrough
	case mlx5dv.MLX5_CQE_RESP_SEND_IMM:
		wc.WCFlags |= ibv.WC_WITH_IMM
		*wc.ImmData() = e.ImmInvalPKey
	case mlx5dv.MLX5_CQE_RESP_SEND_INV:
		wc.WCFlags |= ibv.WC_WITH_INV
		*wc.InvalidatedRKey() = host32(e.ImmInvalPKey)
	}
	if s := p.send.packets; s != nil && s.Checksums && checksummed(e) {
		wc.WCFlags |= ibv.WC_IP_CSUM_OK
	}
	flags := host32(*e.FlagsRQPN()) // 2 bits of routing header, 4 of service level, 24 of the sender's number
	if flags>>28&3 != 0 {
		wc.WCFlags |= ibv.WC_GRH
	}
	wc.SLID, wc.SL, wc.SrcQP = host16(*e.SLID()), uint8(flags>>24&0xf), flags&0xffffff
	wc.DLIDPathBits = *e.MLPath() & 0x7f
	wc.PKeyIndex = uint16(host32(e.ImmInvalPKey))
}

// finish returns the wr_id and the scatter entries of the receive of a completion.
func (p *queuePair) finish(e *mlx5dv.MLX5CQE64) (id uint64, at unsafe.Pointer, room int) {
	place := host16(e.WQECounter)
	if s := p.srq; s != nil {
		return s.id(place), s.data(place), int(s.stride/unit) - 1
	}
	r := &p.recv
	at32 := uint32(place) & r.mask
	return r.ids[at32], r.at(at32), int(r.stride / unit)
}

// release frees the slot of a receive.
func (p *queuePair) release(e *mlx5dv.MLX5CQE64) {
	if p.srq != nil {
		p.srq.free(host16(e.WQECounter))
	} else {
		p.recv.done.Add(1)
	}
}

// status converts a syndrome to a completion status.
func status(syndrome uint8) ibv.WCStatus {
	if int(syndrome) < len(statuses) && statuses[syndrome] != ibv.WC_SUCCESS {
		return statuses[syndrome]
	}
	return ibv.WC_GENERAL_ERR
}

var statuses = [...]ibv.WCStatus{
	mlx5dv.MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:        ibv.WC_LOC_LEN_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:         ibv.WC_LOC_QP_OP_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:          ibv.WC_LOC_PROT_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_WR_FLUSH_ERR:            ibv.WC_WR_FLUSH_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_MW_BIND_ERR:             ibv.WC_MW_BIND_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_BAD_RESP_ERR:            ibv.WC_BAD_RESP_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR:        ibv.WC_LOC_ACCESS_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR:    ibv.WC_REM_INV_REQ_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:       ibv.WC_REM_ACCESS_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_REMOTE_OP_ERR:           ibv.WC_REM_OP_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR: ibv.WC_RETRY_EXC_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR:       ibv.WC_RNR_RETRY_EXC_ERR,
	mlx5dv.MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR:      ibv.WC_REM_ABORT_ERR,
}
