// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Async starts operations of a connection and lets a goroutine wait for each of them:
//
//	op, err := async.Write(dst, 0, src, 0, 4096)
//	...
//	wc, err := op.Wait(ctx)
//
// It has no goroutine: one of the waiting goroutines polls for all. Nothing else may poll the connection's completion
// queue, so [CQ.Poll] and [CQ.Wait] fail. Completions of operations started with [Conn] are dropped. An Async is safe
// for concurrent use. Except for the first ones, operations do not allocate, nor do waits whose context was used
// before.
type Async struct {
	conn  *Conn
	calls *rdma.Calls
	waits sync.RWMutex // read-locked during waits
}

func (a *Async) created() bool { return a != nil && a.calls != nil }

// NewAsync returns an Async for up to most outstanding operations. It takes over the connection's completion queue. A
// connection has at most one Async. Close it with the connection, or earlier.
func (c *Conn) NewAsync(most int) (*Async, error) {
	const op = "Conn.NewAsync"
	if !c.created() {
		return nil, notCreated(op)
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.over {
		return nil, closed(op)
	}
	calls, err := rdma.NewCalls(c.cq.cq, most, nil)
	if err != nil {
		return nil, failed(op, err)
	}
	a := &Async{conn: c, calls: calls}
	c.asyncs = append(c.asyncs, a)
	return a, nil
}

// Close returns the completion queue to the connection. It fails with rdma.ErrInUse while a goroutine waits.
func (a *Async) Close() error {
	if !a.created() {
		return notCreated("Async.Close")
	}
	a.conn.closing.Lock()
	defer a.conn.closing.Unlock()
	if err := a.calls.Close(); err != nil {
		return failed("Async.Close", err)
	}
	a.conn.asyncs = slices.DeleteFunc(a.conn.asyncs, func(other *Async) bool { return other == a })
	return nil
}

// endAsyncs closes the remaining Asyncs when the queue pair is closed and their operations and waits have ended. The
// caller holds closing.
//
// +checklocks:c.closing
func (c *Conn) endAsyncs() error {
	for _, a := range c.asyncs {
		a.waits.Lock()
		err := a.calls.Close()
		a.waits.Unlock()
		if err != nil {
			return err
		}
	}
	c.asyncs = nil
	return nil
}

// Op is a started operation. The zero Op is an operation that has ended.
type Op struct {
	async *Async
	call  rdma.Call
}

// Wait waits until the operation has completed. The error concerns the wait, or explains a failed completion: see
// [Conn.CompletionErr]. If ctx ends, the operation continues and the device still owns its memory: wait again, or call
// Abandon. Each operation needs one of the two.
func (o Op) Wait(ctx context.Context) (ibv.WC, error) {
	const op = "Op.Wait"
	if o.async == nil {
		return ibv.WC{}, closed(op)
	}
	o.async.waits.RLock()
	wc, err := o.call.Wait(ctx)
	o.async.waits.RUnlock()
	if err != nil {
		return wc, waitFailed(op, ctx, ErrNoCompletion, err)
	}
	if wc.Status != ibv.WC_SUCCESS {
		return wc, o.async.conn.CompletionErr(&wc)
	}
	return wc, nil
}

// Abandon replaces Wait, for example after a context has ended. When the operation has completed or its connection is
// closed, release is called in a new goroutine; until then the device owns the memory. release may be nil.
func (o Op) Abandon(release func()) {
	if release == nil {
		release = func() {}
	}
	o.call.Abandon(release)
}

// start starts a call and posts its operation.
func (a *Async) start(op string, post func(id uint64) error) (Op, error) {
	if !a.created() {
		return Op{}, notCreated(op)
	}
	call, err := a.calls.Begin()
	if err != nil {
		return Op{}, failed(op, err)
	}
	if err := post(call.ID()); err != nil {
		call.Cancel()
		return Op{}, err
	}
	return Op{a, call}, nil
}

// Read is [Conn.Read].
func (a *Async) Read(dst *MR, dstOffset uint64, src *RemoteMR, srcOffset, length uint64) (Op, error) {
	return a.start("Async.Read", func(id uint64) error {
		return a.conn.Read(dst, dstOffset, src, srcOffset, length, Always, id)
	})
}

// Write is [Conn.Write].
func (a *Async) Write(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64) (Op, error) {
	return a.start("Async.Write", func(id uint64) error {
		return a.conn.Write(dst, dstOffset, src, srcOffset, length, Always, id)
	})
}

// WriteWithImm is [Conn.WriteWithImm].
func (a *Async) WriteWithImm(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64, imm uint32) (Op,
	error) {
	return a.start("Async.WriteWithImm", func(id uint64) error {
		return a.conn.WriteWithImm(dst, dstOffset, src, srcOffset, length, Always, imm, id)
	})
}

// AtomicWrite is [Conn.AtomicWrite].
func (a *Async) AtomicWrite(dst *RemoteMR, dstOffset uint64, value [8]byte) (Op, error) {
	return a.start("Async.AtomicWrite", func(id uint64) error {
		return a.conn.AtomicWrite(dst, dstOffset, value, Always, id)
	})
}

// Flush is [Conn.Flush].
func (a *Async) Flush(dst *RemoteMR, dstOffset, length uint64, to FlushType) (Op, error) {
	return a.start("Async.Flush", func(id uint64) error {
		return a.conn.Flush(dst, dstOffset, length, to, Always, id)
	})
}

// Send is [Conn.Send].
func (a *Async) Send(src *MR, offset, length uint64) (Op, error) {
	return a.start("Async.Send", func(id uint64) error { return a.conn.Send(src, offset, length, Always, id) })
}

// SendWithImm is [Conn.SendWithImm].
func (a *Async) SendWithImm(src *MR, offset, length uint64, imm uint32) (Op, error) {
	return a.start("Async.SendWithImm", func(id uint64) error {
		return a.conn.SendWithImm(src, offset, length, Always, imm, id)
	})
}

// Recv is [Conn.Recv], on a connection whose receives complete in [Conn.CQ].
func (a *Async) Recv(dst *MR, offset, length uint64) (Op, error) {
	if !a.created() {
		return Op{}, notCreated("Async.Recv")
	}
	if a.conn.rcq != nil {
		return Op{}, invalid("Async.Recv", "receives complete in Conn.RecvCQ, on which the Async does not wait")
	}
	return a.start("Async.Recv", func(id uint64) error { return a.conn.Recv(dst, offset, length, id) })
}
