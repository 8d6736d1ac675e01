// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

const (
	block = mlx5dv.MLX5_SEND_WQE_BB // bytes of a block
	unit  = 16                      // bytes of a unit, in which a request's size is counted

	einval = int32(syscall.EINVAL)
	enomem = int32(syscall.ENOMEM)
)

// sendQueue is a ring of blocks. A request starts at a block and has as many as it needs; it may wrap around.
//
// The fields that PostOne uses come first, in two cache lines.
type sendQueue struct {
	first     unsafe.Pointer // start of the ring
	requests  []sendRequest  // indexed by a request's first block
	record    *uint32
	register  *register
	mask      uint32 // mask of block numbers
	next      uint32 // number of the next request's first block, since creation
	posted    uint32 // number of posted requests, since creation
	limit     uint32 // maximum of posted, updated when it is reached
	number    uint32 // the queue pair's number, in the format of requests
	inline    uint32 // maximum inline bytes
	passed    passed
	commonOps uint32 // opcodes below this one are supported by short
	signal    uint8  // flags set in every request
	fence     uint8  // fence of the next request, set by a request that changes a key
	state     *ibv.QPState

	qp             *queuePair
	maxOutstanding uint32         // maximum number of outstanding requests
	sges           int32          // maximum entries of a request
	end            unsafe.Pointer // end of the ring
	kind           ibv.QPType
	packets        *Packets // of a raw packet queue pair, or nil
	// address is the result of addressIn, for datagrams
	address uintptr
	mu      lock.Lock
	// held is the lock of callers of PostOne, which does not lock mu; or nil
	held *lock.Lock
	done atomic.Uint32 // number of completed requests since creation; written by the completion queue's poller
}

// sendRequest holds the state for completing a request.
type sendRequest struct {
	id     uint64
	number uint32       // number of the request since creation, starting at 1
	opcode ibv.WCOpcode // valid if the device's completion does not contain it
}

func (q *sendQueue) init(qp *queuePair, out *mlx5dv.QP, cap ibv.QPCap, everyOne bool, r *register) {
	q.qp, q.register, q.state = qp, r, &qp.c.State
	q.first = pointer(out.SQ.Buf)
	q.end = unsafe.Add(q.first, uintptr(out.SQ.WQECnt)*block)
	q.mask = out.SQ.WQECnt - 1
	q.maxOutstanding, q.sges, q.inline = cap.MaxSendWR, int32(cap.MaxSendSGE), cap.MaxInlineData
	q.number, q.kind = qp.c.QPNum<<8, qp.c.QPType
	q.record = (*uint32)(unsafe.Add(unsafe.Pointer(out.DBRec.Deref()), 4*mlx5dv.MLX5_SND_DBR))
	q.requests = make([]sendRequest, out.SQ.WQECnt)
	q.limit = q.maxOutstanding
	switch {
	case q.sges == 0:
	case q.kind == ibv.QPT_RC:
		q.commonOps = uint32(ibv.WR_RDMA_READ) + 1
	case q.kind == ibv.QPT_UC:
		q.commonOps = uint32(ibv.WR_SEND_WITH_IMM) + 1
	}
	if everyOne {
		q.signal = mlx5dv.MLX5_WQE_CTRL_CQ_UPDATE
	}
}

// exclude calls f while no post is in progress.
func (q *sendQueue) exclude(f func()) {
	q.mu.Lock()
	held := q.held // if nil, PostOne has not been called yet
	q.mu.Unlock()
	if held != nil {
		held.Lock()
		defer held.Unlock()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

func (q *sendQueue) reset() {
	q.exclude(func() {
		q.next, q.posted, q.fence, q.limit = 0, 0, 0, q.maxOutstanding
		q.done.Store(0)
		clear(q.requests) // so that overwritten does not find old requests with new numbers
	})
}

// full reports whether n more requests would exceed the maximum number of outstanding requests.
func (q *sendQueue) full(n uint32) bool {
	if int32(q.limit-q.posted-n) <= 0 {
		q.limit = q.done.Load() + q.maxOutstanding
	}
	return int32(q.limit-q.posted-n) <= 0
}

// post writes requests to the ring until one does not fit, and rings the doorbell.
func (q *sendQueue) post(list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) (errno int32) {
	q.mu.Lock()
	defer q.mu.Unlock() // deferred, because an invalid address in an entry panics
	p := posting{q: q, at: q.next, fence: q.fence}
	n := uint32(0)
	for w := list; w != nil; w = w.Next.Deref() {
		full := q.full(n)
		if units := uint32(0); !full {
			if units = q.short(w, p.at, p.fence); units != 0 {
				p.last, p.units, p.inline, p.fence = p.at, units, w.SendFlags&ibv.SEND_INLINE != 0, 0
				q.requests[p.at&q.mask] = sendRequest{id: w.WRID, number: q.posted + n + 1}
				p.at++
				n++
				continue
			}
		}
		switch {
		case w.Opcode > ibv.WR_SEND_WITH_INV && (w.Opcode != ibv.WR_TSO || q.packets == nil):
			errno = einval
		case full:
			errno = enomem
		default:
			errno = p.write(w)
		}
		if errno != 0 {
			*bad = ibv.PtrTo(w)
			break
		}
		q.requests[p.at&q.mask] = sendRequest{w.WRID, q.posted + n + 1, p.opcode}
		p.last = p.at
		p.at += (p.units + 3) / 4
		n++
	}
	q.fence = p.fence
	if n == 0 {
		return errno
	}
	q.next, q.posted = p.at, q.posted+n
	q.passed.give()
	q.register.ring(q, q.block(p.last), n, &p)
	return errno
}

// one posts a request of a common kind and returns true. For others, it does nothing and returns false.
func (q *sendQueue) one(w *ibv.SendWR) bool {
	if q.full(0) {
		return false
	}
	at := q.next
	units := q.short(w, at, q.fence)
	if units == 0 {
		return false
	}
	q.requests[at&q.mask] = sendRequest{id: w.WRID, number: q.posted + 1}
	q.next, q.posted, q.fence = at+1, q.posted+1, 0
	q.passed.give()
	r := q.register
	if whole := r.whole[w.SendFlags>>inlineBit&1]; !whole || r.shared.Load() {
		r.ring(q, q.block(at), 1, &posting{units: units, inline: w.SendFlags&ibv.SEND_INLINE != 0})
		return true
	}
	flame(q.record, uint32(be32((at+1)&0xffff)), unsafe.Add(r.at, r.other), q.block(at))
	r.other ^= r.size
	return true
}

// inlineBit is the bit number of IBV_SEND_INLINE.
const inlineBit = 3

var _ = [1]byte{}[ibv.SEND_INLINE-1<<inlineBit]

// block returns the block with a number.
func (q *sendQueue) block(number uint32) unsafe.Pointer {
	return unsafe.Add(q.first, uintptr(number&q.mask)*block)
}

// posting is a post in progress.
type posting struct {
	q       *sendQueue
	at      uint32         // number of the next request's first block
	control unsafe.Pointer // its address
	last    uint32         // number of the last request's first block
	units   uint32         // size of the request in units
	inline  bool           // a request has inline data
	fence   uint8          // fence of the next request
	opcode  ibv.WCOpcode   // for the work completion, if the device's completion does not contain it
}

// opcodes contains the device's opcodes, indexed by ibv.WROpcode up to WR_TSO.
var opcodes = [16]uint32{
	ibv.WR_SEND: mlx5dv.MLX5_OPCODE_SEND, ibv.WR_SEND_WITH_IMM: mlx5dv.MLX5_OPCODE_SEND_IMM,
	ibv.WR_SEND_WITH_INV: mlx5dv.MLX5_OPCODE_SEND_INVAL, ibv.WR_RDMA_WRITE: mlx5dv.MLX5_OPCODE_RDMA_WRITE,
	ibv.WR_RDMA_WRITE_WITH_IMM: mlx5dv.MLX5_OPCODE_RDMA_WRITE_IMM, ibv.WR_RDMA_READ: mlx5dv.MLX5_OPCODE_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP:   mlx5dv.MLX5_OPCODE_ATOMIC_CS,
	ibv.WR_ATOMIC_FETCH_AND_ADD: mlx5dv.MLX5_OPCODE_ATOMIC_FA,
	ibv.WR_LOCAL_INV:            mlx5dv.MLX5_OPCODE_UMR, ibv.WR_BIND_MW: mlx5dv.MLX5_OPCODE_UMR,
	ibv.WR_TSO: mlx5dv.MLX5_OPCODE_TSO,
}

// controls contains the bits of a control segment, indexed by the flags fence, signaled and solicited.
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

// write writes a request if it fits.
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
		c.Imm = be32(*w.InvalidateRKey())
	}
	at := unsafe.Add(p.control, unsafe.Sizeof(*c))
	list, skip := unsafe.Slice(w.SGList.Deref(), max(0, w.NumSGE)), uint32(0)
	if q.packets != nil {
		at, list, skip, errno = q.packet(at, w, list)
	} else {
		at, errno = p.target(at, w, c)
	}
	if errno != 0 {
		return errno
	}
	if w.SendFlags&ibv.SEND_INLINE != 0 && w.NumSGE > 0 {
		at, errno = q.copyIn(at, list, skip)
		p.inline = errno == 0
	} else if w.NumSGE > 0 {
		at = q.entries(at, w.Opcode, list, skip)
	}
	if errno != 0 {
		return errno
	}
	size := uintptr(at) - uintptr(p.control)
	if uintptr(at) < uintptr(p.control) || size == 0 { // it wraps around
		size += uintptr(q.end) - uintptr(q.first)
	}
	p.units = uint32(size / unit)
	c.OpmodIdxOpcode = be32(p.at&0xffff<<8 | opcodes[w.Opcode])
	c.QPNDs = be32(q.number | p.units)
	return 0
}

// wrap returns at, or the start of the ring if at is its end.
func (q *sendQueue) wrap(at unsafe.Pointer) unsafe.Pointer {
	if at == q.end {
		return q.first
	}
	return at
}

// target writes the segments between the control segment and the data, which contain the request's destination.
func (p *posting) target(at unsafe.Pointer, w *ibv.SendWR, c *mlx5dv.MLX5WQECtrlSeg) (unsafe.Pointer, int32) {
	q := p.q
	switch q.kind {
	case ibv.QPT_UD:
		return q.datagram(at, w)
	case ibv.QPT_XRC_SEND:
		if w.Opcode != ibv.WR_BIND_MW && w.Opcode != ibv.WR_LOCAL_INV {
			*(*ibv.BE32)(at) = be32(w.QPType.XRC().RemoteSRQN)
			at = unsafe.Add(at, unit)
		}
	}
	switch w.Opcode {
	case ibv.WR_RDMA_READ, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		if w.Opcode == ibv.WR_RDMA_READ && q.kind == ibv.QPT_UC {
			return at, 0 // like libmlx5; the device rejects it
		}
		r := w.WR.RDMA()
		return remote(at, r.RemoteAddr, r.RKey), 0
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		if q.kind == ibv.QPT_UC {
			return at, 0
		}
		if !q.qp.device.atomics {
			return at, eopnotsupp
		}
		a := w.WR.Atomic()
		return operands(remote(at, a.RemoteAddr, a.RKey), w.Opcode, a.CompareAdd, a.Swap), 0
	case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV:
		p.fence = mlx5dv.MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
		return p.key(at, w, c)
	}
	return at, 0
}

// remote writes the remote address and key.
func remote(at unsafe.Pointer, address uint64, key uint32) unsafe.Pointer {
	s := (*mlx5dv.MLX5WQERAddrSeg)(at)
	s.RAddr, s.RKey, s.Reserved = be64(address), be32(key), 0
	return unsafe.Add(at, unsafe.Sizeof(*s))
}

// operands writes the operands of an atomic operation. As in libmlx5, FETCH_ADD leaves the second one unchanged.
func operands(at unsafe.Pointer, op ibv.WROpcode, compareAdd, swap uint64) unsafe.Pointer {
	s := (*mlx5dv.MLX5WQEAtomicSeg)(at)
	if op == ibv.WR_ATOMIC_FETCH_AND_ADD {
		s.SwapAdd = be64(compareAdd)
	} else {
		s.SwapAdd, s.Compare = be64(swap), be64(compareAdd)
	}
	return unsafe.Add(at, unsafe.Sizeof(*s))
}

// entries writes the data entries, without the first skip bytes of the first one. It omits empty ones, because the device treats length 0 as 2 GiB.
func (q *sendQueue) entries(at unsafe.Pointer, op ibv.WROpcode, list []ibv.SGE, skip uint32) unsafe.Pointer {
	atomics := op == ibv.WR_ATOMIC_CMP_AND_SWP || op == ibv.WR_ATOMIC_FETCH_AND_ADD
	for _, e := range list {
		if e.Length == 0 {
			continue
		}
		at = q.wrap(at)
		s := (*mlx5dv.MLX5WQEDataSeg)(at)
		length := e.Length - skip
		if atomics {
			length = 8
		}
		s.ByteCount, s.LKey, s.Addr = be32(length), be32(e.LKey), be64(e.Addr+uint64(skip))
		skip = 0
		at = unsafe.Add(at, unsafe.Sizeof(*s))
	}
	return at
}

// copyIn copies inline data into the request, without the first skip bytes.
func (q *sendQueue) copyIn(at unsafe.Pointer, list []ibv.SGE, skip uint32) (unsafe.Pointer, int32) {
	at = q.wrap(at)
	head := (*mlx5dv.MLX5WQEInlDataSeg)(at)
	begin := at
	at = unsafe.Add(at, unsafe.Sizeof(*head))
	total := uint32(0)
	for _, e := range list {
		length := e.Length - skip
		if total += length; length > q.inline || total > q.inline {
			return at, enomem
		}
		at = q.put(at, unsafe.Slice(ibv.Ptr[byte](e.Addr+uint64(skip)).Deref(), length))
		skip = 0
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

// put copies data to the ring and returns its end.
func (q *sendQueue) put(at unsafe.Pointer, from []byte) unsafe.Pointer {
	if room := uintptr(q.end) - uintptr(at); uintptr(len(from)) > room {
		copy(unsafe.Slice((*byte)(at), room), from)
		from, at = from[room:], q.first
	}
	copy(unsafe.Slice((*byte)(at), len(from)), from)
	return unsafe.Add(at, len(from))
}

// datagram writes the destination of a datagram.
func (q *sendQueue) datagram(at unsafe.Pointer, w *ibv.SendWR) (unsafe.Pointer, int32) {
	u := w.WR.UD()
	if u.AH == 0 {
		return at, einval
	}
	s := (*mlx5dv.MLX5WQEDatagramSeg)(at)
	s.AV = *(*mlx5dv.MLX5WQEAV)(unsafe.Add(unsafe.Pointer(u.AH.Deref()), q.address))
	s.AV.DQPDCT = be32(u.RemoteQPN | mlx5dv.MLX5_EXTENDED_UD_AV)
	s.AV.Key.QKey().QKey = be32(u.RemoteQKey)
	return q.wrap(unsafe.Add(at, unsafe.Sizeof(*s))), 0
}
