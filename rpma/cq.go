// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// CQ is a completion queue of a connection or of a shared receive queue.
type CQ struct {
	cq      *rdma.CQ
	channel *rdma.CompChannel
	shared  bool // the channel belongs to the connection
}

func (q *CQ) created() bool { return q != nil && q.cq != nil }

// newCQ creates a completion queue with its own channel, or on shared if that is not nil. It arms the queue at once, so
// that the first wait on a shared channel misses no completion.
func newCQ(d *rdma.Device, size int, shared *rdma.CompChannel) (*CQ, error) {
	q := &CQ{channel: shared, shared: shared != nil}
	var err error
	if shared == nil {
		if q.channel, err = d.CreateCompChannel(); err != nil {
			return nil, err
		}
	}
	if q.cq, err = d.CreateCQ(size, q.channel, 0); err == nil && q.shared {
		err = q.cq.ReqNotify(false)
	}
	if err != nil {
		closeAll(q.objects()...)
		return nil, err
	}
	return q, nil
}

// objects returns the queue's objects. q may be nil.
func (q *CQ) objects() (all []rdma.Object) {
	if q == nil {
		return nil
	}
	if q.cq != nil {
		all = append(all, q.cq)
	}
	if !q.shared {
		all = append(all, q.channel)
	}
	return all
}

// closeAll closes the objects of a constructor that has failed.
func closeAll(all ...rdma.Object) { rdma.CloseAll(nil, all...) }

// Poll stores up to len(dst) completions in dst and returns their number, which may be 0. It does not block. A
// completion's WRID is the operation's id. In a failed completion, only WRID, Status, QPNum and VendorErr are valid;
// [Conn.CompletionErr] explains it. [Immediate] returns immediate data.
//
// C: rpma_cq_get_wc
func (q *CQ) Poll(dst []ibv.WC) (n int, err error) {
	if !q.created() {
		return 0, notCreated("CQ.Poll")
	}
	if n, err = q.cq.Poll(dst); err != nil {
		return n, failed("CQ.Poll", err)
	}
	return n, nil
}

// Wait waits for at least one completion, and stores completions in dst like Poll. If the queue's channel is shared,
// the error is ErrSharedChannel: use [Conn.Wait]. If ctx ends, the error is ErrNoCompletion.
//
// C: rpma_cq_wait, rpma_cq_get_wc, rpma_cq_get_fd
func (q *CQ) Wait(ctx context.Context, dst []ibv.WC) (n int, err error) {
	if !q.created() {
		return 0, notCreated("CQ.Wait")
	}
	if q.shared {
		return 0, &Error{Op: "CQ.Wait", Code: ErrSharedChannel,
			Reason: "use Conn.Wait, which waits for all queues of the channel"}
	}
	if n, err = q.cq.Wait(ctx, dst); err != nil {
		return n, waitFailed("CQ.Wait", ctx, ErrNoCompletion, err)
	}
	return n, nil
}

// waitFailed returns an error with code ended if ctx ended the wait, and otherwise with ErrProvider.
func waitFailed(op string, ctx context.Context, ended Code, err error) error {
	if ctx.Err() != nil {
		return failedAs(op, ended, err)
	}
	return failed(op, err)
}

// RDMA returns the queue as an object of package rdma, for its waits and pollers. It belongs to the CQ.
func (q *CQ) RDMA() *rdma.CQ {
	if q == nil {
		return nil
	}
	return q.cq
}

// Immediate returns the immediate data of a completed receive, in host byte order, and reports whether it has any.
func Immediate(wc *ibv.WC) (imm uint32, ok bool) {
	if wc.Status != ibv.WC_SUCCESS || wc.Opcode&ibv.WC_RECV == 0 ||
		ibv.WCFlags(wc.WCFlags)&ibv.WC_WITH_IMM == 0 {
		return 0, false
	}
	return wc.ImmData().Host(), true
}
