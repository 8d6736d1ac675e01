// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// createCQEx is the operation create_cq_ex.
func (b *Backend) createCQEx(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := find[context](b, of)
	if c == nil || address == 0 {
		return 0, syscall.EINVAL
	}
	return b.makeCQEx(c, ibv.Ptr[ibv.CQInitAttrEx](address).Deref(), c.own.CreateCQ)
}

func (b *Backend) makeCQEx(c *context, attr *ibv.CQInitAttrEx, create driver.CreateCQ) (uint64, syscall.Errno) {
	if c == nil || int32(attr.CQE) < 1 {
		return 0, syscall.EINVAL
	}
	if attr.CompMask&^(ibv.CQ_INIT_ATTR_MASK_FLAGS|ibv.CQ_INIT_ATTR_MASK_PD) != 0 {
		return 0, syscall.EINVAL
	}
	if attr.WCFlags&^ibv.WC_STANDARD_FLAGS != 0 ||
		attr.CompMask&ibv.CQ_INIT_ATTR_MASK_FLAGS != 0 && attr.Flags&^ibv.CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	cq, errno := b.makeCQ(c, attr, create)
	if errno == 0 {
		find[completionQueue](b, cq).record.fill(&b.slots.reader, attr.WCFlags)
	}
	return cq, errno
}

// fill installs the functions in the record: those that every queue has, and those for the requested fields.
func (r *cqRecord) fill(slots *ibv.CQEx, flags ibv.CreateCQWCFlags) {
	r.StartPoll, r.NextPoll, r.EndPoll = slots.StartPoll, slots.NextPoll, slots.EndPoll
	r.ReadOpcode, r.ReadVendorErr, r.ReadWCFlags = slots.ReadOpcode, slots.ReadVendorErr, slots.ReadWCFlags
	for _, f := range []struct {
		to   *ibv.FuncPtr
		slot ibv.FuncPtr
		flag ibv.CreateCQWCFlags
	}{
		{&r.ReadByteLen, slots.ReadByteLen, ibv.WC_EX_WITH_BYTE_LEN},
		{&r.ReadImmData, slots.ReadImmData, ibv.WC_EX_WITH_IMM},
		{&r.ReadQPNum, slots.ReadQPNum, ibv.WC_EX_WITH_QP_NUM}, {&r.ReadSrcQP, slots.ReadSrcQP, ibv.WC_EX_WITH_SRC_QP},
		{&r.ReadSLID, slots.ReadSLID, ibv.WC_EX_WITH_SLID}, {&r.ReadSL, slots.ReadSL, ibv.WC_EX_WITH_SL},
		{&r.ReadDLIDPathBits, slots.ReadDLIDPathBits, ibv.WC_EX_WITH_DLID_PATH_BITS},
	} {
		if flags&f.flag != 0 {
			*f.to = f.slot
		}
	}
}

// startPoll is the slot start_poll. If there is a completion, it locks the queue until end_poll.
func (b *Backend) startPoll(address, attr, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.cqAt(address)
	if q == nil || attr == 0 || ibv.Ptr[ibv.PollCQAttr](attr).Deref().CompMask != 0 {
		return uint64(syscall.EINVAL), 0
	}
	q.reads.Lock()
	errno := q.step()
	if errno != 0 {
		q.reads.Unlock()
	}
	return uint64(errno), 0
}

// step takes the next completion. The caller holds completionQueue.reads.
func (q *completionQueue) step() syscall.Errno {
	switch n := q.path.Poll(q.record.cq(), q.current[:]); {
	case n < 0:
		return syscall.EIO
	case n == 0:
		return syscall.ENOENT
	}
	q.reading = true
	q.record.WRID, q.record.Status = q.current[0].WRID, q.current[0].Status
	return 0
}

// nextPoll is the slot next_poll. The caller holds completionQueue.reads, since start_poll.
func (b *Backend) nextPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.cqAt(address)
	if q == nil || !q.reading {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(q.step()), 0
}

// endPoll is the slot end_poll, which releases the lock of start_poll.
func (b *Backend) endPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if q := b.cqAt(address); q != nil && q.reading {
		q.reading = false
		q.reads.Unlock()
	}
	return 0, 0
}

// fillReaders assigns the functions of extended completion queues.
func (b *Backend) fillReaders(set func(*ibv.FuncPtr, runtime.SlotFunc)) {
	c := &b.slots.reader
	set(&c.StartPoll, b.startPoll)
	set(&c.NextPoll, b.nextPoll)
	set(&c.EndPoll, b.endPoll)
	// The caller of a reader holds completionQueue.reads, since start_poll.
	reader := func(f func(wc *ibv.WC) uint64) runtime.SlotFunc {
		return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
			if q := b.cqAt(address); q != nil && q.reading {
				return f(&q.current[0]), 0
			}
			return 0, 0
		}
	}
	set(&c.ReadOpcode, reader(func(wc *ibv.WC) uint64 { return uint64(wc.Opcode) }))
	set(&c.ReadVendorErr, reader(func(wc *ibv.WC) uint64 { return uint64(wc.VendorErr) }))
	set(&c.ReadByteLen, reader(func(wc *ibv.WC) uint64 { return uint64(wc.ByteLen) }))
	set(&c.ReadImmData, reader(func(wc *ibv.WC) uint64 { return uint64(*wc.ImmData()) }))
	set(&c.ReadQPNum, reader(func(wc *ibv.WC) uint64 { return uint64(wc.QPNum) }))
	set(&c.ReadSrcQP, reader(func(wc *ibv.WC) uint64 { return uint64(wc.SrcQP) }))
	set(&c.ReadWCFlags, reader(func(wc *ibv.WC) uint64 { return uint64(wc.WCFlags) }))
	set(&c.ReadSLID, reader(func(wc *ibv.WC) uint64 { return uint64(wc.SLID) }))
	set(&c.ReadSL, reader(func(wc *ibv.WC) uint64 { return uint64(wc.SL) }))
	set(&c.ReadDLIDPathBits, reader(func(wc *ibv.WC) uint64 { return uint64(wc.DLIDPathBits) }))
}
