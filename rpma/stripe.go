// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/goverbs/rdma"
)

// Stripe distributes each transfer in chunks over several connections between the same two peers, to use several queues
// of the adapter or several paths. Chunks of different connections arrive in any order. Concurrent transfers are
// executed one after the other. Transfers do not allocate.
//
// If a transfer fails, for example because a connection is lost, part of it may have been executed. The other
// connections stay usable.
type Stripe struct {
	lanes []*Async
	chunk uint64

	mu  sync.Mutex // held during a transfer
	ops []Op       // in progress: chunk i is at index i modulo the length, a multiple of the number of lanes
}

// NewStripe returns a stripe that takes over the completion queues of conns, which must belong to one peer. chunk is
// the size of a chunk in bytes. If a connection's send queue is full, the transfer waits for its oldest chunk.
func NewStripe(chunk uint64, conns ...*Conn) (*Stripe, error) {
	const op = "NewStripe"
	if chunk == 0 || chunk > maxMessage || len(conns) == 0 {
		return nil, invalid(op, "%d connections with chunks of %d bytes; both must be positive, chunks at most %d",
			len(conns), chunk, uint64(maxMessage))
	}
	for i, c := range conns {
		if !c.created() {
			return nil, invalid(op, "connection %d is nil or a zero value", i)
		}
	}
	s := &Stripe{chunk: chunk}
	depth := conns[0].depth()
	for i, c := range conns {
		depth = min(depth, c.depth())
		if c.peer != conns[0].peer {
			s.Close()
			return nil, invalid(op, "connection %d and connection 0 belong to different peers", i)
		}
		lane, err := c.NewAsync(c.depth())
		if err != nil {
			s.Close()
			return nil, failed(op, fmt.Errorf("connection %d: %w", i, err))
		}
		s.lanes = append(s.lanes, lane)
	}
	s.ops = make([]Op, depth*len(s.lanes))
	return s, nil
}

func (s *Stripe) created() bool { return s != nil && s.chunk != 0 }

// depth returns the depth of the send queue.
func (c *Conn) depth() int { return int(c.qp.Cap().MaxSendWR) }

// Write writes length bytes at an offset of src to the peer's region dst, and waits until all are written. If ctx ends,
// posted chunks continue, and the device owns their memory until the stripe's next transfer has succeeded or the
// connections are closed.
func (s *Stripe) Write(ctx context.Context, dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64) error {
	return s.transfer(ctx, "Stripe.Write", transfer{remote: dst, remoteOffset: dstOffset, local: src,
		localOffset: srcOffset, length: length})
}

// Read reads length bytes at an offset of the peer's region src into dst, and waits until all are read. For the end of
// ctx, see [Stripe.Write].
func (s *Stripe) Read(ctx context.Context, dst *MR, dstOffset uint64, src *RemoteMR, srcOffset, length uint64) error {
	return s.transfer(ctx, "Stripe.Read", transfer{remote: src, remoteOffset: srcOffset, local: dst,
		localOffset: dstOffset, length: length, read: true})
}

// transfer describes one transfer.
type transfer struct {
	remote                    *RemoteMR
	local                     *MR
	remoteOffset, localOffset uint64
	length                    uint64
	read                      bool
}

func (s *Stripe) transfer(ctx context.Context, op string, t transfer) error {
	if !s.created() {
		return notCreated(op)
	}
	if t.local == nil || t.remote == nil {
		return noRegion(op)
	}
	// Check the range before any chunk is posted.
	if !inside(t.localOffset, t.length, t.local.Len()) {
		return t.local.outOfRange(op, t.localOffset, t.length)
	}
	if !inside(t.remoteOffset, t.length, t.remote.length) {
		return t.remote.outOfRange(op, t.remoteOffset, t.length)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	for i, at := 0, uint64(0); at < t.length; i, at = i+1, at+s.chunk {
		place := &s.ops[i%len(s.ops)]
		if err := s.wait(ctx, place); err != nil {
			return s.abandon(ctx, op, err)
		}
		var err error
		lane, n := s.lanes[i%len(s.lanes)], min(s.chunk, t.length-at)
		if t.read {
			*place, err = lane.Read(t.local, t.localOffset+at, t.remote, t.remoteOffset+at, n)
		} else {
			*place, err = lane.Write(t.remote, t.remoteOffset+at, t.local, t.localOffset+at, n)
		}
		if err != nil {
			return s.abandon(ctx, op, err)
		}
	}
	return s.ended(ctx, op, s.settle(ctx))
}

// Flush flushes a range on every connection, because a flush covers only writes of the same connection. It waits until
// all flushes have completed.
func (s *Stripe) Flush(ctx context.Context, dst *RemoteMR, offset, length uint64, to FlushType) error {
	const op = "Stripe.Flush"
	if !s.created() {
		return notCreated(op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	for i, lane := range s.lanes {
		var err error
		if s.ops[i], err = lane.Flush(dst, offset, length, to); err != nil {
			return s.abandon(ctx, op, err)
		}
	}
	return s.ended(ctx, op, s.settle(ctx))
}

// begin waits for operations that an earlier transfer has left, and ignores their errors.
func (s *Stripe) begin(ctx context.Context, op string) error {
	s.settle(ctx)
	return failedAs(op, ErrNoCompletion, ctx.Err())
}

// wait waits for the operation in place, if any. If ctx ends the wait, the operation stays in place.
func (s *Stripe) wait(ctx context.Context, place *Op) error {
	if place.async == nil {
		return nil
	}
	_, err := place.Wait(ctx)
	if err == nil || ctx.Err() == nil || !errors.Is(err, ErrNoCompletion) {
		*place = Op{}
	}
	return err
}

// settle waits for all operations in progress, and returns the first error.
func (s *Stripe) settle(ctx context.Context) (first error) {
	for i := range s.ops {
		if err := s.wait(ctx, &s.ops[i]); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// abandon ends a failed transfer: it waits for posted operations until they have completed or ctx ends.
func (s *Stripe) abandon(ctx context.Context, op string, err error) error {
	s.settle(ctx)
	return s.ended(ctx, op, err)
}

func (s *Stripe) ended(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return waitFailed(op, ctx, CodeOf(err), err)
}

// Close returns the completion queues to their connections. It fails during a transfer. Chunks for which a canceled
// transfer no longer waits continue.
func (s *Stripe) Close() error {
	if !s.created() {
		return notCreated("Stripe.Close")
	}
	for len(s.lanes) > 0 {
		if err := s.lanes[0].Close(); err != nil && !errors.Is(err, rdma.ErrClosed) {
			return failed("Stripe.Close", err)
		}
		s.lanes = s.lanes[1:]
	}
	return nil
}
