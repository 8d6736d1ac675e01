// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
)

// Builder writes requests to the ring of a queue pair as the functions of ibv_wr_post(3) do: each request is one call
// of a method that begins it, and one call for each of its parts. The device sees the requests when Complete rings the
// doorbell. The first error is the result of Complete, which then posts no request.
//
// The send queue is locked from Start to Complete or Abort.
type Builder struct {
	started atomic.Bool
	q       *sendQueue
	p       posting
	n       uint32         // requests that are complete
	data    unsafe.Pointer // place of the next segment of data
	missing parts          // of the request in progress
	open    bool           // a request is in progress
	headers bool           // it is a packet whose headers are in the request
	id      uint64         // its wr_id
	errno   syscall.Errno
}

// head is what every request has.
type head struct {
	id    uint64
	flags ibv.SendFlags
	op    ibv.WROpcode
}

// next returns the head of the next request of a queue pair.
func next(x *ibv.QPEx, op ibv.WROpcode) head { return head{x.WRID, ibv.SendFlags(x.WRFlags), op} }

// parts of a request that one call each sets.
type parts uint8

const (
	partData parts = 1 << iota
	partAddress
)

// Start locks the send queue for a list of requests.
func (b *Builder) Start(*ibv.QP) {
	q := b.q
	q.mu.Lock()
	b.p = posting{q: q, at: q.next, fence: q.fence}
	b.n, b.open, b.errno = 0, false, 0
	b.started.Store(true)
}

// Started reports whether the builder is between Start and Complete or Abort.
func (b *Builder) Started() bool { return b.started.Load() }

func (b *Builder) unlock() {
	b.started.Store(false)
	b.q.mu.Unlock()
}

// Fail makes the list fail. Only the first error counts.
func (b *Builder) Fail(errno syscall.Errno) {
	if b.errno == 0 {
		b.errno = errno
	}
	b.open = false
}

// Abort drops the list.
func (b *Builder) Abort() { b.unlock() }

// Complete posts the list.
func (b *Builder) Complete() syscall.Errno {
	q := b.q
	defer b.unlock()
	b.finish()
	if q.qp.c.State < ibv.QPS_RTS {
		b.Fail(syscall.EINVAL)
	}
	if b.errno != 0 || b.n == 0 {
		return b.errno
	}
	q.fence, q.next, q.posted = b.p.fence, b.p.at, q.posted+b.n
	q.passed.give()
	q.register.ring(q, q.block(b.p.last), b.n, &b.p)
	return 0
}

// begin begins a request, whose control segment it writes. It returns the place of the next segment, or nil after an
// error.
func (b *Builder) begin(h head) unsafe.Pointer {
	b.finish()
	q, p := b.q, &b.p
	if b.errno == 0 && q.full(b.n) {
		b.Fail(syscall.ENOMEM)
	}
	if b.errno != 0 {
		return nil
	}
	p.control = q.block(p.at)
	c := (*mlx5dv.MLX5WQECtrlSeg)(p.control)
	flags := h.flags
	c.Signature, c.DCIStreamChannelIDBytes = 0, [2]byte{}
	c.FMCESE = q.signal | controls[flags&(ibv.SEND_FENCE|ibv.SEND_SIGNALED|ibv.SEND_SOLICITED)]
	if flags&ibv.SEND_FENCE == 0 {
		c.FMCESE |= p.fence
	}
	c.OpmodIdxOpcode = be32(p.at&0xffff<<8 | opcodes[h.op])
	p.fence, p.opcode, p.units = 0, 0, 1
	b.id, b.open, b.headers, b.missing = h.id, true, false, partData
	at := unsafe.Add(p.control, unit)
	switch q.kind {
	case ibv.QPT_UD, ibv.QPT_DRIVER:
		at = q.wrap(unsafe.Add(at, addressSize))
		p.units += uint32(addressSize / unit)
		b.missing |= partAddress
	case ibv.QPT_XRC_SEND:
		at = unsafe.Add(at, unit)
		p.units++
		b.missing |= partAddress
	}
	return at
}

const addressSize = unsafe.Sizeof(mlx5dv.MLX5WQEDatagramSeg{})

// finish completes the request in progress, if there is one.
func (b *Builder) finish() {
	if !b.open {
		return
	}
	b.open = false
	if b.missing != 0 {
		b.Fail(syscall.EINVAL)
		return
	}
	q, p := b.q, &b.p
	(*mlx5dv.MLX5WQECtrlSeg)(p.control).QPNDs = be32(q.number | p.units)
	b.n++
	q.requests[p.at&q.mask] = sendRequest{b.id, q.posted + b.n, p.opcode}
	p.last = p.at
	p.at += (p.units + 3) / 4
}

// advance moves the place of data past units that were written before.
func (b *Builder) advance(at unsafe.Pointer, units uint32) {
	b.data = b.q.wrap(at)
	b.p.units += units
}

func (b *Builder) control() *mlx5dv.MLX5WQECtrlSeg { return (*mlx5dv.MLX5WQECtrlSeg)(b.p.control) }

// Message begins a send. immOrKey is immediate data in network order or the key to invalidate. LOCAL_INV invalidates a
// key of this device.
func (b *Builder) Message(x *ibv.QPEx, op ibv.WROpcode, immOrKey uint32) {
	b.message(next(x, op), immOrKey)
}

func (b *Builder) message(h head, immOrKey uint32) {
	if h.op == ibv.WR_LOCAL_INV {
		b.change(h, &ibv.SendBindMW{}, immOrKey)
		return
	}
	if b.q.packets != nil {
		if h.op == ibv.WR_SEND {
			b.packet(h, nil, 0)
		} else {
			b.Fail(syscall.EINVAL)
		}
		return
	}
	at := b.begin(h)
	if at == nil {
		return
	}
	switch h.op {
	case ibv.WR_SEND_WITH_IMM:
		b.control().Imm = ibv.BE32(immOrKey)
	case ibv.WR_SEND_WITH_INV:
		b.control().Imm = be32(immOrKey)
	}
	b.advance(at, 0)
}

// Remote begins a read or a write. imm is in network order.
func (b *Builder) Remote(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address uint64, imm uint32) {
	b.remote(next(x, op), rkey, address, imm)
}

func (b *Builder) remote(h head, rkey uint32, address uint64, imm uint32) {
	at := b.begin(h)
	if at == nil {
		return
	}
	if h.op == ibv.WR_RDMA_WRITE_WITH_IMM {
		b.control().Imm = ibv.BE32(imm)
	}
	b.advance(remote(at, address, rkey), 1)
}

// Atomic begins an atomic operation.
func (b *Builder) Atomic(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address, compareAdd, swap uint64) {
	b.atomic(next(x, op), rkey, address, compareAdd, swap)
}

func (b *Builder) atomic(h head, rkey uint32, address, compareAdd, swap uint64) {
	if at := b.begin(h); at != nil {
		b.advance(operands(remote(at, address, rkey), h.op, compareAdd, swap), 2)
	}
}

// AtomicWrite fails: the device has no such operation.
func (b *Builder) AtomicWrite(*ibv.QPEx, uint32, uint64, *[8]byte) { b.Fail(syscall.EOPNOTSUPP) }

// Flush fails: the device has no such operation.
func (b *Builder) Flush(*ibv.QPEx, uint32, uint64, uint64, uint8, uint8) { b.Fail(syscall.EOPNOTSUPP) }

// Bind writes a request that binds a memory window of type 2.
func (b *Builder) Bind(x *ibv.QPEx, mw *ibv.MW, rkey uint32, info *ibv.MWBindInfo) {
	b.bind(next(x, ibv.WR_BIND_MW), mw, rkey, info)
}

func (b *Builder) bind(h head, mw *ibv.MW, rkey uint32, info *ibv.MWBindInfo) {
	if info.Length != 0 && info.MR == 0 {
		b.Fail(syscall.EINVAL)
		return
	}
	b.change(h, &ibv.SendBindMW{MW: ibv.PtrTo(mw), RKey: rkey, BindInfo: *info}, mw.RKey)
}

// change writes a request that changes the context of a key. It has no other parts.
func (b *Builder) change(h head, bind *ibv.SendBindMW, key uint32) {
	if b.begin(h) == nil {
		return
	}
	b.missing = 0
	p := &b.p
	p.opcode = ibv.WC_LOCAL_INV
	if h.op == ibv.WR_BIND_MW {
		p.opcode = ibv.WC_BIND_MW
	}
	b.control().Imm = be32(key)
	_, units, errno := p.window(unsafe.Add(p.control, unit), ibv.MW_TYPE_2, bind)
	if errno != 0 {
		b.Fail(syscall.Errno(errno))
		return
	}
	p.units, p.fence = 1+units, mlx5dv.MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
	b.finish()
}

// lacks reports whether the request in progress lacks a part.
func (b *Builder) lacks(part parts) bool {
	if b.errno == 0 && (!b.open || b.missing&part == 0) {
		b.Fail(syscall.EINVAL)
	}
	return b.errno == 0
}

// set marks a part as set, and completes the request with its last one.
func (b *Builder) set(part parts) {
	if b.missing &^= part; b.missing == 0 {
		b.finish()
	}
}

// SGEs sets the buffers of the request.
func (b *Builder) SGEs(list []ibv.SGE) {
	if !b.lacks(partData) {
		return
	}
	if len(list) > int(b.q.sges) {
		b.Fail(syscall.ENOMEM)
		return
	}
	used, skip, ok := b.takeHeaders(len(list), func(i int) (uintptr, uint64) {
		return uintptr(list[i].Addr), uint64(list[i].Length)
	})
	if !ok {
		return
	}
	at := b.data
	for _, e := range list[used:] {
		if e.Length == 0 {
			continue
		}
		at = b.q.wrap(at)
		*(*mlx5dv.MLX5WQEDataSeg)(at) = mlx5dv.MLX5WQEDataSeg{ByteCount: be32(e.Length - skip), LKey: be32(e.LKey),
			Addr: be64(e.Addr + uint64(skip))}
		skip = 0
		at = unsafe.Add(at, unit)
		b.p.units++
	}
	b.set(partData)
}

// Inline copies buffers to the request.
func (b *Builder) Inline(buffers []ibv.DataBuf) {
	b.inline(len(buffers), func(i int) (uintptr, uint64) { return buffers[i].Addr, buffers[i].Length })
}

// inline is Inline for n buffers.
func (b *Builder) inline(n int, buffer func(i int) (address uintptr, length uint64)) {
	if !b.lacks(partData) {
		return
	}
	q := b.q
	at := unsafe.Add(b.data, inlineHead)
	total := uint64(0)
	used, skip, ok := b.takeHeaders(n, buffer)
	if !ok {
		return
	}
	for i := used; i < n; i++ {
		address, length := buffer(i)
		address, length, skip = address+uintptr(skip), length-uint64(skip), 0
		if total += length; length > uint64(q.inline) || total > uint64(q.inline) {
			b.Fail(syscall.ENOMEM)
			return
		}
		at = q.put(at, unsafe.Slice(ibv.Ptr[byte](address).Deref(), length))
	}
	b.p.inline = true
	if total > 0 {
		(*mlx5dv.MLX5WQEInlDataSeg)(b.data).ByteCount = bits.ReverseBytes32(uint32(total) | mlx5dv.MLX5_INLINE_SEG)
		b.p.units += (uint32(total) + inlineHead + unit - 1) / unit
	}
	b.set(partData)
}

// Datagram sets the destination of a datagram. ah is the address in the handle.
func (b *Builder) Datagram(ah unsafe.Pointer, qpn, qkey uint32) {
	if b.q.kind != ibv.QPT_UD {
		b.Fail(syscall.EINVAL)
	}
	if !b.lacks(partAddress) {
		return
	}
	b.address(ah, qpn).AV.Key.QKey().QKey = be32(qkey)
	b.set(partAddress)
}

// Dynamic sets the destination of a request of a dynamic connection. ah is the address in the handle.
func (b *Builder) Dynamic(ah unsafe.Pointer, number uint32, key uint64, stream uint16) {
	if b.q.kind != ibv.QPT_DRIVER {
		b.Fail(syscall.EINVAL)
	}
	if !b.lacks(partAddress) {
		return
	}
	b.control().DCIStreamChannelIDBytes = [2]byte{byte(stream >> 8), byte(stream)}
	*b.address(ah, number).AV.Key.DCKey() = be64(key)
	b.set(partAddress)
}

// address writes the address of the request, without the key.
func (b *Builder) address(ah unsafe.Pointer, number uint32) *mlx5dv.MLX5WQEDatagramSeg {
	s := (*mlx5dv.MLX5WQEDatagramSeg)(unsafe.Add(b.p.control, unit))
	s.AV = *(*mlx5dv.MLX5WQEAV)(ah)
	s.AV.DQPDCT = be32(number | mlx5dv.MLX5_EXTENDED_UD_AV)
	return s
}

// XRC sets the shared receive queue that the request addresses.
func (b *Builder) XRC(number uint32) {
	if b.q.kind != ibv.QPT_XRC_SEND {
		b.Fail(syscall.EINVAL)
	}
	if b.lacks(partAddress) {
		*(*ibv.BE32)(unsafe.Add(b.p.control, unit)) = be32(number)
		b.set(partAddress)
	}
}

// PostDynamic posts requests of dynamic connections. to has the target of each.
func (q *queuePair) PostDynamic(qp *ibv.QP, list []ibv.SendWR, to []datapath.Destination) int32 {
	b := &q.builder
	b.Start(qp)
	posted := false
	defer func() {
		if !posted { // an invalid address panicked
			b.Abort()
		}
	}()
	for i := range list {
		b.request(&list[i], &to[i], q.send.address)
	}
	posted = true
	return int32(b.Complete())
}

// request adds a request of a list. address is the result of addressIn.
func (b *Builder) request(w *ibv.SendWR, to *datapath.Destination, address uintptr) {
	h := head{w.WRID, w.SendFlags, w.Opcode}
	switch h.op {
	case ibv.WR_SEND:
		b.message(h, 0)
	case ibv.WR_SEND_WITH_IMM:
		b.message(h, uint32(*w.ImmData()))
	case ibv.WR_SEND_WITH_INV, ibv.WR_LOCAL_INV:
		b.message(h, *w.InvalidateRKey())
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ:
		r := w.WR.RDMA()
		b.remote(h, r.RKey, r.RemoteAddr, uint32(*w.ImmData()))
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		a := w.WR.Atomic()
		b.atomic(h, a.RKey, a.RemoteAddr, a.CompareAdd, a.Swap)
	case ibv.WR_BIND_MW:
		bind := w.BindMW()
		b.bind(h, bind.MW.Deref(), bind.RKey, &bind.BindInfo)
	default:
		b.Fail(syscall.EINVAL)
	}
	if b.missing == 0 || !b.open {
		return
	}
	list := unsafe.Slice(w.SGList.Deref(), max(0, w.NumSGE))
	if w.SendFlags&ibv.SEND_INLINE != 0 {
		b.inline(len(list), func(i int) (uintptr, uint64) { return uintptr(list[i].Addr), uint64(list[i].Length) })
	} else {
		b.SGEs(list)
	}
	if to.AH == 0 {
		b.Fail(syscall.EINVAL)
		return
	}
	b.Dynamic(unsafe.Add(unsafe.Pointer(to.AH.Deref()), address), to.Number, to.Key, to.Stream)
}
