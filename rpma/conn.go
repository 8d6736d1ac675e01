// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

// Conn is a connection.
type Conn struct {
	*link
	private atomic.Pointer[[]byte]
	pmem    atomic.Bool // direct writes of the peer are persistent

	closing sync.Mutex // guards the fields below
	// +checklocks:closing
	over bool
	// +checklocks:closing
	asyncs []*Async
}

// newConn returns the connection of a link. private is the private data of the peer's request, or nil.
func newConn(l *link, private []byte) *Conn {
	c := &Conn{link: l}
	if len(private) > 0 {
		c.private.Store(&private)
	}
	return c
}

func (c *Conn) created() bool { return c != nil && c.link != nil }

// EventError reports an event that arrived instead of the expected one.
type EventError struct{ Event Event }

// Error returns the name of the event.
func (e *EventError) Error() string { return fmt.Sprintf("the connection is %v", e.Event) }

// NextEvent waits for the connection's next event. If ctx ends, the error is ErrNoEvent. Operations in progress
// complete even after an event that ends the connection, if only with IBV_WC_WR_FLUSH_ERR.
//
//   - Established comes first if the other side accepts. Otherwise the only event is Rejected, Unreachable or Lost.
//   - Closed follows when the other side has disconnected or its program has ended. The side that disconnects first
//     receives it when the other side has disconnected, too, or does not respond.
//   - Lost follows if the device is removed.
//
// A broken link or a crashed host causes no event. Operations in progress then fail with IBV_WC_RETRY_EXC_ERR; to
// detect this, post an operation, for example a read of 0 bytes.
//
// C: rpma_conn_next_event, rpma_conn_get_event_fd
func (c *Conn) NextEvent(ctx context.Context) (Event, error) {
	const op = "Conn.NextEvent"
	if !c.created() {
		return Undefined, notCreated(op)
	}
	e, err := c.events.Event(ctx)
	if err != nil {
		return Undefined, waitFailed(op, ctx, ErrNoEvent, err)
	}
	event, ok := eventOf[e.Type]
	if !ok {
		logWarn("unexpected event", "event", e)
		return Undefined, &Error{Op: op, Code: ErrUnknown, Reason: e.String()}
	}
	if event == Established && len(e.PrivateData) > 0 {
		own := bytes.Clone(e.PrivateData)
		c.private.CompareAndSwap(nil, &own)
	}
	logInfo("connection "+event.String(), "QP", c.qp.Num(), "event", e.Type, "status", e.Status)
	return event, nil
}

var eventOf = map[rdmacm.CMEventType]Event{
	rdmacm.CM_EVENT_ESTABLISHED:    Established,
	rdmacm.CM_EVENT_CONNECT_ERROR:  Lost,
	rdmacm.CM_EVENT_DEVICE_REMOVAL: Lost,
	rdmacm.CM_EVENT_DISCONNECTED:   Closed,
	rdmacm.CM_EVENT_TIMEWAIT_EXIT:  Closed,
	rdmacm.CM_EVENT_REJECTED:       Rejected,
	rdmacm.CM_EVENT_UNREACHABLE:    Unreachable,
}

// WaitEstablished waits until the other side has accepted. After any other event, the error is an [EventError].
func (c *Conn) WaitEstablished(ctx context.Context) error {
	e, err := c.NextEvent(ctx)
	if err == nil && e != Established {
		err = &Error{Op: "Conn.WaitEstablished", Code: ErrProvider, Err: &EventError{e}}
	}
	return err
}

// PrivateData returns the data that the other side sent with its request or reply, or nil. On the requesting side it is
// available after Established. Over InfiniBand and RoCE it is padded with zeros, to 56 bytes in a request and 196 in a
// reply. Do not modify it.
//
// C: rpma_conn_get_private_data
func (c *Conn) PrivateData() []byte {
	if c != nil {
		if data := c.private.Load(); data != nil {
			return *data
		}
	}
	return nil
}

// ApplyRemotePeerConfig applies the peer's configuration, which the program has received as a descriptor. Without it,
// flushes for persistence fail with ErrNotSupported.
//
// C: rpma_conn_apply_remote_peer_cfg
func (c *Conn) ApplyRemotePeerConfig(config PeerConfig) {
	if c.created() {
		c.pmem.Store(config.DirectWriteToPmem)
	}
}

// QPNum returns the number of the connection's queue pair, as in completions.
//
// C: rpma_conn_get_qp_num
func (c *Conn) QPNum() uint32 {
	if !c.created() {
		return 0
	}
	return c.qp.Num()
}

// QP returns the connection's queue pair. It belongs to the connection.
func (c *Conn) QP() *rdma.QP {
	if !c.created() {
		return nil
	}
	return c.qp
}

// Peer returns the peer on which the connection was created.
func (c *Conn) Peer() *Peer {
	if !c.created() {
		return nil
	}
	return c.peer
}

// CQ returns the connection's completion queue. Receives complete there unless there is a [Conn.RecvCQ].
//
// C: rpma_conn_get_cq
func (c *Conn) CQ() *CQ {
	if !c.created() {
		return nil
	}
	return c.cq
}

// RecvCQ returns the completion queue of receives, which may belong to the shared receive queue, or nil.
//
// C: rpma_conn_get_rcq
func (c *Conn) RecvCQ() *CQ {
	if !c.created() {
		return nil
	}
	return c.rcq
}

// Wait waits for an event of the connection's shared channel. It returns the queue that may have completions, and
// reports whether that is the queue of receives. Poll the queue until it is empty before you wait again. If ctx ends,
// the error is ErrNoCompletion; if the channel is not shared, it is ErrNotSharedChannel.
//
// C: rpma_conn_wait, rpma_conn_get_compl_fd
func (c *Conn) Wait(ctx context.Context) (q *CQ, recvs bool, err error) {
	const op = "Conn.Wait"
	if !c.created() {
		return nil, false, notCreated(op)
	}
	if c.channel == nil {
		return nil, false, &Error{Op: op, Code: ErrNotSharedChannel,
			Reason: "use CQ.Wait, or set ConnConfig.SharedChannel"}
	}
	cq, err := c.channel.Wait(ctx)
	if err != nil {
		return nil, false, waitFailed(op, ctx, ErrNoCompletion, err)
	}
	if err = cq.ReqNotify(false); err != nil {
		return nil, false, failed(op, err)
	}
	if c.rcq != nil && cq == c.rcq.cq {
		return c.rcq, true, nil
	}
	return c.cq, false, nil
}

// Disconnect ends the connection without waiting. Operations in progress complete with IBV_WC_WR_FLUSH_ERR; those of
// the other side do when it disconnects. [Conn.NextEvent] describes Closed.
//
// C: rpma_conn_disconnect
func (c *Conn) Disconnect() error {
	const op = "Conn.Disconnect"
	if !c.created() {
		return notCreated(op)
	}
	// asynchronous ID: does not wait
	return failed(op, c.id.Disconnect(context.Background()))
}

// Close disconnects, waits until the device no longer accesses any memory, and deletes the connection. Goroutines that
// wait for its completions or events return an error. Close fails while a Poller of package rdma uses one of its
// queues.
//
// C: rpma_conn_delete
func (c *Conn) Close() error {
	if !c.created() {
		return notCreated("Conn.Close")
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.over {
		return nil
	}
	if err := c.link.close(c.endAsyncs); err != nil {
		return failed("Conn.Close", err)
	}
	c.over = true
	return nil
}
