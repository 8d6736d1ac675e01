// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// builder is the state between ibv_wr_start and ibv_wr_complete, while QP.Post is locked.
type builder struct {
	ops   ibv.QPCreateSendOpsFlags
	n     uint32 // requests
	errno runtime.Errno
	spare engine.Request // takes the fields set after an error
}

// SendOps lists the operations by the bits of send_ops_flags.
var SendOps = [...]ibv.WROpcode{
	ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP,
	ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW, ibv.WR_SEND_WITH_INV, ibv.WR_TSO, ibv.WR_FLUSH,
	ibv.WR_ATOMIC_WRITE,
}

// Buildable checks the operations requested for a queue pair.
func Buildable(kind ibv.QPType, ops ibv.QPCreateSendOpsFlags) runtime.Errno {
	if ops>>len(SendOps) != 0 {
		return syscall.EOPNOTSUPP
	}
	for i, op := range SendOps {
		if ops&(1<<i) != 0 && !Rules[kind][op].Builds {
			return syscall.EOPNOTSUPP
		}
	}
	return 0
}

// extend installs the requested extended functions in the queue pair. It needs no lock: the queue pair is new.
func (q *QP) extend(ops ibv.QPCreateSendOpsFlags) {
	q.build.ops = ops
	all.slots.builder(&q.record.QPEx, ops)
}

// toQPEx implements ibv_qp_to_qp_ex: NULL for a queue pair without extended functions.
func toQPEx(of ibv.Ptr[ibv.QP]) (ibv.Ptr[ibv.QP], runtime.Errno) {
	if q := Find[QP](of); q != nil && q.build.ops != 0 {
		return of, 0
	}
	return 0, syscall.EOPNOTSUPP
}

// wrStart implements the slot wr_start. It returns with QP.Post held, until ibv_wr_complete or ibv_wr_abort.
func wrStart(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if q := qpOf(address); q != nil {
		q.Post.Lock()
		q.build.n, q.build.errno = 0, 0
	}
	return 0, 0
}

// wrComplete implements the slot wr_complete. It needs no lock: without ibv_wr_start, which has taken QP.Post, it does
// nothing.
func wrComplete(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q := qpOf(address)
	if q == nil || !q.started() {
		return uint64(syscall.EINVAL), 0
	}
	defer q.Post.Unlock()
	if (q.Kind == ibv.QPT_UD || q.Dynamic != nil) && !q.addressed() {
		q.build.fail(syscall.EINVAL)
	}
	if q.build.errno != 0 {
		return uint64(q.build.errno), 0
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if !q.Publish(q.build.n) {
		return uint64(syscall.EINVAL), 0
	}
	return 0, 0
}

func wrAbort(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if q := qpOf(address); q != nil && q.started() {
		q.Post.Unlock()
	}
	return 0, 0
}

// started reports whether QP.Post is locked, as after ibv_wr_start.
func (q *QP) started() bool {
	if q.Post.TryLock() {
		q.Post.Unlock()
		return false
	}
	return true
}

// addressed reports whether all built datagrams have a destination.
func (q *QP) addressed() bool {
	for i := range q.build.n {
		if q.Place(q.Posted+i).AH == nil {
			return false
		}
	}
	return true
}

// fail records the first error of the request list under construction. The caller holds QP.Post.
func (b *builder) fail(errno runtime.Errno) {
	if b.errno == 0 {
		b.errno = errno
	}
}

// built returns the request to which setters apply. The caller holds QP.Post.
func (q *QP) built() *engine.Request {
	if q.build.n == 0 || q.build.errno != 0 {
		return &q.build.spare
	}
	return q.Place(q.Posted + q.build.n - 1)
}

// begin starts a request and sets the fields common to all opcodes. The caller holds QP.Post.
func (q *QP) begin(op ibv.WROpcode) *engine.Request {
	b := &q.build
	r, errno := q.Claim(q.Posted + b.n)
	flags := q.record.WRFlags
	if errno == 0 && (b.ops == 0 || flags&^Rules[q.Kind][op].wrFlags != 0) {
		errno = syscall.EINVAL
	}
	if errno != 0 {
		b.fail(errno)
		r = &b.spare
	} else {
		b.n++
	}
	r.Start(q.record.WRID, op, flags)
	return r
}

// slotOf returns a slot that calls a function of a queue pair, and does nothing for a destroyed one.
func slotOf(f func(q *QP, a, b, c, d, e uint64)) runtime.SlotFunc {
	return func(address, a, b, c, d, e uint64) (uint64, runtime.Errno) {
		if q := qpOf(address); q != nil {
			f(q, a, b, c, d, e)
		}
		return 0, 0
	}
}

// remoteOp returns a slot that builds an operation whose first arguments are a key and an address. It needs no lock,
// because ibv_wr_start has taken QP.Post.
func remoteOp(op ibv.WROpcode, more func(r *engine.Request, a, b, c uint64)) runtime.SlotFunc {
	return func(address, rkey, remote, a, b, c uint64) (uint64, runtime.Errno) {
		if q := qpOf(address); q != nil {
			r := q.begin(op)
			r.RKey, r.Remote = uint32(rkey), remote
			if more != nil {
				more(r, a, b, c)
			}
		}
		return 0, 0
	}
}

// wrAtomicWrite implements the slot wr_atomic_write. The caller holds QP.Post, since ibv_wr_start.
func wrAtomicWrite(q *QP, rkey, remote, value, _, _ uint64) {
	r := q.begin(ibv.WR_ATOMIC_WRITE)
	r.RKey, r.Remote = uint32(rkey), remote
	if ok := false; value == 0 {
		q.build.fail(syscall.EINVAL)
	} else if r.Operand, ok = mem.TryLoad64(value); !ok {
		q.build.fail(syscall.EFAULT)
	}
}

// withImm returns a slot that builds an operation whose argument is immediate data. It needs no lock, because
// ibv_wr_start has taken QP.Post.
func withImm(op ibv.WROpcode) runtime.SlotFunc {
	return slotOf(func(q *QP, imm, _, _, _, _ uint64) { q.begin(op).Imm = uint32(imm) })
}

// wrBindMW implements the slot wr_bind_mw. The caller holds QP.Post, since ibv_wr_start.
func wrBindMW(q *QP, window, rkey, info, _, _ uint64) {
	r := q.begin(ibv.WR_BIND_MW)
	if info == 0 {
		q.build.fail(syscall.EINVAL)
		return
	}
	q.build.reads(func() {
		if errno := q.fillBind(r, window, uint32(rkey), mem.At[ibv.MWBindInfo](info)); errno != 0 {
			q.build.fail(errno)
		}
	})
}

// wrSetUDAddr implements the slot wr_set_ud_addr. The caller holds QP.Post, since ibv_wr_start.
func wrSetUDAddr(q *QP, handle, number, qkey, _, _ uint64) {
	if errno := q.address(q.built(), handle, uint32(number), uint32(qkey)); errno != 0 {
		q.build.fail(errno)
	}
}

// wrSetXRCSRQN implements the slot wr_set_xrc_srqn. The caller holds QP.Post, since ibv_wr_start.
func wrSetXRCSRQN(q *QP, number, _, _, _, _ uint64) { q.built().Number = uint32(number) }

// wrSetInlineData implements the slot wr_set_inline_data. The caller holds QP.Post, since ibv_wr_start.
func wrSetInlineData(q *QP, address, length, _, _, _ uint64) {
	q.build.reads(func() { q.setInline([]ibv.DataBuf{{Addr: uintptr(address), Length: length}}) })
}

// wrSetInlineDataList implements the slot wr_set_inline_data_list. The caller holds QP.Post, since ibv_wr_start.
func wrSetInlineDataList(q *QP, n, pieces, _, _, _ uint64) {
	if n > uint64(engine.MaxSGE) || n > 0 && pieces == 0 {
		q.build.fail(syscall.EINVAL)
		return
	}
	q.build.reads(func() { q.setInline(mem.List[ibv.DataBuf](pieces, int(n))) })
}

// reads calls a function that reads memory of the program, which may be unmapped.
func (b *builder) reads(f func()) {
	if !mem.Try(f) {
		b.fail(syscall.EFAULT)
	}
}

func (q *QP) setInline(pieces []ibv.DataBuf) {
	r := q.built()
	if q.build.errno != 0 {
		return
	}
	if q.build.n == 0 || Rules[q.Kind][r.Opcode].flags&ibv.SEND_INLINE == 0 {
		q.build.fail(syscall.EINVAL)
		return
	}
	r.Inline = 0
	for _, piece := range pieces {
		if errno := q.AddInline(r, uint64(piece.Addr), piece.Length); errno != 0 {
			q.build.fail(errno)
			return
		}
	}
}

// wrSetSGE implements the slot wr_set_sge. The caller holds QP.Post, since ibv_wr_start.
func wrSetSGE(q *QP, lkey, address, length, _, _ uint64) {
	q.setSGEs([]ibv.SGE{{Addr: address, Length: uint32(length), LKey: uint32(lkey)}})
}

// wrSetSGEList implements the slot wr_set_sge_list. The caller holds QP.Post, since ibv_wr_start.
func wrSetSGEList(q *QP, n, sges, _, _, _ uint64) {
	if n > uint64(q.Cap.MaxSendSGE) || n > 0 && sges == 0 {
		q.build.fail(syscall.EINVAL)
		return
	}
	q.build.reads(func() { q.setSGEs(mem.List[ibv.SGE](sges, int(n))) })
}

func (q *QP) setSGEs(sges []ibv.SGE) {
	if q.build.errno != 0 {
		return
	}
	if q.build.n == 0 || len(sges) > int(q.Cap.MaxSendSGE) {
		q.build.fail(syscall.EINVAL)
		return
	}
	r := q.built()
	r.SGEs = append(r.SGEs[:0], sges...)
}
