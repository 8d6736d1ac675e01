// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// slots are the functions whose addresses objects contain.
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
	set(&o.BindMW, bindMW)

	x := &h.slots.extended
	// call returns a slot that calls a function with registers.
	call := func(f runtime.Func) runtime.SlotFunc {
		f = abi.Guarded(f)
		return func(r0, r1, r2, r3, r4, r5 uint64) (uint64, runtime.Errno) {
			return f([]uint64{r0, r1, r2, r3, r4, r5})
		}
	}
	set(&o.AllocMW, call(creates(abi.New1(allocMW))))
	set(&o.DeallocMW, call(abi.Number(held(abi.After0(deallocMW)))))
	set(&x.QueryPort, call(abi.Number(held(abi.After3(queryPort)))))
	set(&x.QueryDeviceEx, call(abi.Number(found(abi.After3(queryDeviceEx)))))
	set(&x.QueryRTValues, call(abi.Number(found(abi.AfterRecord(queryRTValues)))))
	set(&x.AdviseMR, call(abi.Number(held(abi.After4(adviseMR)))))
	set(&x.AllocDM, call(creates(abi.NewRecord(allocDM))))
	set(&x.FreeDM, call(abi.Number(held(abi.After0(freeDM)))))
	set(&x.RegDMMR, call(creates(abi.New4(regDMMR))))
	set(&x.AllocNullMR, call(creates(abi.New0(allocNullMR))))
	set(&h.slots.dm.MemcpyToDM, call(abi.Number(held(abi.After3(memcpyToDM)))))
	set(&h.slots.dm.MemcpyFromDM, call(abi.Number(func(a abi.Args) runtime.Errno { // the object is the second argument
		a[0], a[1] = a[1], a[0]
		return held(abi.After3(memcpyFromDM))(a)
	})))
	set(&x.AllocTD, call(creates(abi.NewRecord(allocTD))))
	set(&x.AllocParentDomain, call(creates(abi.NewRecord(allocParentDomain))))
	set(&x.CreateCQEx, call(makes(abi.NewRecord(createCQEx))))
	set(&x.CreateQPEx, call(makes(abi.NewRecord(CreateQPEx))))
	set(&x.OpenQP, call(creates(abi.NewRecord(openQP))))
	set(&x.CreateSRQEx, call(makes(abi.NewRecord(CreateSRQEx))))
	set(&x.OpenXRCD, call(makes(abi.NewRecord(OpenXRCD))))
	set(&x.DeallocTD, call(abi.Number(held(abi.After0(deallocTD)))))
	set(&x.CloseXRCD, call(abi.Number(held(abi.After0((*XRCD).Close)))))
	set(&x.GetSRQNum, call(abi.Number(found(abi.AfterRecord(srqNumber)))))
	set(&x.PostSRQOps, postSRQOps)
	set(&x.ModifyCQ, call(abi.Number(held(abi.AfterRecord(modifyCQ)))))

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
		func(r *engine.Request, imm, _, _ uint64) { r.Imm = uint32(imm) }))
	set(&q.WRRDMARead, remoteOp(ibv.WR_RDMA_READ, nil))
	set(&q.WRAtomicCmpSwp, remoteOp(ibv.WR_ATOMIC_CMP_AND_SWP,
		func(r *engine.Request, compare, swap, _ uint64) { r.Operand, r.Swap = compare, swap }))
	set(&q.WRAtomicFetchAdd, remoteOp(ibv.WR_ATOMIC_FETCH_AND_ADD,
		func(r *engine.Request, add, _, _ uint64) { r.Operand = add }))
	set(&q.WRFlush, remoteOp(ibv.WR_FLUSH, func(r *engine.Request, length, placement, level uint64) {
		r.Operand, r.Swap = length, uint64(uint8(placement))|uint64(uint8(level))<<32
	}))
	set(&q.WRAtomicWrite, slotOf(wrAtomicWrite))
	set(&q.WRSend, slotOf(func(q *QP, _, _, _, _, _ uint64) { q.begin(ibv.WR_SEND) }))
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
	set(&c.ReadOpcode, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.Opcode) }))
	set(&c.ReadVendorErr, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.VendorErr) }))
	set(&c.ReadByteLen, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.ByteLen) }))
	set(&c.ReadImmData, reader(func(e *resource.Completion) uint64 { return uint64(*e.WC.ImmData()) }))
	set(&c.ReadQPNum, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.QPNum) }))
	set(&c.ReadSrcQP, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.SrcQP) }))
	set(&c.ReadWCFlags, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.WCFlags) }))
	set(&c.ReadSLID, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.SLID) }))
	set(&c.ReadSL, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.SL) }))
	set(&c.ReadDLIDPathBits, reader(func(e *resource.Completion) uint64 { return uint64(e.WC.DLIDPathBits) }))
	set(&c.ReadCompletionTS, stampReader(func(s *resource.Stamp) int64 { return s.Since }))
	set(&c.ReadCompletionWallclockNs, stampReader(func(s *resource.Stamp) int64 { return s.Wall }))
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
	for i, slot := range [len(SendOps)]*ibv.FuncPtr{&to.WRRDMAWrite, &to.WRRDMAWriteImm, &to.WRSend, &to.WRSendImm,
		&to.WRRDMARead, &to.WRAtomicCmpSwp, &to.WRAtomicFetchAdd, &to.WRLocalInv, &to.WRBindMW, &to.WRSendInv,
		&to.WRSendTSO, &to.WRFlush, &to.WRAtomicWrite} { // in the order of SendOps
		if ops&(1<<i) == 0 {
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
