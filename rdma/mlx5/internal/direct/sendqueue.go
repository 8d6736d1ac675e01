// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

const (
	block = mlx5dv.MLX5_SEND_WQE_BB // bytes that the queue is divided into
	unit  = 16                      // bytes that a request's size is told in

	einval = int32(verberr.EINVAL)
	enomem = int32(verberr.ENOMEM)
)

// sendQueue is a ring of blocks. A request begins with a block and takes as many as it needs; it may continue at the
// beginning of the ring.
type sendQueue struct {
	mu       lock.Lock
	first    unsafe.Pointer // of the ring
	end      unsafe.Pointer
	mask     uint32 // of the number of a block
	next     uint32 // number of the block that the next request begins with, counted from the beginning of time
	posted   uint32 // requests
	most     uint32 // requests that may be outstanding
	number   uint32 // of the queue pair, where requests have it
	signal   uint8  // what every request has
	fence    uint8  // what the next request has after one that changes a key
	kind     ibv.QPType
	plain    bool // of type RC or UC
	sges     int32
	inline   uint32        // bytes at most
	done     atomic.Uint32 // requests that have completed; the completion queue's poller writes it
	requests []sendRequest // by the request's first block
	register *register
	record   *uint32
	qp       *queuePair
}

// sendRequest is what completing a request needs.
type sendRequest struct {
	id     uint64
	number uint32       // of the request, counted from the beginning of time
	opcode ibv.WCOpcode // where the completion does not say it
}

func (q *sendQueue) init(qp *queuePair, out *mlx5dv.QP, cap ibv.QPCap, everyOne bool, r *register) {
	q.qp, q.register = qp, r
	q.first = pointer(out.SQ.Buf)
	q.end = unsafe.Add(q.first, uintptr(out.SQ.WQECnt)*block)
	q.mask = out.SQ.WQECnt - 1
	q.most, q.sges, q.inline = cap.MaxSendWR, int32(cap.MaxSendSGE), cap.MaxInlineData
	q.number, q.kind = qp.c.QPNum<<8, qp.c.QPType
	q.record = (*uint32)(unsafe.Add(unsafe.Pointer(out.DBRec.Deref()), 4*mlx5dv.MLX5_SND_DBR))
	q.plain = (q.kind == ibv.QPT_RC || q.kind == ibv.QPT_UC) && q.sges > 0
	q.requests = make([]sendRequest, out.SQ.WQECnt)
	if everyOne {
		q.signal = mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE
	}
}

// pause returns when no post is under way that has begun before.
func (q *sendQueue) pause() {
	q.mu.Lock()
	defer q.mu.Unlock()
}

func (q *sendQueue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next, q.posted, q.fence = 0, 0, 0
	q.done.Store(0)
}

// post writes requests to the ring until one does not fit, and tells the device of them.
func (q *sendQueue) post(list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) (errno int32) {
	q.mu.Lock()
	defer q.mu.Unlock() // also where an entry's address is none, which panics
	p := posting{q: q, at: q.next, fence: q.fence}
	n := uint32(0)
	var last unsafe.Pointer
	free := q.most - (q.posted - q.done.Load())
	for w := list; w != nil; w = w.Next.Deref() {
		switch {
		case n < free && q.short(&p, w, p.at, p.fence):
		case uint32(w.Opcode) >= uint32(len(opcodes)):
			errno = einval
		case n >= free && q.posted+n-q.done.Load() >= q.most:
			errno = enomem
		default:
			errno = p.write(w)
		}
		if errno != 0 {
			*bad = ibv.PtrTo(w)
			break
		}
		r := &q.requests[p.at&q.mask]
		r.id, r.number, r.opcode = w.WRID, q.posted+n, p.opcode
		p.at += (p.units + 3) / 4
		last = p.control
		n++
	}
	q.fence = p.fence
	if n == 0 {
		return errno
	}
	q.next, q.posted = p.at, q.posted+n
	q.register.ring(q, last, n, &p)
	return errno
}

// posting is a post under way.
type posting struct {
	q       *sendQueue
	at      uint32         // number of the next request's first block
	control unsafe.Pointer // where that is
	units   uint32         // of the request
	inline  bool           // a request has its data inside
	fence   uint8          // of the next request
	opcode  ibv.WCOpcode   // that the completion has, where it does not say so itself
}

// opcodes are the device's, by those of requests.
var opcodes = [...]uint32{
	ibv.WR_SEND: mlx5dv.MLX5_OPCODE_SEND, ibv.WR_SEND_WITH_IMM: mlx5dv.MLX5_OPCODE_SEND_IMM,
	ibv.WR_SEND_WITH_INV: mlx5dv.MLX5_OPCODE_SEND_INVAL, ibv.WR_RDMA_WRITE: mlx5dv.MLX5_OPCODE_RDMA_WRITE,
	ibv.WR_RDMA_WRITE_WITH_IMM: mlx5dv.MLX5_OPCODE_RDMA_WRITE_IMM, ibv.WR_RDMA_READ: mlx5dv.MLX5_OPCODE_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP:   mlx5dv.MLX5_OPCODE_ATOMIC_CS,
	ibv.WR_ATOMIC_FETCH_AND_ADD: mlx5dv.MLX5_OPCODE_ATOMIC_FA,
	ibv.WR_LOCAL_INV:            mlx5dv.MLX5_OPCODE_UMR, ibv.WR_BIND_MW: mlx5dv.MLX5_OPCODE_UMR,
}

// controls are the bits of a control segment, by fence, signaled and solicited of a request.
var controls = [8]uint8{
	ibv.SEND_FENCE:    mlx5dv.MLX5_WQE_CTRL_FENCE,
	ibv.SEND_SIGNALED: mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE,
	ibv.SEND_FENCE | ibv.SEND_SIGNALED: mlx5dv.MLX5_WQE_CTRL_FENCE |
		mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE,
	ibv.SEND_SOLICITED:                  mlx5dv.MLX5_WQE_CTRL_SOLICITED,
	ibv.SEND_FENCE | ibv.SEND_SOLICITED: mlx5dv.MLX5_WQE_CTRL_FENCE | mlx5dv.MLX5_WQE_CTRL_SOLICITED,
	ibv.SEND_SIGNALED | ibv.SEND_SOLICITED: mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE |
		mlx5dv.MLX5_WQE_CTRL_SOLICITED,
	ibv.SEND_FENCE | ibv.SEND_SIGNALED | ibv.SEND_SOLICITED: mlx5dv.MLX5_WQE_CTRL_FENCE |
		mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE | mlx5dv.MLX5_WQE_CTRL_SOLICITED,
}

// short writes a request of the usual kind, which takes no more than a block: a send, a write or a read of one entry,
// or with the entry's data inside. It says whether the request is one. number is that of its first block.
func (q *sendQueue) short(p *posting, w *ibv.SendWR, number uint32, fence uint8) bool {
	if w.NumSGE != 1 || w.Opcode > ibv.WR_RDMA_READ || !q.plain || q.qp.c.State < ibv.QPS_RTS {
		return false
	}
	e := w.SGList.Deref()
	sends := w.Opcode == ibv.WR_SEND || w.Opcode == ibv.WR_SEND_WITH_IMM
	front := uint32(2 * unit)
	if sends {
		front = unit
	}
	inside := w.SendFlags&ibv.SEND_INLINE != 0
	switch most := min(q.inline, block-front-inlineHead); {
	case inside && (w.Opcode == ibv.WR_RDMA_READ || e.Length > most), e.Length == 0,
		w.Opcode == ibv.WR_RDMA_READ && q.kind != ibv.QPT_RC:
		return false
	}
	control := unsafe.Add(q.first, uintptr(number&q.mask)*block)
	c := (*mlx5dv.MLX5WQECtrlSeg)(control)
	flags := q.signal | controls[w.SendFlags&(ibv.SEND_FENCE|ibv.SEND_SIGNALED|ibv.SEND_SOLICITED)]
	if w.SendFlags&ibv.SEND_FENCE == 0 {
		flags |= fence
	}
	c.Signature, c.DCIStreamChannelIDBytes, c.FMCESE, c.Imm = 0, [2]byte{}, flags, 0
	if w.Opcode == ibv.WR_SEND_WITH_IMM || w.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM {
		c.Imm = *w.ImmData()
	}
	at := unsafe.Add(control, unsafe.Sizeof(*c))
	if !sends {
		r := w.WR.RDMA()
		at = remote(at, r.RemoteAddr, r.RKey)
	}
	units := front/unit + 1
	if inside {
		(*mlx5dv.MLX5WQEInlDataSeg)(at).ByteCount = bits.ReverseBytes32(e.Length | mlx5dv.MLX5_INLINE_SEG)
		copy(unsafe.Slice((*byte)(unsafe.Add(at, inlineHead)), e.Length),
			unsafe.Slice(ibv.Ptr[byte](e.Addr).Deref(), e.Length))
		units = (front + inlineHead + e.Length + unit - 1) / unit
		p.inline = true
	} else {
		s := (*mlx5dv.MLX5WQEDataSeg)(at)
		s.ByteCount, s.LKey, s.Addr = ibv.ToBE32(e.Length), ibv.ToBE32(e.LKey), ibv.ToBE64(e.Addr)
	}
	c.OpmodIdxOpcode = ibv.ToBE32(number&0xffff<<8 | opcodes[w.Opcode])
	c.QPNDs = ibv.ToBE32(q.number | units)
	p.control, p.units, p.fence, p.opcode = control, units, 0, 0
	return true
}

// inlineHead is what stands in front of data inside a request.
const inlineHead = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEInlDataSeg{}))

// write writes a request, as far as it fits.
func (p *posting) write(w *ibv.SendWR) (errno int32) {
	q := p.q
	if w.NumSGE > q.sges || q.qp.c.State < ibv.QPS_RTS {
		return enomem
	}
	p.control = unsafe.Add(q.first, uintptr(p.at&q.mask)*block)
	c := (*mlx5dv.MLX5WQECtrlSeg)(p.control)
	flags := q.signal
	if w.SendFlags&ibv.SEND_SIGNALED != 0 {
		flags |= mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE
	}
	if w.SendFlags&ibv.SEND_SOLICITED != 0 {
		flags |= mlx5dv.MLX5_WQE_CTRL_SOLICITED
	}
	if w.SendFlags&ibv.SEND_FENCE != 0 {
		flags |= mlx5dv.MLX5_WQE_CTRL_FENCE
	} else {
		flags |= p.fence
	}
	p.fence, p.opcode = 0, 0
	c.Signature, c.DCIStreamChannelIDBytes, c.FMCESE = 0, [2]byte{}, flags
	c.Imm = 0
	switch w.Opcode {
	case ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM:
		c.Imm = *w.ImmData()
	case ibv.WR_SEND_WITH_INV, ibv.WR_LOCAL_INV:
		c.Imm = ibv.ToBE32(*w.InvalidateRKey())
	}
	at := unsafe.Add(p.control, unsafe.Sizeof(*c))
	if at, errno = p.target(at, w, c); errno != 0 {
		return errno
	}
	if w.SendFlags&ibv.SEND_INLINE != 0 && w.NumSGE > 0 {
		at, errno = q.copyIn(at, w)
		p.inline = true
	} else if w.NumSGE > 0 {
		at = q.entries(at, w)
	}
	if errno != 0 {
		return errno
	}
	size := uintptr(at) - uintptr(p.control)
	if uintptr(at) < uintptr(p.control) || size == 0 { // it goes on at the beginning of the ring
		size += uintptr(q.end) - uintptr(q.first)
	}
	p.units = uint32(size / unit)
	c.OpmodIdxOpcode = ibv.ToBE32(p.at&0xffff<<8 | opcodes[w.Opcode])
	c.QPNDs = ibv.ToBE32(q.number | p.units)
	return 0
}

// wrap is where the ring continues.
func (q *sendQueue) wrap(at unsafe.Pointer) unsafe.Pointer {
	if at == q.end {
		return q.first
	}
	return at
}

// target writes what stands between the control segment and the data: whom the request goes to.
func (p *posting) target(at unsafe.Pointer, w *ibv.SendWR, c *mlx5dv.MLX5WQECtrlSeg) (unsafe.Pointer, int32) {
	q := p.q
	switch q.kind {
	case ibv.QPT_UD:
		return q.datagram(at, w)
	case ibv.QPT_XRC_SEND:
		if w.Opcode != ibv.WR_BIND_MW && w.Opcode != ibv.WR_LOCAL_INV {
			*(*ibv.BE32)(at) = ibv.ToBE32(w.QPType.XRC().RemoteSRQN)
			at = unsafe.Add(at, unit)
		}
	}
	switch w.Opcode {
	case ibv.WR_RDMA_READ, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		if w.Opcode == ibv.WR_RDMA_READ && q.kind == ibv.QPT_UC {
			return at, 0 // as libmlx5 does; the device refuses it
		}
		r := w.WR.RDMA()
		return remote(at, r.RemoteAddr, r.RKey), 0
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		if q.kind == ibv.QPT_UC {
			return at, 0
		}
		a := w.WR.Atomic()
		at = remote(at, a.RemoteAddr, a.RKey)
		s := (*mlx5dv.MLX5WQEAtomicSeg)(at)
		if w.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
			s.SwapAdd = ibv.ToBE64(a.CompareAdd)
		} else {
			s.SwapAdd, s.Compare = ibv.ToBE64(a.Swap), ibv.ToBE64(a.CompareAdd)
		}
		return unsafe.Add(at, unsafe.Sizeof(*s)), 0
	case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV:
		p.fence = mlx5dv.MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
		return p.key(at, w, c)
	}
	return at, 0
}

// remote writes the address of the peer's memory.
func remote(at unsafe.Pointer, address uint64, key uint32) unsafe.Pointer {
	s := (*mlx5dv.MLX5WQERAddrSeg)(at)
	s.RAddr, s.RKey, s.Reserved = ibv.ToBE64(address), ibv.ToBE32(key), 0
	return unsafe.Add(at, unsafe.Sizeof(*s))
}

// entries writes the list of the data's places. An entry without a length is left out, because 0 stands for 2 GiB.
func (q *sendQueue) entries(at unsafe.Pointer, w *ibv.SendWR) unsafe.Pointer {
	atomics := w.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP || w.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD
	for _, e := range unsafe.Slice(w.SGList.Deref(), w.NumSGE) {
		if e.Length == 0 {
			continue
		}
		at = q.wrap(at)
		s := (*mlx5dv.MLX5WQEDataSeg)(at)
		length := e.Length
		if atomics {
			length = 8
		}
		s.ByteCount, s.LKey, s.Addr = ibv.ToBE32(length), ibv.ToBE32(e.LKey), ibv.ToBE64(e.Addr)
		at = unsafe.Add(at, unsafe.Sizeof(*s))
	}
	return at
}

// copyIn copies the data into the request.
func (q *sendQueue) copyIn(at unsafe.Pointer, w *ibv.SendWR) (unsafe.Pointer, int32) {
	head := (*mlx5dv.MLX5WQEInlDataSeg)(at)
	begin := at
	at = unsafe.Add(at, unsafe.Sizeof(*head))
	total := uint32(0)
	for _, e := range unsafe.Slice(w.SGList.Deref(), w.NumSGE) {
		if total += e.Length; e.Length > q.inline || total > q.inline {
			return at, enomem
		}
		from := unsafe.Slice(ibv.Ptr[byte](e.Addr).Deref(), e.Length)
		if room := uintptr(q.end) - uintptr(at); uintptr(len(from)) > room {
			copy(unsafe.Slice((*byte)(at), room), from)
			from, at = from[room:], q.first
		}
		copy(unsafe.Slice((*byte)(at), len(from)), from)
		at = unsafe.Add(at, len(from))
	}
	if total == 0 {
		return begin, 0
	}
	head.ByteCount = bits.ReverseBytes32(total | mlx5dv.MLX5_INLINE_SEG)
	used := (uintptr(total) + unsafe.Sizeof(*head) + unit - 1) &^ (unit - 1)
	if at = unsafe.Add(begin, used); uintptr(at) > uintptr(q.end) {
		at = unsafe.Add(at, -int(uintptr(q.end)-uintptr(q.first)))
	}
	return at, 0
}

// datagram writes the address of a datagram.
func (q *sendQueue) datagram(at unsafe.Pointer, w *ibv.SendWR) (unsafe.Pointer, int32) {
	u := w.WR.UD()
	from, err := q.qp.device.addresses.of(u.AH.Deref())
	if err != nil {
		return at, einval
	}
	s := (*mlx5dv.MLX5WQEDatagramSeg)(at)
	s.AV = *from
	s.AV.DQPDCT = ibv.ToBE32(u.RemoteQPN | mlx5dv.MLX5_EXTENDED_UD_AV)
	s.AV.Key.QKey().QKey = ibv.ToBE32(u.RemoteQKey)
	return q.wrap(unsafe.Add(at, unsafe.Sizeof(*s))), 0
}
