// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"fmt"
	"math"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// SendBatch is a chain of send work requests with their scatter/gather entries and inline bytes, in one mapping outside
// the Go heap. Each method named after an operation appends a request and returns it; methods of the request set
// everything else:
//
//	b.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Fields that are not set are zero. A batch can be posted any number of times. To post similar requests repeatedly, it
// is fastest to change fields between posts with WR and SGEs, or to rewrite requests of equal shape with Fill. Reset
// empties the batch. If a request, an entry or inline data does not fit, Err and every post return an error until
// Reset.
//
// A SendBatch must not be used by several goroutines at once. Only NewSendBatch and errors allocate.
type SendBatch struct {
	batch                   // must be first
	wrs      []ibv.SendWR   // including the spare request of batch
	base     unsafe.Pointer // of wrs
	capacity int            // maximum number of requests
	// dirty: fields were set that the opcode does not imply. Requests of one opcode always set the same fields, so a
	// request is cleared only when its opcode changes, or by Reset if the batch is dirty.
	dirty  bool
	filled int // argument of the last Fill, while its shape is unchanged
	inline int // inline bytes per work request
	bytes  unsafe.Pointer
}

// NewSendBatch creates an empty batch of up to requests work requests, each with up to sges entries and inline bytes of
// data copied by Inline and TSO.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	b := &SendBatch{inline: inline, capacity: requests}
	var err error
	if b.wrs, b.bytes, err = mapBatch[ibv.SendWR](&b.batch, "NewSendBatch", requests, sges, inline); err != nil {
		return nil, err
	}
	b.base = unsafe.Pointer(unsafe.SliceData(b.wrs))
	b.link()
	return b, nil
}

// Close releases the memory. Afterwards posts fail, appending has no effect, and Fill panics. Do not use results of WR,
// WRs, SGEs and Fill after Close. A second Close does nothing.
func (b *SendBatch) Close() error {
	b.wrs, b.allocated, b.n, b.linked, b.end = nil, 0, 0, unlinked, unlinked
	b.base, b.capacity, b.sges = unsafe.Pointer(new(ibv.SendWR)), 0, 0
	b.filled, b.closed = -1, true
	return b.mapping.Retire()
}

// Reset empties the batch. Requests of an earlier post may still be outstanding: the device has its own copies.
func (b *SendBatch) Reset() {
	if b.dirty || b.n >= len(b.wrs) {
		b.clear()
	}
	b.n = 0
}

func (b *SendBatch) clear() {
	for i := range b.wrs[:min(b.n, len(b.wrs))] {
		w := &b.wrs[i]
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList}
	}
	b.dirty, b.filled, b.overflowed, b.err, b.guard = false, 0, false, nil, b.self
}

// Fill replaces the requests of the batch by n requests and returns them and their entries, to be written in place.
// Request i has k entries, as many as the batch was created for, starting at sges[i*k]. Lower NumSGE to use fewer. Do
// not change Next and SGList.
//
// The first Fill with n returns zeroed requests. Later calls with the same n return the requests as they were last
// written, until Reset, so that a loop writes only fields that change. Fill panics if n exceeds the capacity or the
// batch is closed.
func (b *SendBatch) Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE) {
	if b.filled != n || b.n != n {
		b.shape(n)
	}
	return b.wrs[:n:n], unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges)
}

// shape creates n zeroed requests for Fill.
func (b *SendBatch) shape(n int) {
	if err := b.checkSelf(); err != nil || b.closed {
		panic(b.Err().Error())
	}
	room := len(b.wrs) - 1
	_ = b.wrs[:room:room][:n]
	b.clear()
	b.n = n
	b.clear()
	for i := range b.wrs[:n] {
		b.wrs[i].NumSGE = int32(b.sges)
	}
	clear(unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges))
	b.dirty, b.filled = true, n
}

// WR returns request i, to change fields between posts. Do not change Next and SGList. The result is valid until Reset.
func (b *SendBatch) WR(i int) *ibv.SendWR {
	b.dirty = true
	return &b.wrs[:b.n][i]
}

// WRs returns all requests, to change fields between posts. Do not change Next and SGList. The slice is valid until the
// next request is appended.
func (b *SendBatch) WRs() []ibv.SendWR {
	b.dirty = true
	return b.wrs[:b.n]
}

// SGEs returns the entries of request i, to change them between posts. The slice is valid until Reset.
func (b *SendBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.n][i]
	return entries(w.SGList, w.NumSGE)
}

// SendRequest is a work request in a [SendBatch]. Its methods set everything except the operation. It is valid until
// Reset.
type SendRequest struct {
	w *ibv.SendWR
	b *SendBatch
}

// The methods up to SGE are small enough to be inlined, which halves the cost of building a list.

// next returns the next work request, or the spare one beyond the capacity.
func (b *SendBatch) next() *ibv.SendWR {
	i := b.n
	b.n = i + 1
	return (*ibv.SendWR)(unsafe.Add(b.base, uintptr(min(i, b.capacity))*unsafe.Sizeof(ibv.SendWR{})))
}

// Send appends IBV_WR_SEND.
func (b *SendBatch) Send(id uint64) SendRequest { return b.append(id, ibv.WR_SEND) }

// Driver appends IBV_WR_DRIVER1, an operation of the provider. Set its operands through WR.
func (b *SendBatch) Driver(id uint64) SendRequest { return b.append(id, ibv.WR_DRIVER1) }

func (b *SendBatch) append(id uint64, op ibv.WROpcode) SendRequest {
	w := b.next()
	if w.Opcode != op {
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList, Opcode: op}
	}
	w.WRID, w.NumSGE, w.SendFlags = id, 0, 0
	return SendRequest{w, b}
}

// SendImm appends IBV_WR_SEND_WITH_IMM.
func (b *SendBatch) SendImm(id uint64, imm ibv.BE32) SendRequest {
	return b.appendKeyed(id, ibv.WR_SEND_WITH_IMM, uint32(imm))
}

// SendInv appends IBV_WR_SEND_WITH_INV, which invalidates a remote key at the receiver.
func (b *SendBatch) SendInv(id uint64, rkey uint32) SendRequest {
	return b.appendKeyed(id, ibv.WR_SEND_WITH_INV, rkey)
}

// LocalInv appends IBV_WR_LOCAL_INV, which invalidates a local key.
func (b *SendBatch) LocalInv(id uint64, rkey uint32) SendRequest {
	return b.appendKeyed(id, ibv.WR_LOCAL_INV, rkey)
}

// appendKeyed appends an operation with imm_data or invalidate_rkey, which share a union.
func (b *SendBatch) appendKeyed(id uint64, op ibv.WROpcode, key uint32) SendRequest {
	r := b.append(id, op)
	*r.w.InvalidateRKey() = key
	return r
}

// Write appends IBV_WR_RDMA_WRITE to remote memory.
func (b *SendBatch) Write(id, remote uint64, rkey uint32) SendRequest {
	w := b.next()
	if w.Opcode != ibv.WR_RDMA_WRITE {
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList}
	}
	w.WRID, w.NumSGE, w.SendFlags = id, 0, 0
	to := (*ibv.SendRDMA)(unsafe.Pointer(&w.WR))
	to.RemoteAddr, to.RKey = remote, rkey
	return SendRequest{w, b}
}

// Read appends IBV_WR_RDMA_READ from remote memory.
func (b *SendBatch) Read(id, remote uint64, rkey uint32) SendRequest {
	w := b.next()
	if w.Opcode != ibv.WR_RDMA_READ {
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList, Opcode: ibv.WR_RDMA_READ}
	}
	w.WRID, w.NumSGE, w.SendFlags = id, 0, 0
	from := (*ibv.SendRDMA)(unsafe.Pointer(&w.WR))
	from.RemoteAddr, from.RKey = remote, rkey
	return SendRequest{w, b}
}

// WriteImm appends IBV_WR_RDMA_WRITE_WITH_IMM to remote memory.
func (b *SendBatch) WriteImm(id, remote uint64, rkey uint32, imm ibv.BE32) SendRequest {
	r := b.appendKeyed(id, ibv.WR_RDMA_WRITE_WITH_IMM, uint32(imm))
	to := r.w.WR.RDMA()
	to.RemoteAddr, to.RKey = remote, rkey
	return r
}

// CompareSwap appends IBV_WR_ATOMIC_CMP_AND_SWP of 8 remote bytes, in the byte order of the machine.
func (b *SendBatch) CompareSwap(id, remote uint64, rkey uint32, compare, swap uint64) SendRequest {
	return b.appendAtomic(id, ibv.WR_ATOMIC_CMP_AND_SWP, remote, rkey, compare, swap)
}

// FetchAdd appends IBV_WR_ATOMIC_FETCH_AND_ADD to 8 remote bytes, in the byte order of the machine.
func (b *SendBatch) FetchAdd(id, remote uint64, rkey uint32, add uint64) SendRequest {
	return b.appendAtomic(id, ibv.WR_ATOMIC_FETCH_AND_ADD, remote, rkey, add, 0)
}

func (b *SendBatch) appendAtomic(id uint64, op ibv.WROpcode, remote uint64, rkey uint32, compareAdd,
	swap uint64) SendRequest {
	r := b.append(id, op)
	at := r.w.WR.Atomic()
	at.RemoteAddr, at.CompareAdd, at.Swap, at.RKey = remote, compareAdd, swap, rkey
	return r
}

// BindMW appends IBV_WR_BIND_MW of a memory window of type 2 to a memory region, under a new key.
func (b *SendBatch) BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) SendRequest {
	r := b.append(id, ibv.WR_BIND_MW)
	*r.w.BindMW() = ibv.SendBindMW{MW: mw, RKey: rkey, BindInfo: info}
	return r
}

// TSO appends IBV_WR_TSO: the device sends the entries in segments of mss bytes, each prefixed by the header. The
// header is copied into the request's inline bytes.
func (b *SendBatch) TSO(id uint64, header []byte, mss uint16) SendRequest {
	r := b.append(id, ibv.WR_TSO)
	tso := r.w.TSO()
	*tso = ibv.SendTSO{MSS: mss}
	if len(header) > math.MaxUint16 {
		r.overflowInline(invalid("", "", "WR %d: %s", r.Index(), headerReason(header)))
	} else if at := r.inlineRoom(len(header)); at != nil {
		copy(at, header)
		tso.Hdr, tso.HdrSz = uintptr(unsafe.Pointer(unsafe.SliceData(at))), uint16(len(header))
	}
	return r
}

// SGE appends an entry: length bytes at an address, under a local key.
func (r SendRequest) SGE(address uint64, length, lkey uint32) SendRequest {
	n := int(r.w.NumSGE)
	if n >= r.b.sges {
		r.b.overflowed, r.b.dirty, r.b.linked = true, true, unlinked
		return r
	}
	s := (*ibv.SGE)(unsafe.Add(unsafe.Pointer(r.w.SGList.Deref()), n*sizeofSGE))
	s.Addr, s.Length, s.LKey = address, length, lkey
	r.w.NumSGE = int32(n + 1)
	return r
}

// Add appends an entry, as returned by [Region.SGE].
func (r SendRequest) Add(s ibv.SGE) SendRequest { return r.SGE(s.Addr, s.Length, s.LKey) }

// Flags adds send flags.
func (r SendRequest) Flags(f ibv.SendFlags) SendRequest {
	r.w.SendFlags |= f
	return r
}

// Signaled requests a completion: IBV_SEND_SIGNALED.
func (r SendRequest) Signaled() SendRequest {
	r.w.SendFlags |= ibv.SEND_SIGNALED
	return r
}

// UD sets the destination of a datagram: wr.ud.
func (r SendRequest) UD(ah ibv.Ptr[ibv.AH], qpn, qkey uint32) SendRequest {
	*r.w.WR.UD() = ibv.SendUD{AH: ah, RemoteQPN: qpn, RemoteQKey: qkey}
	r.b.dirty, r.b.guard = true, uintptr(unsafe.Pointer(r.w))
	return r
}

// XRC sets the destination shared receive queue of a message on an XRC_SEND queue pair: qp_type.xrc.
func (r SendRequest) XRC(srqn uint32) SendRequest {
	r.w.QPType.XRC().RemoteSRQN = srqn
	r.b.dirty = true
	return r
}

// Inline appends an entry with a copy of data and sets IBV_SEND_INLINE, so that the memory needs no key. All entries of
// the request are then inline.
func (r SendRequest) Inline(data []byte) SendRequest {
	at := r.inlineRoom(len(data))
	if at == nil {
		return r
	}
	copy(at, data)
	r.w.SendFlags |= ibv.SEND_INLINE
	return r.SGE(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(at)))), uint32(len(data)), 0)
}

// inlineRoom returns the next size inline bytes of a request, or nil if fewer are left or the batch is closed.
func (r SendRequest) inlineRoom(size int) []byte {
	if r.b.closed {
		return nil
	}
	all := unsafe.Slice((*byte)(unsafe.Add(r.b.bytes, r.Index()*r.b.inline)), r.b.inline)
	start, used := uintptr(unsafe.Pointer(unsafe.SliceData(all))), 0
	if r.w.Opcode == ibv.WR_TSO {
		used = int(r.w.TSO().HdrSz)
	}
	for _, s := range entries(r.w.SGList, r.w.NumSGE) {
		if at := uintptr(s.Addr) - start; at < uintptr(len(all)) {
			used = max(used, int(at)+int(s.Length))
		}
	}
	if size > len(all)-used {
		r.overflowInline(invalid("", "", "WR %d: no room for %d inline bytes after %d: the batch has %d for each work "+
			"request", r.Index(), size, used, len(all)))
		return nil
	}
	return all[used : used+size : used+size]
}

// overflowInline records the first inline data that did not fit.
func (r SendRequest) overflowInline(err error) {
	r.b.err = cmp.Or(r.b.err, err)
	r.b.overflowed, r.b.dirty, r.b.linked = true, true, unlinked
}

// headerReason is the error for a header whose length does not fit the C field.
func headerReason(header []byte) string {
	return fmt.Sprintf("a header of %d bytes exceeds the limit of %d", len(header), math.MaxUint16)
}

// Index returns the request's index in its batch.
func (r SendRequest) Index() int {
	return int((uintptr(unsafe.Pointer(r.w)) - r.b.first) / unsafe.Sizeof(ibv.SendWR{}))
}
