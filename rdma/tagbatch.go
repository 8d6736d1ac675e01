// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/runtime"
)

// TagBatch is a chain of operations on the tag list of an [SRQ] of type IBV_SRQT_TM, with their scatter entries, in one
// mapping outside the Go heap:
//
//	tag := b.AddTag(id, recvID, tag, mask).SGE(address, length, lkey).Signaled()
//	…
//	srq.PostTags(b)
//	handle := tag.Handle()
//
// It can be posted any number of times and must not be used by several goroutines at once. If an operation or an entry
// does not fit, Err and every post return an error until Reset.
//
// Man: ibv_post_srq_ops(3)
type TagBatch struct {
	batch
	wrs []ibv.OpsWR // including the spare operation of batch
}

// TagRequest is an operation in a [TagBatch]. It is valid until Reset.
type TagRequest struct {
	w *ibv.OpsWR
	b *TagBatch
}

// NewTagBatch creates an empty batch of up to operations operations, each with up to sges entries.
func NewTagBatch(operations, sges int) (*TagBatch, error) {
	b := new(TagBatch)
	var err error
	if b.wrs, _, err = mapBatch[ibv.OpsWR](&b.batch, "NewTagBatch", operations, sges, 0); err != nil {
		return nil, err
	}
	for i := range b.wrs {
		b.wrs[i].TM.Add.SGList = ibv.Ptr[ibv.SGE](uintptr(b.entries) + uintptr(i*sges*sizeofSGE))
	}
	return b, nil
}

// Close releases the memory. Afterwards posts fail, and appending has no effect. A second Close does nothing.
func (b *TagBatch) Close() error {
	b.wrs, b.allocated, b.n, b.sges, b.closed = make([]ibv.OpsWR, 1), 1, 1, 0, true // no room
	return b.mapping.Retire()
}

func (b *TagBatch) next(id uint64, op ibv.OpsWROpcode) TagRequest {
	w := &b.wrs[min(b.n, len(b.wrs)-1)]
	b.n++
	list := w.TM.Add.SGList
	*w = ibv.OpsWR{WRID: id, Opcode: op}
	w.TM.Add.SGList = list
	return TagRequest{w, b}
}

// AddTag appends IBV_WR_TAG_ADD: the next message whose tag equals tag under the mask is received into the operation's
// entries, and its completion has recvID as wr_id. After the post, Handle returns the handle for DelTag.
func (b *TagBatch) AddTag(id, recvID, tag, mask uint64) TagRequest {
	r := b.next(id, ibv.WR_TAG_ADD)
	add := &r.w.TM.Add
	add.RecvWRID, add.Tag, add.Mask = recvID, tag, mask
	return r
}

// DelTag appends IBV_WR_TAG_DEL of a tag by its handle. If a message has consumed the tag, the completion's status is
// IBV_WC_TM_ERR. Do not delete a tag after polling the completion of its message: the handle is stale, and libmlx5
// loses tags.
func (b *TagBatch) DelTag(id uint64, handle uint32) TagRequest {
	r := b.next(id, ibv.WR_TAG_DEL)
	r.w.TM.Handle = handle
	return r
}

// Sync appends IBV_WR_TAG_SYNC. It reports to the device how many unexpected messages the program has handled since the
// queue was created. A completion with IBV_WC_TM_SYNC_REQ requests it.
func (b *TagBatch) Sync(id uint64, unexpected uint32) TagRequest {
	return b.next(id, ibv.WR_TAG_SYNC).Unexpected(unexpected)
}

// SGE appends an entry: length bytes at an address, under a local key.
func (r TagRequest) SGE(address uint64, length, lkey uint32) TagRequest {
	add := &r.w.TM.Add
	n := int(add.NumSGE)
	if n >= r.b.sges {
		r.b.overflowed = true
		return r
	}
	*(*ibv.SGE)(unsafe.Add(unsafe.Pointer(add.SGList.Deref()), n*sizeofSGE)) = ibv.SGE{Addr: address, Length: length,
		LKey: lkey}
	add.NumSGE = int32(n + 1)
	return r
}

// Add appends an entry, as returned by [Region.SGE].
func (r TagRequest) Add(s ibv.SGE) TagRequest { return r.SGE(s.Addr, s.Length, s.LKey) }

// Index returns the operation's index in its batch.
func (r TagRequest) Index() int {
	return int((uintptr(unsafe.Pointer(r.w)) - uintptr(unsafe.Pointer(&r.b.wrs[0]))) / unsafe.Sizeof(ibv.OpsWR{}))
}

// Signaled requests a completion of the operation in the completion queue of the SRQ: IBV_OPS_SIGNALED.
func (r TagRequest) Signaled() TagRequest {
	r.w.Flags |= ibv.OPS_SIGNALED
	return r
}

// Unexpected reports to the device, with an operation of any kind, how many unexpected messages the program has
// handled: IBV_OPS_TM_SYNC.
func (r TagRequest) Unexpected(n uint32) TagRequest {
	r.w.Flags |= ibv.OPS_TM_SYNC
	r.w.TM.UnexpectedCnt = n
	return r
}

// Handle returns the handle of an added tag for DelTag. It is valid after the post.
func (r TagRequest) Handle() uint32 { return r.w.TM.Handle }

// tagLimits are limits of tag operations that the provider's library does not check.
type tagLimits struct {
	SGEs    int32  // maximum number of entries of a tag
	Handles uint32 // number of handles
}

// reason returns the limit that an operation exceeds, or "".
func (l *tagLimits) reason(w *ibv.OpsWR) string {
	switch {
	case w.Opcode == ibv.WR_TAG_ADD && w.TM.Add.NumSGE > l.SGEs:
		return fmt.Sprintf("%d entries: the device's library would use the first %d and drop the others",
			w.TM.Add.NumSGE, l.SGEs)
	case w.Opcode == ibv.WR_TAG_DEL && w.TM.Handle >= l.Handles:
		return fmt.Sprintf("handle %d does not exist: there are %d, and the device's library would write past them",
			w.TM.Handle, l.Handles)
	}
	return ""
}

// postTags posts all operations of a batch to a shared receive queue. name is the queue's name in errors; limits may be
// nil. The error is a [*PostError], or that of a missing C function.
func postTags(c *ibv.SRQ, kind ibv.SRQType, name string, limits *tagLimits, b *TagBatch) (posted int, err error) {
	e := &PostError{Verb: "ibv_post_srq_ops", QPNum: c.Handle, Errno: syscall.EINVAL}
	if err = b.Err(); err == nil && b.n == 0 {
		err = errBatchEmpty
	}
	if err != nil {
		e.Index = -1
		return 0, e.withCause(err)
	}
	if v := ibv.SRQOpValidity(kind, ibv.SRQPostOps); refusal.Refused(v) {
		e.WRID, e.Reason = b.wrs[0].WRID, fmt.Sprintf("%s has type %v: %s", name, kind, v.Reason)
		return 0, e
	}
	for i := range b.wrs[:b.n] {
		w := &b.wrs[i]
		if limits != nil {
			e.Reason = limits.reason(w)
		}
		if e.Reason != "" {
			e.Index, e.WRID = i, w.WRID
			return 0, e
		}
		if w.Next = 0; i+1 < b.n {
			w.Next = ibv.PtrTo(&b.wrs[i+1])
		}
	}
	*b.bad = 0
	err = libibverbs.PostSRQOps(c, &b.wrs[0], (*ibv.Ptr[ibv.OpsWR])(unsafe.Pointer(b.bad)))
	if err == nil {
		return b.n, nil
	}
	var call *runtime.CallError
	if !errors.As(err, &call) {
		return 0, err
	}
	e.Errno = call.Errno
	if e.Index = b.refused(0, b.n); e.Index >= 0 {
		e.WRID, posted = b.wrs[e.Index].WRID, e.Index
	}
	return posted, e
}
