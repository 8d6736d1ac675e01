// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// keyBytes is the size of keys over the connection manager, the largest message.
const keyBytes = 56

// connected is a link over a connection of the connection manager, and the source of the queue pairs' connections.
type connected struct {
	ctx      context.Context
	o        *Options
	manager  func(rdmacm.PortSpace) (*cm.ID, error)
	own      netip.AddrPort
	peer     netip.AddrPort
	listener *cm.ID // server only
	data     *cm.ID // server only, for connections of queue pairs; the same as listener except for UD
	id       *cm.ID
	mr       *rdma.MR // a message to send, followed by one to receive
}

// stepTimeout bounds each step of the connection manager.
const stepTimeout = 2 * time.Second

// connectManager connects to the peer, or waits for one, with the connection manager, at the address of the device's
// GID. With an error it returns the resources created so far.
func connectManager(ctx context.Context, r *session) (l *connected, err error) {
	o := r.o
	if r.gid == nil {
		return &connected{}, fmt.Errorf("-R: port %d of %s has no GID with an IP address", r.port,
			r.device.Name())
	}
	backend := r.device.Info().Backend
	l = &connected{ctx: ctx, o: o, own: netip.AddrPortFrom(rdma.GIDEntryAddress(*r.gid), 0),
		manager: func(space rdmacm.PortSpace) (*cm.ID, error) { return cm.CreateIDOn(backend, space) }}
	if o.client() {
		var host *net.TCPAddr
		if host, err = net.ResolveTCPAddr("tcp", net.JoinHostPort(o.Peer, strconv.Itoa(o.Port))); err != nil {
			return l, err
		}
		l.peer = host.AddrPort()
		l.peer = netip.AddrPortFrom(l.peer.Addr().Unmap(), l.peer.Port())
		if l.id, err = l.resolve(rdmacm.PS_TCP); err != nil {
			return l, err
		}
	} else {
		if l.data, err = l.listen(o.space()); err != nil {
			return l, err
		}
		if l.listener = l.data; o.space() != rdmacm.PS_TCP {
			if l.listener, err = l.listen(rdmacm.PS_TCP); err != nil {
				return l, err
			}
		}
		stop := r.rejectTCP(ctx)
		o.waits(l.listener.LocalAddr().String())
		err = l.await(ctx)
		stop()
		return l, err
	}
	if err = l.setup(); err != nil {
		return l, err
	}
	if err = l.join(l.id); err != nil {
		if other := r.tryTCP(ctx); other != nil {
			return l, other
		}
		err = fmt.Errorf("no server on %v: %w; start %s or goverbs perf with -R and the same options there", l.peer,
			err, o)
	}
	return l, err
}

// handshakes is the maximum number of unconfirmed connections.
const handshakes = 16

// handshakeTimeout bounds the wait for the peer to confirm its connection. A test changes it.
var handshakeTimeout = 5 * time.Second

// await waits for a peer that confirms its connection: a bare request may come from another program. It accepts several
// at once, and the first one to confirm is the peer.
func (l *connected) await(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	peers, failures := make(chan *connected, 1), make(chan error, 1)
	fail := func(err error) {
		select {
		case failures <- err:
			stop()
		default:
		}
	}
	free := places.New(handshakes, places.Waiting)
	for {
		id, _, err := l.listener.GetRequest(ctx)
		if err != nil {
			fail(err)
			break
		}
		free.Go(ctx, id.PeerAddr().Addr(), func() {
			peer := &connected{ctx: ctx, o: l.o, id: id}
			confirmed, err := peer.confirmed()
			if confirmed {
				select {
				case peers <- peer:
					stop()
					return
				default: // another connection was first
				}
			}
			if err = errors.Join(err, peer.Close()); err != nil {
				fail(err)
			}
		}, func() { _ = id.Close() }) // rejects the request
	}
	free.Wait()
	select {
	case peer := <-peers:
		l.id, l.mr = peer.id, peer.mr
		return nil
	default:
		return <-failures
	}
}

// confirmed accepts a request and reports whether the peer confirms the connection. The error is local.
func (l *connected) confirmed() (bool, error) {
	if err := l.setup(); err != nil {
		if l.id.Reject(nil) == nil { // the peer is still waiting
			return false, err
		}
		return false, nil
	}
	return l.join(l.id) == nil, nil
}

// watch ends the test some time after the peer has disconnected.
func (l *connected) watch(end context.CancelCauseFunc) {
	if e, err := l.id.Event(l.ctx); err == nil && e.Type == rdmacm.CM_EVENT_DISCONNECTED {
		time.AfterFunc(grace, func() { end(errGone) })
	}
}

// space returns the port space of the queue pairs' connections.
func (o *Options) space() rdmacm.PortSpace {
	if o.Connection == "UD" {
		return rdmacm.PS_UDP
	}
	return rdmacm.PS_TCP
}

// listen listens on the port of the test.
func (l *connected) listen(space rdmacm.PortSpace) (*cm.ID, error) {
	id, err := l.manager(space)
	if err != nil {
		return nil, err
	}
	if err = id.Bind(netip.AddrPortFrom(l.own.Addr(), uint16(l.o.Port))); err == nil {
		err = id.Listen(0) // 0: the maximum backlog
	}
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return id, nil
}

// resolve creates an ID with a resolved route to the peer.
func (l *connected) resolve(space rdmacm.PortSpace) (*cm.ID, error) {
	id, err := l.manager(space)
	if err != nil {
		return nil, err
	}
	if err = id.ResolveAddr(l.ctx, l.own, l.peer, stepTimeout); err == nil {
		err = id.ResolveRoute(l.ctx, stepTimeout)
	}
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return id, nil
}

// setup creates the queue pair and the memory of the link.
func (l *connected) setup() error {
	caps := ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if _, err := l.id.CreateQP(nil, &ibv.QPInitAttr{Cap: caps}, rdma.QueueOptions{}); err != nil {
		return err
	}
	pd, err := l.id.PD()
	if err != nil {
		return err
	}
	if l.mr, err = pd.RegMR(make([]byte, 2*keyBytes), ibv.ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	return l.expect()
}

// expect posts a receive for one message.
func (l *connected) expect() error { return l.id.PostRecv(0, l.mr.Bytes()[keyBytes:], l.mr) }

// join connects an ID: the client connects, the server accepts. The connection manager's own timeout is a minute.
func (l *connected) join(id *cm.ID) error {
	param := cm.DefaultConnParam()
	param.RetryCount, param.RNRRetryCount = 7, 7
	if l.o.client() {
		ctx, cancel := context.WithTimeout(l.ctx, l.o.Silence)
		defer cancel()
		err := id.Connect(ctx, &param, nil)
		if ctx.Err() != nil && l.ctx.Err() == nil {
			err = fmt.Errorf("no answer for %v (--silence): %w", l.o.Silence, err)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, handshakeTimeout)
	defer cancel()
	return id.Accept(ctx, &param, nil)
}

// next returns the ID of the next queue pair: from a request of the peer, or resolved to it.
func (l *connected) next() (*cm.ID, error) {
	if l.o.client() {
		return l.resolve(l.o.space())
	}
	for {
		id, _, err := l.data.GetRequest(l.ctx)
		if err != nil || id.PeerAddr().Addr() == l.id.PeerAddr().Addr() {
			return id, err
		}
		if err := id.Close(); err != nil { // not from the peer
			return nil, err
		}
	}
}

// again reports whether the peer rejected because it is not listening yet: perftest's server listens anew for its queue
// pairs.
func again(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (l *connected) send(message []byte) error {
	out := l.mr.Bytes()[:copy(l.mr.Bytes()[:keyBytes], message)]
	if err := l.id.PostSend(0, out, l.mr, ibv.SEND_SIGNALED); err != nil {
		return err
	}
	wc, err := l.id.GetSendComp(l.ctx)
	if err != nil {
		return err
	}
	return rdma.CompletionErr(&wc)
}

func (l *connected) receive(message []byte) error {
	wc, err := l.id.GetRecvComp(l.ctx)
	if err == nil {
		err = rdma.CompletionErr(&wc)
	}
	if err != nil {
		return err
	}
	if int(wc.ByteLen) != len(message) {
		return fmt.Errorf("unexpected message of %d bytes from the peer, want %d; use the same options on both ends",
			wc.ByteLen, len(message))
	}
	copy(message, l.mr.Bytes()[keyBytes:])
	return l.expect()
}

func (*connected) keys() codec { return binaryKeys{} }

func (l *connected) local() netip.Addr { return l.own.Addr() }
func (l *connected) remote() string    { return l.id.PeerAddr().String() }
func (*connected) finish()             {} // the peer has no receive for it

func (l *connected) Close() (err error) {
	if l.mr != nil {
		err = l.mr.Close()
	}
	if l.data == l.listener {
		l.data = nil
	}
	for _, id := range []*cm.ID{l.id, l.listener, l.data} {
		if id != nil {
			err = errors.Join(err, id.Close())
		}
	}
	l.id, l.listener, l.data, l.mr = nil, nil, nil, nil
	return err
}

// binaryKeys is the encoding over the connection manager: big-endian numbers.
type binaryKeys struct{}

func (binaryKeys) size(bool) int { return keyBytes }

func (binaryKeys) put(k *keys) []byte {
	b := make([]byte, 0, keyBytes)
	for _, n := range []uint32{uint32(k.lid), uint32(k.reads), k.qpn, k.psn, k.rkey, 0} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	b = binary.BigEndian.AppendUint64(b, k.address)
	b = append(b, k.gid.Raw()[:]...)
	b = binary.BigEndian.AppendUint32(b, k.srqn)
	return binary.BigEndian.AppendUint32(b, 0)
}

func (binaryKeys) get(b []byte, global bool) (k keys, err error) {
	n := func(at int) uint32 { return binary.BigEndian.Uint32(b[at:]) }
	k = keys{lid: uint16(n(0)), reads: uint8(min(n(4), 255)), qpn: n(8), psn: n(12), rkey: n(16),
		address: binary.BigEndian.Uint64(b[24:]), global: global, srqn: n(48)}
	copy(k.gid.Raw()[:], b[32:])
	return k, nil
}
