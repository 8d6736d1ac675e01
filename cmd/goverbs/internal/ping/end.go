// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// depth is the number of receives that an end keeps posted.
const depth = 32

// MaxMessage is the maximum message size on a reliable connection; it also bounds the memory that a client can request.
const MaxMessage = 1 << 20

// end is one end of a ping over queue pairs. Its memory holds the message to send, followed by the one received.
type end struct {
	qp         *rdma.QP
	mr         *rdma.MR
	size       int
	own        rdma.Endpoint
	send       *rdma.SendBatch
	recv       *rdma.RecvBatch
	ah         *rdma.AH
	peer       rdma.Endpoint
	wcs        []ibv.WC
	grh        int
	echo       bool // it is the server
	sent       bool // the last send has completed
	unanswered int  // messages received but not yet answered
	bytes      int  // size of the last message
}

// Work request IDs.
const (
	recvID = 1
	sendID = 2
)

func newEnd(o *Options, kind string, size int) (e *end, err error) {
	d := o.ownDevice
	e = &end{size: size, wcs: make([]ibv.WC, 2*depth)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if size < 1 || size > MaxMessage {
		return e, fmt.Errorf("message size %d is not in 1 to %d; see -s", size, MaxMessage)
	}
	create := d.NewRC
	if kind == UD {
		create, e.grh = d.NewUD, rdma.GRHBytes
		if _, port, err := d.ActivePort(); err == nil && size > rdma.MTUBytes(port.ActiveMTU) {
			return e, fmt.Errorf("message size %d exceeds the MTU of %s, %d bytes; see -s", size, d.Name(),
				rdma.MTUBytes(port.ActiveMTU))
		}
	}
	caps := ibv.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}
	if e.qp, err = create(rdma.QPParts{Cap: caps}); err != nil {
		return e, err
	}
	if e.mr, err = e.qp.RegMR(make([]byte, 2*size+e.grh), ibv.ACCESS_LOCAL_WRITE); err != nil {
		return e, err
	}
	on := rdma.GIDQuery{}
	if o.GIDIndex >= 0 {
		g, err := ownGID(o)
		if err != nil {
			return e, err
		}
		on = rdma.GIDQuery{Port: uint8(g.PortNum), GID: &g.GID, Type: &g.GIDType}
	}
	if e.own, err = e.qp.EndpointOn(on); err != nil {
		return e, err
	}
	if e.send, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return e, err
	}
	if e.recv, err = rdma.NewRecvBatch(1, 1); err != nil {
		return e, err
	}
	e.recv.Recv(recvID).Add(e.mr.SGE(uint64(size), uint32(e.grh+size)))
	return e, nil
}

func (e *end) Close() (err error) {
	if e.ah != nil {
		err = e.ah.Close()
	}
	if e.send != nil {
		err = errors.Join(err, e.send.Close())
	}
	if e.recv != nil {
		err = errors.Join(err, e.recv.Close())
	}
	if e.qp != nil {
		err = errors.Join(err, e.qp.Close())
	}
	return err
}

// connect connects to the peer and posts receives. The peer may send as soon as it learns that this end is connected.
func (e *end) connect(peer rdma.Endpoint, mtu ibv.MTU, pingpong bool) error {
	e.peer = peer
	if e.qp.Type() == ibv.QPT_UD {
		path, err := e.qp.Path(peer)
		if err != nil {
			return err
		}
		if e.ah, err = e.qp.PD().CreateAH(&path); err != nil {
			return err
		}
	} else {
		attr, err := e.qp.ConnectAttr(peer)
		if err != nil {
			return err
		}
		if mtu != 0 {
			attr.PathMTU = mtu
		} else if pingpong {
			attr.PathMTU = min(attr.PathMTU, ibv.MTU_1024) // the default of the pingpong programs
		}
		if err := e.qp.ConnectWith(attr); err != nil {
			return err
		}
	}
	for range depth {
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	return nil
}

// post sends the first n bytes of the outgoing message. A server sends answers with immediate data and ignores messages
// that have it: two servers connected to each other would otherwise echo forever.
func (e *end) post(n int) error {
	e.send.Reset()
	var w rdma.SendRequest
	if e.echo {
		w = e.send.SendImm(sendID, 0)
	} else {
		w = e.send.Send(sendID)
	}
	w.Add(e.mr.SGE(0, uint32(n))).Signaled()
	if e.ah != nil {
		w.UD(e.ah.Ptr(), e.peer.QPNum, e.peer.QKey)
	}
	if err := e.send.Err(); err != nil {
		return err
	}
	_, err := e.qp.PostSend(e.send)
	return err
}

func (e *end) out() []byte { return e.mr.Bytes()[:e.size] }
func (e *end) in() []byte  { return e.mr.Bytes()[e.size+e.grh:] }

// errSilence reports that the peer did not answer.
var errSilence = errors.New("no answer")

// ping sends a message and waits for its echo.
func (e *end) ping(ctx context.Context, timeout time.Duration, salt byte) error {
	for i := range e.out() {
		e.out()[i] = byte(i) ^ salt
	}
	e.sent, e.unanswered = false, 0
	if err := e.post(e.size); err != nil {
		return err
	}
	for !e.sent || e.unanswered == 0 {
		if err := e.wait(ctx, timeout); err != nil {
			return err
		}
	}
	if !bytes.Equal(e.in()[:e.bytes], e.out()) {
		return fmt.Errorf("%d bytes received differ from the %d sent; use the same -s on both ends", e.bytes, e.size)
	}
	return nil
}

// serve echoes messages until the context ends or none arrives for idle.
func (e *end) serve(ctx context.Context, idle time.Duration) error {
	e.echo = true
	for e.sent = true; ; {
		for e.unanswered == 0 || !e.sent {
			if err := e.wait(ctx, idle); err != nil {
				return err
			}
		}
		e.unanswered--
		copy(e.out(), e.in())
		e.sent = false
		if err := e.post(e.bytes); err != nil {
			return err
		}
	}
}

// wait waits for completions and processes them.
func (e *end) wait(ctx context.Context, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n, err := e.qp.SendCQ().Wait(limited, e.wcs)
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("%w within %v", errSilence, timeout)
		}
		return err
	}
	for i := range e.wcs[:n] {
		wc := &e.wcs[i]
		if err := rdma.CompletionErr(wc); err != nil {
			return err
		}
		if wc.WRID == sendID {
			e.sent = true
			continue
		}
		if !e.echo || wc.WCFlags&ibv.WC_WITH_IMM == 0 {
			e.unanswered, e.bytes = e.unanswered+1, max(0, int(wc.ByteLen)-e.grh)
		}
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	return nil
}
