// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// The functions of rdma_verbs.h post one request at a time to the ID's queues, through the queue pair's checked queues,
// so package rdma's accounting and rules apply: posting a request that is invalid in the queue pair's state fails with
// an error that names the state. A context is the 64-bit wr_id of the completion.

// address returns the address of a value.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// verbsQueue holds an ID's state for posting.
type verbsQueue struct {
	mu    sync.Mutex
	sends *rdma.SendBatch
	recvs *rdma.RecvBatch
	limit int // scatter/gather entries per receive in recvs

	turns [2]chan struct{} // by side; holds a token while a goroutine waits for a completion
	wcs   [2][]ibv.WC
}

// holdRecv makes room in recvs for a receive with limit entries. A shared receive queue may allow more of them than an
// earlier queue pair did.
func (v *verbsQueue) holdRecv(limit int) (err error) {
	if v.recvs != nil && v.limit >= limit {
		return nil
	}
	if v.recvs != nil {
		if err := v.recvs.Close(); err != nil {
			return err
		}
	}
	v.recvs, err = rdma.NewRecvBatch(1, limit)
	v.limit = limit
	return err
}

func (v *verbsQueue) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sends != nil {
		if err := v.sends.Close(); err != nil {
			return err
		}
		v.sends = nil
	}
	if v.recvs != nil {
		if err := v.recvs.Close(); err != nil {
			return err
		}
		v.recvs = nil
	}
	return nil
}

// RegMsgs registers memory for messages: sends and receives. The memory is pinned until the region is closed.
//
// C: rdma_reg_msgs, rdma_dereg_mr
//
// Man: rdma_reg_msgs(3), rdma_dereg_mr(3)
func (id *ID) RegMsgs(b []byte) (*rdma.MR, error) { return id.reg("rdma_reg_msgs", b, 0) }

// RegRead registers memory that the peer may read. A region registered on a listener that is bound to a device's
// address is valid for all peers whose IDs have their queue pairs in the same protection domain, which is CreateQP's
// default.
//
// C: rdma_reg_read
//
// Man: rdma_reg_read(3)
func (id *ID) RegRead(b []byte) (*rdma.MR, error) {
	return id.reg("rdma_reg_read", b, ibv.ACCESS_REMOTE_READ)
}

// RegWrite registers memory that the peer may write.
//
// C: rdma_reg_write
//
// Man: rdma_reg_write(3)
func (id *ID) RegWrite(b []byte) (*rdma.MR, error) {
	return id.reg("rdma_reg_write", b, ibv.ACCESS_REMOTE_WRITE)
}

func (id *ID) reg(verb string, b []byte, access ibv.AccessFlags) (*rdma.MR, error) {
	pd, err := id.domain()
	if err != nil {
		return nil, id.failed(verb, err)
	}
	mr, err := pd.RegMR(b, access|ibv.ACCESS_LOCAL_WRITE)
	return mr, err
}

// domain returns the protection domain of the ID's queue pair, or of its device.
func (id *ID) domain() (*rdma.PD, error) {
	if qp := id.QP(); qp != nil && qp.PD() != nil {
		return qp.PD(), nil
	}
	s, err := id.share()
	if err != nil {
		return nil, err
	}
	return s.pd, nil
}

// element returns the scatter/gather entry for b in region mr; mr is nil for inline data.
func element(verb string, b []byte, mr *rdma.MR) (ibv.SGE, error) {
	s := ibv.SGE{Addr: uint64(address(unsafe.SliceData(b))), Length: uint32(len(b))}
	if uint64(len(b)) > math.MaxUint32 {
		return s, verberr.Invalid(verb, "", "%d bytes exceed the maximum of an entry, %d", len(b),
			uint32(math.MaxUint32))
	}
	if mr == nil {
		return s, nil
	}
	r := mr.Region()
	if len(b) == 0 { // an empty slice may have any address
		s.Addr = r.Address
	}
	if s.Addr < r.Address || s.Addr-r.Address > r.Length || uint64(len(b)) > r.Length-(s.Addr-r.Address) {
		return s, verberr.Invalid(verb, mr.String(), "%d bytes at %#x are not inside the region", len(b), s.Addr)
	}
	s.LKey = r.LKey
	return s, nil
}

// PostRecv posts a receive into b, which lies in region mr, to the ID's shared receive queue, or else to its queue
// pair. Receives may be posted before the connection is established. The device owns b until the receive has completed.
//
// C: rdma_post_recv
//
// Man: rdma_post_recv(3)
func (id *ID) PostRecv(context uint64, b []byte, mr *rdma.MR) error {
	const verb = "rdma_post_recv"
	if mr == nil {
		return id.invalid(verb, "a receive needs a memory region")
	}
	s, err := element(verb, b, mr)
	if err != nil {
		return err
	}
	return id.postRecv(verb, context, s)
}

// PostRecvv is PostRecv with a scatter list.
//
// C: rdma_post_recvv
//
// Man: rdma_post_recvv(3)
func (id *ID) PostRecvv(context uint64, sges []ibv.SGE) error {
	return id.postRecv("rdma_post_recvv", context, sges...)
}

func (id *ID) postRecv(verb string, context uint64, sges ...ibv.SGE) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	qp, srq := id.QP(), id.SRQ()
	if qp == nil && srq == nil {
		return verberr.Invalid(verb, id.name(), "no queue pair: call CreateQP first")
	}
	v := &id.verbs
	v.mu.Lock()
	defer v.mu.Unlock()
	limit := uint32(0)
	if srq != nil {
		limit = srq.Cap().MaxSGE
	} else {
		limit = qp.Cap().MaxRecvSGE
	}
	if uint32(len(sges)) > limit {
		return verberr.Invalid(verb, id.name(), "%d entries exceed the queue's maximum, %d", len(sges), limit)
	}
	if err := v.holdRecv(int(limit)); err != nil {
		return err
	}
	v.recvs.Reset()
	r := v.recvs.Recv(context)
	for _, s := range sges {
		r = r.Add(s)
	}
	var err error
	if srq != nil {
		_, err = srq.PostRecv(v.recvs)
	} else {
		_, err = qp.PostRecv(v.recvs)
	}
	return id.failed(verb, err)
}

// PostSend posts a send of b. b lies in region mr, or is copied if mr is nil and flags include IBV_SEND_INLINE. Without
// IBV_SEND_INLINE, the device owns b until the send has completed. A completion is generated only with
// IBV_SEND_SIGNALED, unless all sends of the queue pair are signaled.
//
// C: rdma_post_send
//
// Man: rdma_post_send(3)
func (id *ID) PostSend(context uint64, b []byte, mr *rdma.MR, flags ibv.SendFlags) error {
	return id.postOne("rdma_post_send", b, mr, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(context) })
}

// PostRead posts a read into b from the peer's memory at address remote with key rkey.
//
// C: rdma_post_read
//
// Man: rdma_post_read(3)
func (id *ID) PostRead(context uint64, b []byte, mr *rdma.MR, flags ibv.SendFlags, remote uint64, rkey uint32) error {
	const verb = "rdma_post_read"
	if mr == nil {
		return id.invalid(verb, "a read needs a memory region")
	}
	return id.postOne(verb, b, mr, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Read(context, remote, rkey) })
}

// PostWrite posts a write of b to the peer's memory at address remote with key rkey. mr is nil for inline data.
//
// C: rdma_post_write
//
// Man: rdma_post_write(3)
func (id *ID) PostWrite(context uint64, b []byte, mr *rdma.MR, flags ibv.SendFlags, remote uint64, rkey uint32) error {
	return id.postOne("rdma_post_write", b, mr, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Write(context, remote, rkey) })
}

// PostUDSend posts a datagram to queue pair qpn, with an address handle and the connection manager's Q_Key.
//
// C: rdma_post_ud_send
//
// Man: rdma_post_ud_send(3)
func (id *ID) PostUDSend(context uint64, b []byte, mr *rdma.MR, flags ibv.SendFlags, ah *rdma.AH, qpn uint32) error {
	const verb = "rdma_post_ud_send"
	if ah == nil {
		return id.invalid(verb, "a datagram needs an address handle")
	}
	return id.postOne(verb, b, mr, flags, func(batch *rdma.SendBatch) rdma.SendRequest {
		return batch.Send(context).UD(ah.Ptr(), qpn, rdmacm.UDP_QKEY)
	})
}

// PostSendv is PostSend with a gather list.
//
// C: rdma_post_sendv
//
// Man: rdma_post_sendv(3)
func (id *ID) PostSendv(context uint64, sges []ibv.SGE, flags ibv.SendFlags) error {
	return id.post("rdma_post_sendv", sges, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(context) })
}

// PostReadv is PostRead with a scatter list.
//
// C: rdma_post_readv
//
// Man: rdma_post_readv(3)
func (id *ID) PostReadv(context uint64, sges []ibv.SGE, flags ibv.SendFlags, remote uint64, rkey uint32) error {
	return id.post("rdma_post_readv", sges, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Read(context, remote, rkey) })
}

// PostWritev is PostWrite with a gather list.
//
// C: rdma_post_writev
//
// Man: rdma_post_writev(3)
func (id *ID) PostWritev(context uint64, sges []ibv.SGE, flags ibv.SendFlags, remote uint64, rkey uint32) error {
	return id.post("rdma_post_writev", sges, flags,
		func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Write(context, remote, rkey) })
}

// postOne posts a request for one buffer.
func (id *ID) postOne(verb string, b []byte, mr *rdma.MR, flags ibv.SendFlags,
	request func(*rdma.SendBatch) rdma.SendRequest) error {
	s, err := element(verb, b, mr)
	if err != nil {
		return err
	}
	if mr == nil && flags&ibv.SEND_INLINE == 0 && len(b) > 0 {
		return id.invalid(verb, "data without a memory region must be inline: set IBV_SEND_INLINE")
	}
	if flags&ibv.SEND_INLINE != 0 {
		return id.postWith(verb, flags, 1, len(b),
			func(batch *rdma.SendBatch) rdma.SendRequest { return request(batch).Inline(b) })
	}
	return id.post(verb, []ibv.SGE{s}, flags, request)
}

// post posts a request for a list of buffers.
func (id *ID) post(verb string, sges []ibv.SGE, flags ibv.SendFlags,
	request func(*rdma.SendBatch) rdma.SendRequest) error {
	return id.postWith(verb, flags, len(sges), 0, func(batch *rdma.SendBatch) rdma.SendRequest {
		r := request(batch)
		for _, s := range sges {
			r = r.Add(s)
		}
		return r
	})
}

// postWith posts the request that fill adds, with the given number of entries or inline bytes.
func (id *ID) postWith(verb string, flags ibv.SendFlags, sges, inline int,
	fill func(*rdma.SendBatch) rdma.SendRequest) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	qp := id.QP()
	if qp == nil {
		return verberr.Invalid(verb, id.name(), "no queue pair: call CreateQP first")
	}
	if limit := qp.Cap().MaxSendSGE; uint32(sges) > limit {
		return verberr.Invalid(verb, id.name(), "%d entries exceed the queue pair's maximum, %d", sges, limit)
	}
	if limit := qp.Cap().MaxInlineData; inline > int(limit) {
		return verberr.Invalid(verb, id.name(),
			"%d inline bytes exceed the queue pair's maximum, %d (max_inline_data)", inline, limit)
	}
	v := &id.verbs
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sends == nil {
		var err error
		if v.sends, err = rdma.NewSendBatch(1, int(qp.Cap().MaxSendSGE), int(qp.Cap().MaxInlineData)); err != nil {
			return err
		}
	}
	v.sends.Reset()
	fill(v.sends).Flags(flags)
	_, err := qp.PostSend(v.sends)
	return id.failed(verb, err)
}

// GetSendComp waits for a completion of the ID's sends. The error concerns only the wait; the completion's Status
// reports whether the send succeeded, and [rdma.CompletionErr] explains it. If several goroutines wait, each gets one
// completion. Closing the ID ends the wait if the ID created the completion queue. If it was passed to CreateQP, close
// the queue or end ctx.
//
// C: rdma_get_send_comp
//
// Man: rdma_get_send_comp(3)
func (id *ID) GetSendComp(ctx context.Context) (ibv.WC, error) {
	return id.completion(ctx, "rdma_get_send_comp", ofSends)
}

// GetRecvComp waits for a completion of the ID's receives. It waits on the completion queue of the ID's shared receive
// queue if that has one, as type XRC does, or else on that of its queue pair.
//
// C: rdma_get_recv_comp
//
// Man: rdma_get_recv_comp(3)
func (id *ID) GetRecvComp(ctx context.Context) (ibv.WC, error) {
	return id.completion(ctx, "rdma_get_recv_comp", ofRecvs)
}

// completes returns the completion queue of a side. It is nil if the queue pair has none.
func (id *ID) completes(verb string, side int) (*rdma.CQ, error) {
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	qp, srq := id.QP(), id.SRQ()
	switch {
	case side == ofRecvs && srq != nil && srq.CQ() != nil:
		return srq.CQ(), nil
	case qp == nil:
		return nil, verberr.Invalid(verb, id.name(), "no queue pair: call CreateQP first")
	case side == ofRecvs:
		return qp.RecvCQ(), nil
	}
	return qp.SendCQ(), nil
}

func (id *ID) completion(ctx context.Context, verb string, side int) (ibv.WC, error) {
	q, err := id.completes(verb, side) // if the ID created the queue, closing the ID ends the wait
	if err != nil {
		return ibv.WC{}, err
	}
	if q == nil {
		return ibv.WC{}, verberr.Invalid(verb, id.name(), "the queue pair has no such completion queue")
	}
	turn := id.verbs.turns[side]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ibv.WC{}, id.failed(verb, ctx.Err())
	}
	wcs := &id.verbs.wcs[side]
	if *wcs == nil {
		*wcs = make([]ibv.WC, 1)
	}
	n, err := q.Wait(ctx, (*wcs)[:1])
	if err != nil || n == 0 {
		return ibv.WC{}, id.failed(verb, err)
	}
	return (*wcs)[0], nil
}
