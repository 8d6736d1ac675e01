// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"net/netip"
	"sync"

	"github.com/goverbs/goverbs/generated/rdmacm"
)

// ConnRequest is a connection request of this side or of a peer. Connect turns it into a [Conn], and Close ends it.
type ConnRequest struct {
	mu      sync.Mutex // guards link
	link    *link      // nil if the request has ended
	passive bool
	private []byte
}

// NewConnRequest prepares a connection to the listener at "host:port": it resolves the address and the route, and
// creates the queues. A nil config means the defaults. NewConnRequest blocks until the network has responded, config's
// Timeout has expired in one of the steps, or ctx ends.
//
// C: rpma_conn_req_new
func (p *Peer) NewConnRequest(ctx context.Context, address string, config *ConnConfig) (*ConnRequest, error) {
	const op = "Peer.NewConnRequest"
	if !p.created() {
		return nil, notCreated(op)
	}
	full, err := config.complete(op)
	if err != nil {
		return nil, err
	}
	to, err := p.device.manager.lookup(ctx, Remote, address)
	if err != nil {
		return nil, failed(op, err)
	}
	id, err := p.device.manager.createID(rdmacm.PS_TCP)
	if err != nil {
		return nil, failed(op, err)
	}
	var from netip.AddrPort
	if p.device.local.Is4() == to.Addr().Is4() {
		from = netip.AddrPortFrom(p.device.local, 0)
	}
	if err = id.ResolveAddr(ctx, from, to, full.Timeout); err == nil {
		err = id.ResolveRoute(ctx, full.Timeout)
	}
	if err != nil {
		id.Close()
		return nil, failed(op, err)
	}
	l, err := newLink(op, p, id, &full)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{link: l}, nil
}

// Recv posts a receive before the connection exists, in time for the peer's first message. See [Conn.Recv].
//
// C: rpma_conn_req_recv
func (r *ConnRequest) Recv(dst *MR, offset, length uint64, id uint64) error {
	const op = "ConnRequest.Recv"
	if r == nil {
		return notCreated(op)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == nil {
		return closed(op)
	}
	return r.link.recvs.post(op, r.link.qp, dst, offset, length, id)
}

// PrivateData returns the data that the peer sent with its request, or nil. Over InfiniBand and RoCE it has 56 bytes,
// padded with zeros. The caller owns it.
//
// C: rpma_conn_req_get_private_data
func (r *ConnRequest) PrivateData() []byte {
	if r == nil {
		return nil
	}
	return r.private
}

// PeerAddr returns the other side's address, or the zero AddrPort if the request has ended.
func (r *ConnRequest) PeerAddr() netip.AddrPort {
	if r == nil {
		return netip.AddrPort{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == nil {
		return netip.AddrPort{}
	}
	return r.link.id.PeerAddr()
}

// Connect sends this side's request, or accepts the peer's. It ends the request, even if it fails. private is sent to
// the other side; it may be nil, and has at most 56 bytes in a request and 196 in a reply over InfiniBand and RoCE.
// Connect does not wait for the other side: use [Conn.WaitEstablished] or [Conn.NextEvent].
//
// C: rpma_conn_req_connect
func (r *ConnRequest) Connect(private []byte) (*Conn, error) {
	const op = "ConnRequest.Connect"
	if r == nil {
		return nil, notCreated(op)
	}
	l := r.take()
	if l == nil {
		return nil, closed(op)
	}
	connect := l.id.Connect
	if r.passive {
		connect = l.id.Accept
	}
	// asynchronous ID: does not wait
	if err := connect(context.Background(), param(), private); err != nil {
		return nil, l.closeAfter(op, err)
	}
	logInfo("connection requested", "QP", l.qp.Num(), "passive", r.passive)
	return newConn(l, r.private), nil
}

// take ends the request and returns its link, or nil if the request has already ended.
func (r *ConnRequest) take() *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.link
	r.link = nil
	return l
}

// Close ends the request. It rejects a peer's request.
//
// C: rpma_conn_req_delete
func (r *ConnRequest) Close() error {
	const op = "ConnRequest.Close"
	if r == nil {
		return notCreated(op)
	}
	l := r.take()
	if l == nil {
		return nil
	}
	if err := l.close(); err != nil { // closing an ID rejects an unanswered request
		r.mu.Lock()
		r.link = l // for another Close
		r.mu.Unlock()
		return failed(op, err)
	}
	return nil
}
