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

// depth is how many messages an end can take before it has looked at one.
const depth = 32

// largest message of a reliable connection, and of a peer that may ask for memory.
const largest = 1 << 20

// end is one end of a ping by queue pairs: its memory holds what it sends, and behind it what it receives.
type end struct {
	qp    *rdma.QP
	mr    *rdma.MR
	size  int
	own   rdma.Endpoint
	send  *rdma.SendBatch
	recv  *rdma.RecvBatch
	ah    *rdma.AH
	peer  rdma.Endpoint
	wcs   []ibv.WC
	grh   int
	echo  bool // it answers messages
	sent  bool // the last send has completed
	heard int  // messages that wait for an answer
	bytes int  // of the last one
}

// wr_ids.
const (
	arrived = 1
	left    = 2
)

func newEnd(o *Options, kind string, size int) (e *end, err error) {
	d := o.ownDevice
	e = &end{size: size, wcs: make([]ibv.WC, 2*depth)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if size < 1 || size > largest {
		return e, fmt.Errorf("a message has 1 to %d bytes, not %d: see -s", largest, size)
	}
	create := d.NewRC
	if kind == UD {
		create, e.grh = d.NewUD, rdma.GRHBytes
		if _, port, err := d.ActivePort(); err == nil && size > rdma.MTUBytes(port.ActiveMTU) {
			return e, fmt.Errorf("a datagram on %s has up to %d bytes, which is the MTU, not %d", d.Name(),
				rdma.MTUBytes(port.ActiveMTU), size)
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
	e.recv.Recv(arrived).Add(e.mr.SGE(uint64(size), uint32(e.grh+size)))
	return e, nil
}

// Close closes what the end has.
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

// connect connects to a peer, and posts receives: the peer may send as soon as it hears that.
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
			attr.PathMTU = min(attr.PathMTU, ibv.MTU_1024) // as its programs have it
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

// post sends the first n bytes of what this end has to send. Answers have immediate data: those who answer leave them
// alone, so that two of them that were told of each other do not answer forever.
func (e *end) post(n int) error {
	e.send.Reset()
	var w rdma.SendRequest
	if e.echo {
		w = e.send.SendImm(left, 0)
	} else {
		w = e.send.Send(left)
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

// errSilence says that nothing came back.
var errSilence = errors.New("no answer came")

// ping sends a message and waits until it has come back.
func (e *end) ping(ctx context.Context, patience time.Duration, salt byte) error {
	for i := range e.out() {
		e.out()[i] = byte(i) ^ salt
	}
	e.sent, e.heard = false, 0
	if err := e.post(e.size); err != nil {
		return err
	}
	for !e.sent || e.heard == 0 {
		if err := e.wait(ctx, patience); err != nil {
			return err
		}
	}
	if !bytes.Equal(e.in()[:e.bytes], e.out()) {
		return fmt.Errorf("%d bytes came back that are not the %d that were sent: is the peer told another size?",
			e.bytes, e.size)
	}
	return nil
}

// serve answers messages until the context ends, or none comes for a time.
func (e *end) serve(ctx context.Context, idle time.Duration) error {
	e.echo = true
	for e.sent = true; ; {
		for e.heard == 0 || !e.sent {
			if err := e.wait(ctx, idle); err != nil {
				return err
			}
		}
		e.heard--
		copy(e.out(), e.in())
		e.sent = false
		if err := e.post(e.bytes); err != nil {
			return err
		}
	}
}

// wait waits for completions.
func (e *end) wait(ctx context.Context, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := e.qp.SendCQ().Wait(limited, e.wcs)
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("%w within %v", errSilence, patience)
		}
		return err
	}
	for i := range e.wcs[:n] {
		wc := &e.wcs[i]
		if err := rdma.CompletionErr(wc); err != nil {
			return err
		}
		if wc.WRID == left {
			e.sent = true
			continue
		}
		if !e.echo || wc.WCFlags&ibv.WC_WITH_IMM == 0 {
			e.heard, e.bytes = e.heard+1, max(0, int(wc.ByteLen)-e.grh)
		}
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	return nil
}
