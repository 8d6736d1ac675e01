// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package rxe

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// sendOps are the operations that queue pairs of each type can build.
var sendOps = map[ibv.QPType]ibv.QPCreateSendOpsFlags{
	ibv.QPT_RC: ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_SEND |
		ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_SEND_WITH_INV | ibv.QP_EX_WITH_RDMA_READ |
		ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP | ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD | ibv.QP_EX_WITH_LOCAL_INV |
		ibv.QP_EX_WITH_BIND_MW | ibv.QP_EX_WITH_FLUSH | ibv.QP_EX_WITH_ATOMIC_WRITE,
	ibv.QPT_UC: ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_SEND |
		ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_SEND_WITH_INV | ibv.QP_EX_WITH_BIND_MW,
	ibv.QPT_UD: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM,
}

// SendOps implements [driver.Extended].
func (*device) SendOps(kind ibv.QPType) ibv.QPCreateSendOpsFlags { return sendOps[kind] }

// builder is a [driver.Builder]. Requests are in the send queue already, behind its producer index.
type builder struct {
	*queuePair
	n     uint32 // requests
	last  *uapi.RXESendWQE
	errno syscall.Errno
}

// Builder implements [driver.ExtendedQP].
func (q *queuePair) Builder() driver.Builder { return &builder{queuePair: q} }

func (b *builder) Start(qp *ibv.QP) {
	b.send.mu.Lock()
	b.n, b.last, b.errno = 0, nil, 0
	if b.send.mapping == nil || qp.State < ibv.QPS_RTS { // as in PostSend
		b.Fail(syscall.EINVAL)
	}
}

func (b *builder) Started() bool {
	if b.send.mu.TryLock() {
		b.send.mu.Unlock()
		return false
	}
	return true
}

func (b *builder) Fail(errno syscall.Errno) {
	if b.errno == 0 {
		b.errno = errno
	}
	b.last = nil
}

func (b *builder) Complete() syscall.Errno {
	defer b.send.mu.Unlock()
	b.last = nil
	if b.errno != 0 || b.n == 0 {
		return b.errno
	}
	b.send.queue.push(b.n)
	b.ssn += b.n
	return b.file.Send(&b.doorbell)
}

func (b *builder) Abort() {
	b.last = nil
	b.send.mu.Unlock()
}

// request begins a request and returns its element, or nil after an error.
func (b *builder) request(x *ibv.QPEx, op ibv.WROpcode) *uapi.RXESendWQE {
	if b.errno != 0 {
		return nil
	}
	element := b.send.queue.free(b.n)
	if element == nil {
		b.Fail(syscall.ENOMEM)
		return nil
	}
	w := (*uapi.RXESendWQE)(element)
	*w = uapi.RXESendWQE{Ssn: b.ssn + b.n}
	w.WR.WRID, w.WR.Opcode, w.WR.SendFlags = x.WRID, uapi.IBUverbsWROpcode(op), uint32(x.WRFlags)
	b.last, b.n = w, b.n+1
	return w
}

// Message begins a send, or the invalidation of a key.
func (b *builder) Message(x *ibv.QPEx, op ibv.WROpcode, immOrKey uint32) {
	if w := b.request(x, op); w != nil {
		*w.WR.Ex.InvalidateRKey() = immOrKey
	}
}

// Remote begins a read or write.
func (b *builder) Remote(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address uint64, imm uint32) {
	if w := b.request(x, op); w != nil {
		to := w.WR.WR.RDMA()
		to.RemoteAddr, to.RKey, w.IOVA = address, rkey, address
		*w.WR.Ex.InvalidateRKey() = imm // immediate data and keys to invalidate share storage
	}
}

// Atomic begins an atomic operation.
func (b *builder) Atomic(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address, compareAdd, swap uint64) {
	if w := b.request(x, op); w != nil {
		to := w.WR.WR.Atomic()
		to.RemoteAddr, to.RKey, to.CompareAdd, to.Swap, w.IOVA = address, rkey, compareAdd, swap, address
	}
}

// Flush begins a flush of memory.
func (b *builder) Flush(x *ibv.QPEx, rkey uint32, address, length uint64, placement, level uint8) {
	if length > 1<<32-1 {
		b.Fail(syscall.EINVAL)
		return
	}
	if w := b.request(x, ibv.WR_FLUSH); w != nil {
		to := w.WR.WR.Flush()
		to.RemoteAddr, to.RKey, to.Length, w.IOVA = address, rkey, uint32(length), address
		to.Type, to.Level = uapi.IBPlacementType(placement), uapi.IBSelectivityLevel(level)
	}
}

// AtomicWrite begins a write of 8 bytes.
func (b *builder) AtomicWrite(x *ibv.QPEx, rkey uint32, address uint64, value *[8]byte) {
	const size = len(value)
	b.Remote(x, ibv.WR_ATOMIC_WRITE, rkey, address, 0)
	if w := b.last; w != nil {
		copy(w.DMA.AtomicWR(size), value[:])
		w.DMA.Length, w.DMA.Resid = uint32(size), uint32(size)
	}
}

// Bind begins a bind of a memory window.
func (b *builder) Bind(x *ibv.QPEx, mw *ibv.MW, rkey uint32, info *ibv.MWBindInfo) {
	if w := b.request(x, ibv.WR_BIND_MW); w != nil {
		fillBind(w, mw, rkey, info)
	}
}

// Datagram sets the destination of the last request.
func (b *builder) Datagram(ah unsafe.Pointer, qpn, qkey uint32) {
	if b.last != nil {
		to := b.last.WR.WR.UD()
		to.AHNum, to.RemoteQPN, to.RemoteQKey = (*uapi.RXECreateAHResp)(ah).AHNum, qpn, qkey
	}
}

// SGEs sets the entries of the last request.
func (b *builder) SGEs(sges []ibv.SGE) {
	if b.last == nil {
		return
	}
	if len(sges) > int(b.limits.SGEs) {
		b.Fail(syscall.ENOSPC)
		return
	}
	length := uint64(0)
	for i := range sges {
		length += uint64(sges[i].Length)
	}
	if length > 1<<32-1 {
		b.Fail(syscall.EINVAL)
		return
	}
	d := &b.last.DMA
	d.Length, d.Resid, d.NumSGE = uint32(length), uint32(length), uint32(len(sges))
	copySGEs(d, sges)
}

// Inline copies buffers to the last request, and sets its flag SEND_INLINE.
func (b *builder) Inline(buffers []ibv.DataBuf) {
	if b.last == nil {
		return
	}
	d := &b.last.DMA
	room := d.InlineData(int(b.limits.Inline))
	length := 0
	for i := range buffers {
		n := uint64(buffers[i].Length)
		if n > uint64(len(room)-length) {
			b.Fail(syscall.ENOSPC)
			return
		}
		length += copy(room[length:], memory(uint64(buffers[i].Addr), int(n)))
	}
	d.Length, d.Resid = uint32(length), uint32(length)
	b.last.WR.SendFlags |= uint32(ibv.SEND_INLINE)
}
