// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// slots are the functions that objects have addresses of.
type slots struct {
	ops      ibv.ContextOps
	extended ibv.VerbsContext
	qp       ibv.QPEx
	cq       ibv.CQEx
	dm       ibv.DM
}

// fillSlots assigns an address to every function.
func (h *host) fillSlots() (err error) {
	set := func(to *ibv.FuncPtr, f runtime.SlotFunc) {
		address, e := h.space.Slot(f)
		if e != nil {
			err = e
		}
		*to = ibv.FuncPtr(address)
	}
	o := &h.slots.ops
	set(&o.PostSend, postSend)
	set(&o.PostRecv, postRecv)
	set(&o.PostSRQRecv, postSRQRecv)
	set(&o.PollCQ, pollCQ)
	set(&o.ReqNotifyCQ, reqNotifyCQ)
	set(&o.AllocMW, allocMW)
	set(&o.BindMW, bindMW)
	set(&o.DeallocMW, deallocMW)

	x := &h.slots.extended
	// ofContext wraps functions that take a context and, as second argument, a record.
	ofContext := func(f func(*context, uint64) (uint64, runtime.Errno)) runtime.SlotFunc {
		return func(address, record, _, _, _, _ uint64) (uint64, runtime.Errno) {
			if c := find[context](address); c != nil {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // as abi.Guarded
				return f(c, record)
			}
			return 0, syscall.EINVAL
		}
	}
	number := func(f func(a, b uint64) runtime.Errno) runtime.SlotFunc {
		return func(a, b, _, _, _, _ uint64) (uint64, runtime.Errno) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			return uint64(f(a, b)), 0
		}
	}
	set(&x.QueryPort, func(a, port, record, size, _, _ uint64) (uint64, runtime.Errno) {
		c := find[context](a)
		if c == nil {
			return uint64(syscall.EINVAL), 0
		}
		return uint64(queryPort(c, uint8(port), record, size)), 0
	})
	set(&x.QueryDeviceEx, func(a, input, record, size, _, _ uint64) (uint64, runtime.Errno) {
		c := find[context](a)
		if c == nil || input != 0 && mem.At[ibv.QueryDeviceExInput](input).CompMask != 0 {
			return uint64(syscall.EINVAL), 0
		}
		return uint64(queryDeviceEx(c, record, size)), 0
	})
	set(&x.QueryRTValues, number(func(a, record uint64) runtime.Errno {
		if c := find[context](a); c != nil {
			return queryRTValues(c, record)
		}
		return syscall.EINVAL
	}))
	set(&x.AdviseMR, adviseMR)
	set(&x.AllocDM, ofContext(allocDM))
	set(&x.FreeDM, number(func(address, _ uint64) runtime.Errno { return freeDM(address) }))
	set(&x.RegDMMR, regDMMR)
	set(&x.AllocNullMR, allocNullMR)
	set(&h.slots.dm.MemcpyToDM, memcpyToDM)
	set(&h.slots.dm.MemcpyFromDM, memcpyFromDM)
	set(&x.AllocTD, ofContext(allocTD))
	set(&x.AllocParentDomain, ofContext(allocParentDomain))
	set(&x.CreateCQEx, ofContext(createCQEx))
	set(&x.CreateQPEx, ofContext(createQPEx))
	set(&x.OpenQP, ofContext(openQP))
	set(&x.CreateSRQEx, ofContext(createSRQEx))
	set(&x.OpenXRCD, ofContext(openXRCD))
	set(&x.DeallocTD, number(func(a, _ uint64) runtime.Errno { return deallocTD(a) }))
	set(&x.CloseXRCD, number(func(a, _ uint64) runtime.Errno { return closeXRCD(a) }))
	set(&x.GetSRQNum, number(srqNumber))
	set(&x.PostSRQOps, postSRQOps)
	set(&x.ModifyCQ, number(modifyCQ))

	h.fillBuilders(set)
	h.fillReaders(set)
	return err
}

func (h *host) fillBuilders(set func(*ibv.FuncPtr, runtime.SlotFunc)) {
	q := &h.slots.qp
	set(&q.WRStart, wrStart)
	set(&q.WRComplete, wrComplete)
	set(&q.WRAbort, wrAbort)
	set(&q.WRRDMAWrite, remoteOp(ibv.WR_RDMA_WRITE, nil))
	set(&q.WRRDMAWriteImm, remoteOp(ibv.WR_RDMA_WRITE_WITH_IMM,
		func(r *request, imm, _, _ uint64) { r.imm = uint32(imm) }))
	set(&q.WRRDMARead, remoteOp(ibv.WR_RDMA_READ, nil))
	set(&q.WRAtomicCmpSwp, remoteOp(ibv.WR_ATOMIC_CMP_AND_SWP,
		func(r *request, compare, swap, _ uint64) { r.operand, r.swap = compare, swap }))
	set(&q.WRAtomicFetchAdd, remoteOp(ibv.WR_ATOMIC_FETCH_AND_ADD,
		func(r *request, add, _, _ uint64) { r.operand = add }))
	set(&q.WRFlush, remoteOp(ibv.WR_FLUSH, func(r *request, length, placement, level uint64) {
		r.operand, r.swap = length, uint64(uint8(placement))|uint64(uint8(level))<<32
	}))
	set(&q.WRAtomicWrite, wrAtomicWrite)
	set(&q.WRSend, slotOf(func(q *qp, _, _, _, _, _ uint64) { q.begin(ibv.WR_SEND) }))
	set(&q.WRSendImm, withImm(ibv.WR_SEND_WITH_IMM))
	set(&q.WRSendInv, withImm(ibv.WR_SEND_WITH_INV))
	set(&q.WRLocalInv, withImm(ibv.WR_LOCAL_INV))
	set(&q.WRBindMW, slotOf(wrBindMW))
	set(&q.WRSetUDAddr, slotOf(wrSetUDAddr))
	set(&q.WRSetXRCSRQN, slotOf(wrSetXRCSRQN))
	set(&q.WRSetInlineData, slotOf(wrSetInlineData))
	set(&q.WRSetInlineDataList, slotOf(wrSetInlineDataList))
	set(&q.WRSetSGE, slotOf(wrSetSGE))
	set(&q.WRSetSGEList, slotOf(wrSetSGEList))
}

func (h *host) fillReaders(set func(*ibv.FuncPtr, runtime.SlotFunc)) {
	c := &h.slots.cq
	set(&c.StartPoll, startPoll)
	set(&c.NextPoll, nextPoll)
	set(&c.EndPoll, endPoll)
	set(&c.ReadOpcode, reader(func(e *Completion) uint64 { return uint64(e.wc.Opcode) }))
	set(&c.ReadVendorErr, reader(func(e *Completion) uint64 { return uint64(e.wc.VendorErr) }))
	set(&c.ReadByteLen, reader(func(e *Completion) uint64 { return uint64(e.wc.ByteLen) }))
	set(&c.ReadImmData, reader(func(e *Completion) uint64 { return uint64(*e.wc.ImmData()) }))
	set(&c.ReadQPNum, reader(func(e *Completion) uint64 { return uint64(e.wc.QPNum) }))
	set(&c.ReadSrcQP, reader(func(e *Completion) uint64 { return uint64(e.wc.SrcQP) }))
	set(&c.ReadWCFlags, reader(func(e *Completion) uint64 { return uint64(e.wc.WCFlags) }))
	set(&c.ReadSLID, reader(func(e *Completion) uint64 { return uint64(e.wc.SLID) }))
	set(&c.ReadSL, reader(func(e *Completion) uint64 { return uint64(e.wc.SL) }))
	set(&c.ReadDLIDPathBits, reader(func(e *Completion) uint64 { return uint64(e.wc.DLIDPathBits) }))
	set(&c.ReadCompletionTS, stampReader(func(s *Stamp) int64 { return s.since }))
	set(&c.ReadCompletionWallclockNs, stampReader(func(s *Stamp) int64 { return s.wall }))
	set(&c.ReadTMInfo, readTMInfo)
}

// context fills in the functions of a context.
func (s *slots) context(c *ibv.VerbsContext) {
	*c = s.extended
	c.Context.Ops = s.ops
}

// builder fills in those of a queue pair: the setters and the requested operations.
func (s *slots) builder(to *ibv.QPEx, ops ibv.QPCreateSendOpsFlags) {
	base, of := to.QPBase, s.qp
	*to = of
	to.QPBase = base
	for flag, slot := range map[ibv.QPCreateSendOpsFlags]*ibv.FuncPtr{
		ibv.QP_EX_WITH_RDMA_WRITE: &to.WRRDMAWrite, ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM: &to.WRRDMAWriteImm,
		ibv.QP_EX_WITH_SEND:          &to.WRSend,
		ibv.QP_EX_WITH_SEND_WITH_IMM: &to.WRSendImm, ibv.QP_EX_WITH_RDMA_READ: &to.WRRDMARead,
		ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP:   &to.WRAtomicCmpSwp,
		ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD: &to.WRAtomicFetchAdd, ibv.QP_EX_WITH_LOCAL_INV: &to.WRLocalInv,
		ibv.QP_EX_WITH_BIND_MW:       &to.WRBindMW,
		ibv.QP_EX_WITH_SEND_WITH_INV: &to.WRSendInv, ibv.QP_EX_WITH_FLUSH: &to.WRFlush,
		ibv.QP_EX_WITH_ATOMIC_WRITE: &to.WRAtomicWrite,
	} {
		if ops&flag == 0 {
			*slot = 0
		}
	}
}

// poller fills in those of a completion queue: the common functions and the requested readers.
func (s *slots) poller(to *ibv.CQEx, flags ibv.CreateCQWCFlags) {
	of := &s.cq
	to.StartPoll, to.NextPoll, to.EndPoll = of.StartPoll, of.NextPoll, of.EndPoll
	to.ReadOpcode, to.ReadVendorErr, to.ReadWCFlags = of.ReadOpcode, of.ReadVendorErr, of.ReadWCFlags
	for _, one := range []struct {
		flag ibv.CreateCQWCFlags
		to   *ibv.FuncPtr
		slot ibv.FuncPtr
	}{
		{ibv.WC_EX_WITH_BYTE_LEN, &to.ReadByteLen, of.ReadByteLen},
		{ibv.WC_EX_WITH_IMM, &to.ReadImmData, of.ReadImmData},
		{ibv.WC_EX_WITH_QP_NUM, &to.ReadQPNum, of.ReadQPNum}, {ibv.WC_EX_WITH_SRC_QP, &to.ReadSrcQP, of.ReadSrcQP},
		{ibv.WC_EX_WITH_SLID, &to.ReadSLID, of.ReadSLID}, {ibv.WC_EX_WITH_SL, &to.ReadSL, of.ReadSL},
		{ibv.WC_EX_WITH_DLID_PATH_BITS, &to.ReadDLIDPathBits, of.ReadDLIDPathBits},
		{ibv.WC_EX_WITH_COMPLETION_TIMESTAMP, &to.ReadCompletionTS, of.ReadCompletionTS},
		{ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, &to.ReadCompletionWallclockNs, of.ReadCompletionWallclockNs},
		{ibv.WC_EX_WITH_TM_INFO, &to.ReadTMInfo, of.ReadTMInfo},
	} {
		if flags&one.flag != 0 {
			*one.to = one.slot
		}
	}
}
