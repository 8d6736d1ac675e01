// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// The operations of a WRProgram: each appends a request.

// Send appends ibv_wr_send.
//
// C: ibv_wr_send
//
// Man: ibv_wr_post(3)
func (p *WRProgram) Send(id uint64) WRRequest {
	return p.add(ibv.WR_SEND, id, p.qp.WRSend)
}

// SendImm appends ibv_wr_send_imm.
//
// C: ibv_wr_send_imm
//
// Man: ibv_wr_post(3)
func (p *WRProgram) SendImm(id uint64, imm ibv.BE32) WRRequest {
	return p.add(ibv.WR_SEND_WITH_IMM, id, p.qp.WRSendImm,
		word(uint32(imm))).record(func(w *ibv.SendWR) { *w.ImmData() = imm })
}

// SendInv appends ibv_wr_send_inv.
//
// C: ibv_wr_send_inv
//
// Man: ibv_wr_post(3)
func (p *WRProgram) SendInv(id uint64, rkey uint32) WRRequest {
	return p.add(ibv.WR_SEND_WITH_INV, id, p.qp.WRSendInv,
		word(rkey)).record(func(w *ibv.SendWR) { *w.InvalidateRKey() = rkey })
}

// TSO appends ibv_wr_send_tso.
//
// C: ibv_wr_send_tso
//
// Man: ibv_wr_post(3)
func (p *WRProgram) TSO(id uint64, header []byte, mss uint16) WRRequest {
	if len(header) > math.MaxUint16 {
		p.fail(invalid("", "", "WR %d: %s", len(p.wrs), headerReason(header)))
	}
	at := held(p, header)
	r := p.add(ibv.WR_TSO, id, p.qp.WRSendTSO, at, uint64(len(header)), uint64(mss))
	return r.record(func(w *ibv.SendWR) {
		*w.TSO() = ibv.SendTSO{Hdr: uintptr(at), HdrSz: uint16(len(header)),
			MSS: mss}
	})
}

// Write appends ibv_wr_rdma_write.
//
// C: ibv_wr_rdma_write
//
// Man: ibv_wr_post(3)
func (p *WRProgram) Write(id, remote uint64, rkey uint32) WRRequest {
	return p.add(ibv.WR_RDMA_WRITE, id, p.qp.WRRDMAWrite, word(rkey),
		remote).record(func(w *ibv.SendWR) { *w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey} })
}

// WriteImm appends ibv_wr_rdma_write_imm.
//
// C: ibv_wr_rdma_write_imm
//
// Man: ibv_wr_post(3)
func (p *WRProgram) WriteImm(id, remote uint64, rkey uint32, imm ibv.BE32) WRRequest {
	return p.add(ibv.WR_RDMA_WRITE_WITH_IMM, id, p.qp.WRRDMAWriteImm, word(rkey), remote,
		word(uint32(imm))).record(func(w *ibv.SendWR) {
		*w.WR.RDMA(),
			*w.ImmData() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}, imm
	})
}

// Read appends ibv_wr_rdma_read.
//
// C: ibv_wr_rdma_read
//
// Man: ibv_wr_post(3)
func (p *WRProgram) Read(id, remote uint64, rkey uint32) WRRequest {
	return p.add(ibv.WR_RDMA_READ, id, p.qp.WRRDMARead, word(rkey),
		remote).record(func(w *ibv.SendWR) { *w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey} })
}

// CompareSwap appends ibv_wr_atomic_cmp_swp of 8 remote bytes, in the byte order of the machine. The entry receives
// their old value.
//
// C: ibv_wr_atomic_cmp_swp
//
// Man: ibv_wr_post(3)
func (p *WRProgram) CompareSwap(id, remote uint64, rkey uint32, compare,
	swap uint64) WRRequest {
	return p.addAtomic(remote, ibv.WR_ATOMIC_CMP_AND_SWP, id, p.qp.WRAtomicCmpSwp, word(rkey), remote,
		compare, swap).record(func(w *ibv.SendWR) {
		*w.WR.Atomic() = ibv.SendAtomic{RemoteAddr: remote, CompareAdd: compare, Swap: swap, RKey: rkey}
	})
}

// FetchAdd appends ibv_wr_atomic_fetch_add to 8 remote bytes, in the byte order of the machine. The entry receives
// their old value.
//
// C: ibv_wr_atomic_fetch_add
//
// Man: ibv_wr_post(3)
func (p *WRProgram) FetchAdd(id, remote uint64, rkey uint32, add uint64) WRRequest {
	return p.addAtomic(remote, ibv.WR_ATOMIC_FETCH_AND_ADD, id, p.qp.WRAtomicFetchAdd, word(rkey), remote,
		add).record(func(w *ibv.SendWR) {
		*w.WR.Atomic() = ibv.SendAtomic{RemoteAddr: remote, CompareAdd: add,
			RKey: rkey}
	})
}

// AtomicWrite appends ibv_wr_atomic_write of 8 bytes, as they are in memory.
//
// C: ibv_wr_atomic_write
//
// Man: ibv_wr_post(3)
func (p *WRProgram) AtomicWrite(id, remote uint64, rkey uint32, value [8]byte) WRRequest {
	p.noList("ibv_wr_atomic_write")
	own := &value
	p.keep = append(p.keep, own)
	r := p.addAtomic(remote, ibv.WR_ATOMIC_WRITE, id, p.qp.WRAtomicWrite, word(rkey), remote,
		uint64(uintptr(unsafe.Pointer(own))))
	r.value = own
	return r
}

// Flush appends ibv_wr_flush of remote memory, with values of enum ibv_placement_type and enum ibv_selectivity_level.
//
// C: ibv_wr_flush
//
// Man: ibv_wr_post(3)
func (p *WRProgram) Flush(id, remote uint64, rkey uint32, length uint64, placement,
	level uint8) WRRequest {
	p.noList("ibv_wr_flush")
	return p.add(ibv.WR_FLUSH, id, p.qp.WRFlush, word(rkey), remote, length, uint64(placement), uint64(level))
}

// LocalInv appends ibv_wr_local_inv.
//
// C: ibv_wr_local_inv
//
// Man: ibv_wr_post(3)
func (p *WRProgram) LocalInv(id uint64, rkey uint32) WRRequest {
	return p.add(ibv.WR_LOCAL_INV, id, p.qp.WRLocalInv,
		word(rkey)).record(func(w *ibv.SendWR) { *w.InvalidateRKey() = rkey })
}

// BindMW appends ibv_wr_bind_mw.
//
// C: ibv_wr_bind_mw
//
// Man: ibv_wr_post(3)
func (p *WRProgram) BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32,
	info ibv.MWBindInfo) WRRequest {
	if mw == 0 || info.MR == 0 && info.Length != 0 {
		p.fail(invalid("", "", "WR %d: binding needs a memory window and a memory region", len(p.wrs)))
	}
	return p.add(ibv.WR_BIND_MW, id, p.qp.WRBindMW, uint64(mw), word(rkey),
		held(p, []ibv.MWBindInfo{info})).record(func(w *ibv.SendWR) {
		*w.BindMW() = ibv.SendBindMW{MW: mw, RKey: rkey,
			BindInfo: info}
	})
}

// noList says that a work request cannot hold what a function does.
func (p *WRProgram) noList(function string) {
	if p.unlisted == nil {
		p.unlisted = &runtime.NotSupportedError{Function: function,
			Missing: "the queue's Path takes lists of ibv_send_wr, and those cannot ask for it"}
	}
}
