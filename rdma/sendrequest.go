package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// SendRequest is a work request that was appended to a [SendBatch], for what else belongs to it. It is valid until Reset.
type SendRequest struct {
	wr *ibv.SendWR
	b  *SendBatch
}

// add appends a work request with nothing set but its opcode.
func (b *SendBatch) add(id uint64, op ibv.WROpcode) SendRequest {
	i := b.n
	if b.kinds[i] != kind(op) {
		i = b.renew(i, op)
	}
	b.n = i + 1
	w := &b.wrs[i]
	w.WRID, w.NumSGE, w.Opcode, w.SendFlags = id, 0, op, 0
	return SendRequest{w, b}
}

// renew clears a work request that was something else, and sends what is beyond the capacity to the spare one.
func (b *SendBatch) renew(i int, op ibv.WROpcode) int {
	if b.kinds[i] == none {
		if b.err == nil {
			b.err = fmt.Errorf("rdma: the batch is full: it was made for %d work requests", b.Cap())
		}
		b.wrs[i] = ibv.SendWR{}
		return i - 1
	}
	b.kinds[i] = kind(op)
	b.wrs[i] = ibv.SendWR{Next: ibv.PtrTo(&b.wrs[i+1]), SGList: ibv.Ptr[ibv.SGE](uintptr(b.sge) + uintptr(i*b.sges*16))}
	return i
}

// Send appends IBV_WR_SEND.
func (b *SendBatch) Send(id uint64) SendRequest { return b.add(id, ibv.WR_SEND) }

// SendImm appends IBV_WR_SEND_WITH_IMM.
func (b *SendBatch) SendImm(id uint64, imm ibv.BE32) SendRequest {
	r := b.add(id, ibv.WR_SEND_WITH_IMM)
	*r.wr.ImmData() = imm
	return r
}

// SendInv appends IBV_WR_SEND_WITH_INV, which invalidates a key of the receiver's.
func (b *SendBatch) SendInv(id uint64, rkey uint32) SendRequest {
	r := b.add(id, ibv.WR_SEND_WITH_INV)
	*r.wr.InvalidateRKey() = rkey
	return r
}

// Write appends IBV_WR_RDMA_WRITE to remote memory.
func (b *SendBatch) Write(id, remote uint64, rkey uint32) SendRequest {
	r := b.add(id, ibv.WR_RDMA_WRITE)
	to := r.wr.WR.RDMA()
	to.RemoteAddr, to.RKey = remote, rkey
	return r
}

// WriteImm appends IBV_WR_RDMA_WRITE_WITH_IMM to remote memory.
func (b *SendBatch) WriteImm(id, remote uint64, rkey uint32, imm ibv.BE32) SendRequest {
	r := b.add(id, ibv.WR_RDMA_WRITE_WITH_IMM)
	to := r.wr.WR.RDMA()
	to.RemoteAddr, to.RKey = remote, rkey
	*r.wr.ImmData() = imm
	return r
}

// Read appends IBV_WR_RDMA_READ from remote memory.
func (b *SendBatch) Read(id, remote uint64, rkey uint32) SendRequest {
	r := b.add(id, ibv.WR_RDMA_READ)
	from := r.wr.WR.RDMA()
	from.RemoteAddr, from.RKey = remote, rkey
	return r
}

// CompareSwap appends IBV_WR_ATOMIC_CMP_AND_SWP of 8 remote bytes, in the byte order of the machine.
func (b *SendBatch) CompareSwap(id, remote uint64, rkey uint32, compare, swap uint64) SendRequest {
	r := b.add(id, ibv.WR_ATOMIC_CMP_AND_SWP)
	at := r.wr.WR.Atomic()
	at.RemoteAddr, at.CompareAdd, at.Swap, at.RKey = remote, compare, swap, rkey
	return r
}

// FetchAdd appends IBV_WR_ATOMIC_FETCH_AND_ADD to 8 remote bytes, in the byte order of the machine.
func (b *SendBatch) FetchAdd(id, remote uint64, rkey uint32, add uint64) SendRequest {
	r := b.add(id, ibv.WR_ATOMIC_FETCH_AND_ADD)
	at := r.wr.WR.Atomic()
	at.RemoteAddr, at.CompareAdd, at.RKey = remote, add, rkey
	return r
}

// LocalInv appends IBV_WR_LOCAL_INV, which invalidates a key of our own.
func (b *SendBatch) LocalInv(id uint64, rkey uint32) SendRequest {
	r := b.add(id, ibv.WR_LOCAL_INV)
	*r.wr.InvalidateRKey() = rkey
	return r
}

// BindMW appends IBV_WR_BIND_MW of a memory window of type 2 to a memory region, under a new key.
func (b *SendBatch) BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) SendRequest {
	r := b.add(id, ibv.WR_BIND_MW)
	bind := r.wr.BindMW()
	bind.MW, bind.RKey, bind.BindInfo = mw, rkey, info
	return r
}

// TSO appends IBV_WR_TSO: the entries are sent in segments of mss bytes behind copies of the header, which is copied into the
// request's inline bytes.
func (b *SendBatch) TSO(id uint64, header []byte, mss uint16) SendRequest {
	r := b.add(id, ibv.WR_TSO)
	if at := r.room(len(header)); at != nil {
		copy(at, header)
		tso := r.wr.TSO()
		tso.Hdr, tso.HdrSz, tso.MSS = uintptr(unsafe.Pointer(unsafe.SliceData(at))), uint16(len(header)), mss
	}
	return r
}

// Driver appends IBV_WR_DRIVER1, an operation of the provider's own, whose operands WR sets.
func (b *SendBatch) Driver(id uint64) SendRequest { return b.add(id, ibv.WR_DRIVER1) }

// SGE appends an entry: length bytes at an address, under a local key.
func (r SendRequest) SGE(address uint64, length, lkey uint32) SendRequest {
	n := r.wr.NumSGE
	if int(n) >= r.b.sges {
		return r.noEntry()
	}
	s := (*ibv.SGE)(unsafe.Add(r.b.sge, (r.Index()*r.b.sges+int(n))*16))
	s.Addr, s.Length, s.LKey = address, length, lkey
	r.wr.NumSGE = n + 1
	return r
}

func (r SendRequest) noEntry() SendRequest {
	if r.b.err == nil {
		r.b.err = fmt.Errorf("rdma: WR %d: no room for another entry: the batch was made for %d entries in each work request", r.Index(), r.b.sges)
	}
	return r
}

// Inline appends an entry with a copy of the bytes, which C reads during the post, and sets IBV_SEND_INLINE: the memory needs no
// key. All of the request's entries are inline then.
func (r SendRequest) Inline(data []byte) SendRequest {
	at := r.room(len(data))
	if at == nil {
		return r
	}
	copy(at, data)
	r.wr.SendFlags |= ibv.SEND_INLINE
	return r.SGE(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(at)))), uint32(len(data)), 0)
}

// room is the next size inline bytes of a request; nil when it has not so many left.
func (r SendRequest) room(size int) []byte {
	all := unsafe.Slice((*byte)(unsafe.Add(r.b.bytes, r.Index()*r.b.inline)), r.b.inline)
	used := 0
	if r.wr.Opcode == ibv.WR_TSO {
		used = int(r.wr.TSO().HdrSz)
	}
	for _, s := range r.sgeList() {
		if at := uintptr(s.Addr) - uintptr(unsafe.Pointer(unsafe.SliceData(all))); at < uintptr(len(all)) {
			used = max(used, int(at)+int(s.Length))
		}
	}
	if size > len(all)-used {
		if r.b.err == nil {
			r.b.err = fmt.Errorf("rdma: WR %d: no room for %d inline bytes behind %d: the batch was made for %d in each work request", r.Index(), size, used, len(all))
		}
		return nil
	}
	return all[used : used+size : used+size]
}

func (r SendRequest) sgeList() []ibv.SGE {
	return unsafe.Slice((*ibv.SGE)(unsafe.Add(r.b.sge, r.Index()*r.b.sges*16)), r.wr.NumSGE)
}

// Flags adds send flags.
func (r SendRequest) Flags(f ibv.SendFlags) SendRequest {
	r.wr.SendFlags |= f
	return r
}

// Signaled asks for a completion: IBV_SEND_SIGNALED.
func (r SendRequest) Signaled() SendRequest {
	r.wr.SendFlags |= ibv.SEND_SIGNALED
	return r
}

// UD says where a datagram goes: wr.ud.
func (r SendRequest) UD(ah ibv.Ptr[ibv.AH], qpn, qkey uint32) SendRequest {
	ud := r.wr.WR.UD()
	ud.AH, ud.RemoteQPN, ud.RemoteQKey = ah, qpn, qkey
	r.b.kinds[r.Index()] = touched
	return r
}

// XRC says which shared receive queue a message of an XRC_SEND queue pair goes to: qp_type.xrc.
func (r SendRequest) XRC(srqn uint32) SendRequest {
	r.wr.QPType.XRC().RemoteSRQN = srqn
	r.b.kinds[r.Index()] = touched
	return r
}

// Index is the place of the request in its batch.
func (r SendRequest) Index() int {
	return int((uintptr(unsafe.Pointer(r.wr)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.b.wrs)))) / unsafe.Sizeof(ibv.SendWR{}))
}
