// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// createQPEx is the operation create_qp_ex.
func (b *Backend) createQPEx(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	c := find[context](b, of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	attr, create := ibv.Ptr[ibv.QPInitAttrEx](address).Deref(), driver.CreateQP(c.createQP)
	if x, ok := c.own.(driver.ExtendedQPs); ok {
		create = x.CreateQPEx(attr)
	}
	return b.makeQPEx(c, attr, create)
}

func (b *Backend) makeQPEx(c *context, attr *ibv.QPInitAttrEx, create driver.CreateQP) (uint64, syscall.Errno) {
	ops := ibv.QPCreateSendOpsFlags(0)
	if attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		ops = attr.SendOpsFlags
	}
	home := ibv.QP_INIT_ATTR_PD
	if attr.QPType == ibv.QPT_XRC_RECV {
		home = ibv.QP_INIT_ATTR_XRCD
	}
	if c == nil || attr.CompMask&home == 0 {
		return 0, syscall.EINVAL
	}
	known := home | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	if _, ok := c.own.(driver.XRC); ok {
		known |= ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_XRCD
	}
	x, extends := c.own.(driver.ExtendedQPs)
	if extends {
		known |= x.Attributes(attr.QPType)
	}
	if attr.CompMask&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	if errno := c.executes(ops); errno != 0 {
		return 0, errno
	}
	if x, ok := c.own.(driver.Extended); ops != 0 && (!ok || ops&^x.SendOps(attr.QPType) != 0) {
		return 0, syscall.EOPNOTSUPP
	}
	base := (*ibv.QPInitAttr)(unsafe.Pointer(attr)) // the attributes begin with those of ibv_create_qp
	if home == ibv.QP_INIT_ATTR_XRCD {
		xrcd := find[xrcDomain](b, uint64(attr.XRCD))
		if xrcd == nil || ops != 0 {
			return 0, syscall.EINVAL
		}
		return b.newQP(c, nil, xrcd, base, create)
	}
	p := find[domain](b, uint64(attr.PD))
	if p == nil || p.context != c {
		return 0, syscall.EINVAL
	}
	qp, errno := b.newQPWith(c, p, nil, base, create, extendedFlags(attr))
	if errno != 0 || ops == 0 {
		return qp, errno
	}
	q := find[queuePair](b, qp)
	q.build = q.own.(driver.ExtendedQP).Builder()
	q.record.fill(&b.slots.builder, ops)
	return qp, 0
}

// extendedFlags returns the flags of the kernel's extended command for a queue pair, or nil for the other command.
func extendedFlags(attr *ibv.QPInitAttrEx) *ibv.QPCreateFlags {
	if attr.CompMask&ibv.QP_INIT_ATTR_CREATE_FLAGS == 0 {
		return nil
	}
	return &attr.CreateFlags
}

// executes checks operations that not every kernel has.
func (c *context) executes(ops ibv.QPCreateSendOpsFlags) syscall.Errno {
	if ops&(ibv.QP_EX_WITH_FLUSH|ibv.QP_EX_WITH_ATOMIC_WRITE) == 0 {
		return 0
	}
	r, errno := c.deviceEx()
	if errno != 0 {
		return errno
	}
	has := func(caps uapi.IBUverbsDeviceCapFlags) bool { return r.DeviceCapFlagsEx&caps != 0 }
	const flush = uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL | uapi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT
	if ops&ibv.QP_EX_WITH_FLUSH != 0 && !has(flush) ||
		ops&ibv.QP_EX_WITH_ATOMIC_WRITE != 0 && !has(uapi.IB_UVERBS_DEVICE_ATOMIC_WRITE) {
		return syscall.EOPNOTSUPP
	}
	return 0
}

// fill installs the functions for the operations in the record.
func (r *qpRecord) fill(slots *ibv.QPEx, ops ibv.QPCreateSendOpsFlags) {
	base := r.QPBase
	r.QPEx = *slots
	r.QPBase = base
	for _, f := range []struct {
		slot *ibv.FuncPtr
		op   ibv.QPCreateSendOpsFlags
	}{
		{&r.WRRDMAWrite, ibv.QP_EX_WITH_RDMA_WRITE}, {&r.WRRDMAWriteImm, ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM},
		{&r.WRRDMARead, ibv.QP_EX_WITH_RDMA_READ}, {&r.WRSend, ibv.QP_EX_WITH_SEND},
		{&r.WRSendImm, ibv.QP_EX_WITH_SEND_WITH_IMM}, {&r.WRSendInv, ibv.QP_EX_WITH_SEND_WITH_INV},
		{&r.WRAtomicCmpSwp, ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP},
		{&r.WRAtomicFetchAdd, ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD}, {&r.WRLocalInv, ibv.QP_EX_WITH_LOCAL_INV},
		{&r.WRBindMW, ibv.QP_EX_WITH_BIND_MW}, {&r.WRFlush, ibv.QP_EX_WITH_FLUSH},
		{&r.WRAtomicWrite, ibv.QP_EX_WITH_ATOMIC_WRITE}, {&r.WRSendTSO, ibv.QP_EX_WITH_TSO},
	} {
		if ops&f.op == 0 {
			*f.slot = 0
		}
	}
	if kind := r.QPBase.QPType; kind != ibv.QPT_UD && kind != ibv.QPT_DRIVER {
		r.WRSetUDAddr = 0
	}
	if r.QPBase.QPType != ibv.QPT_XRC_SEND {
		r.WRSetXRCSRQN = 0
	}
}

// qpToQPEx is ibv_qp_to_qp_ex, which returns NULL for a queue pair without builders.
func (b *Backend) qpToQPEx(a []uint64) (uint64, runtime.Errno) {
	if q := find[queuePair](b, a[0]); q != nil && q.build != nil {
		return a[0], 0
	}
	return 0, syscall.EOPNOTSUPP
}

// wrStart is the slot wr_start. It locks the builder until wr_complete or wr_abort.
func (b *Backend) wrStart(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if q := b.qpAt(address); q != nil {
		q.build.Start(&q.record.QPBase)
	}
	return 0, 0
}

func (b *Backend) wrComplete(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.qpAt(address)
	if q == nil || !q.build.Started() {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(q.build.Complete()), 0
}

func (b *Backend) wrAbort(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if q := b.qpAt(address); q != nil && q.build.Started() {
		q.build.Abort()
	}
	return 0, 0
}

// builder makes a function of an extended queue pair a slot. Calls on a destroyed one do nothing.
func (b *Backend) builder(f func(x *ibv.QPEx, w driver.Builder, a, b, c, d, e uint64)) runtime.SlotFunc {
	return func(address, a1, a2, a3, a4, a5 uint64) (uint64, runtime.Errno) {
		if q := b.qpAt(address); q != nil {
			f(&q.record.QPEx, q.build, a1, a2, a3, a4, a5)
		}
		return 0, 0
	}
}

// fillBuilders assigns the functions of extended queue pairs.
func (b *Backend) fillBuilders(set func(*ibv.FuncPtr, runtime.SlotFunc)) {
	f := &b.slots.builder
	set(&f.WRStart, b.wrStart)
	set(&f.WRComplete, b.wrComplete)
	set(&f.WRAbort, b.wrAbort)
	remote := func(op ibv.WROpcode) runtime.SlotFunc {
		return b.builder(func(x *ibv.QPEx, w driver.Builder, rkey, address, imm, _, _ uint64) {
			if op != ibv.WR_RDMA_WRITE_WITH_IMM {
				imm = 0
			}
			w.Remote(x, op, uint32(rkey), address, uint32(imm))
		})
	}
	set(&f.WRRDMAWrite, remote(ibv.WR_RDMA_WRITE))
	set(&f.WRRDMAWriteImm, remote(ibv.WR_RDMA_WRITE_WITH_IMM))
	set(&f.WRRDMARead, remote(ibv.WR_RDMA_READ))
	message := func(op ibv.WROpcode) runtime.SlotFunc {
		return b.builder(func(x *ibv.QPEx, w driver.Builder, immOrKey, _, _, _, _ uint64) {
			if op == ibv.WR_SEND {
				immOrKey = 0
			}
			w.Message(x, op, uint32(immOrKey))
		})
	}
	set(&f.WRSend, message(ibv.WR_SEND))
	set(&f.WRSendImm, message(ibv.WR_SEND_WITH_IMM))
	set(&f.WRSendInv, message(ibv.WR_SEND_WITH_INV))
	set(&f.WRLocalInv, message(ibv.WR_LOCAL_INV))
	set(&f.WRAtomicCmpSwp, b.builder(func(x *ibv.QPEx, w driver.Builder, rkey, address, compare, swap, _ uint64) {
		w.Atomic(x, ibv.WR_ATOMIC_CMP_AND_SWP, uint32(rkey), address, compare, swap)
	}))
	set(&f.WRAtomicFetchAdd, b.builder(func(x *ibv.QPEx, w driver.Builder, rkey, address, add, _, _ uint64) {
		w.Atomic(x, ibv.WR_ATOMIC_FETCH_AND_ADD, uint32(rkey), address, add, 0)
	}))
	set(&f.WRFlush, b.builder(func(x *ibv.QPEx, w driver.Builder, rkey, address, length, placement, level uint64) {
		w.Flush(x, uint32(rkey), address, length, uint8(placement), uint8(level))
	}))
	set(&f.WRAtomicWrite, b.builder(func(x *ibv.QPEx, w driver.Builder, rkey, address, value, _, _ uint64) {
		if value == 0 {
			w.Fail(syscall.EINVAL)
			return
		}
		w.AtomicWrite(x, uint32(rkey), address, ibv.Ptr[[8]byte](value).Deref())
	}))
	set(&f.WRBindMW, b.builder(func(x *ibv.QPEx, w driver.Builder, mw, rkey, info, _, _ uint64) {
		of, bind := find[window](b, mw), ibv.Ptr[ibv.MWBindInfo](info).Deref()
		if of == nil || bind == nil || bind.MR != 0 && find[region](b, uint64(bind.MR)) == nil {
			w.Fail(syscall.EINVAL)
			return
		}
		w.Bind(x, of.record, uint32(rkey), bind)
	}))
	set(&f.WRSetUDAddr, b.builder(func(_ *ibv.QPEx, w driver.Builder, ah, qpn, qkey, _, _ uint64) {
		h := b.ahAt(ah)
		if h == nil {
			w.Fail(syscall.EINVAL)
			return
		}
		w.Datagram(h.record.Part(), uint32(qpn), uint32(qkey))
	}))
	set(&f.WRSendTSO, b.builder(func(x *ibv.QPEx, w driver.Builder, header, size, mss, _, _ uint64) {
		t, ok := w.(driver.TSOBuilder)
		if !ok || header == 0 {
			w.Fail(syscall.EINVAL)
			return
		}
		t.TSO(x, listAt[byte](header, int(uint16(size))), uint16(mss))
	}))
	set(&f.WRSetXRCSRQN, b.builder(func(_ *ibv.QPEx, w driver.Builder, srqn, _, _, _, _ uint64) {
		if x, ok := w.(driver.XRCBuilder); ok {
			x.XRC(uint32(srqn))
		}
	}))
	set(&f.WRSetSGE, b.builder(func(_ *ibv.QPEx, w driver.Builder, lkey, address, length, _, _ uint64) {
		w.SGEs([]ibv.SGE{{Addr: address, Length: uint32(length), LKey: uint32(lkey)}})
	}))
	// Lists that no queue holds are not read.
	const most = 1 << 16
	set(&f.WRSetSGEList, b.builder(func(_ *ibv.QPEx, w driver.Builder, n, sges, _, _, _ uint64) {
		if n > most {
			w.Fail(syscall.ENOSPC)
			return
		}
		w.SGEs(listAt[ibv.SGE](sges, int(n)))
	}))
	set(&f.WRSetInlineData, b.builder(func(_ *ibv.QPEx, w driver.Builder, address, length, _, _, _ uint64) {
		w.Inline([]ibv.DataBuf{{Addr: uintptr(address), Length: length}})
	}))
	set(&f.WRSetInlineDataList, b.builder(func(_ *ibv.QPEx, w driver.Builder, n, buffers, _, _, _ uint64) {
		if n > most {
			w.Fail(syscall.ENOSPC)
			return
		}
		w.Inline(listAt[ibv.DataBuf](buffers, int(n)))
	}))
}
