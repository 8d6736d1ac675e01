// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// A ping over the connection manager follows rping: the client advertises its source buffer, the server reads it and
// acknowledges, the client advertises its sink buffer, the server writes the data there and acknowledges. Each message
// has an address, a key and a size.
const adBytes = 16

// managed is a connection with its memory: a message to send, one to receive, a source and a sink buffer.
type managed struct {
	id   *cm.ID
	mr   *rdma.MR
	size int
}

func (m *managed) out() []byte    { return m.mr.Bytes()[:adBytes] }
func (m *managed) in() []byte     { return m.mr.Bytes()[adBytes : 2*adBytes] }
func (m *managed) source() []byte { return m.mr.Bytes()[2*adBytes:][:m.size] }
func (m *managed) sink() []byte   { return m.mr.Bytes()[2*adBytes+m.size:][:m.size] }

// setup creates the queue pair and the memory, and posts a receive.
func (m *managed) setup() error {
	caps := ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}
	if _, err := m.id.CreateQP(nil, &ibv.QPInitAttr{Cap: caps, SQSigAll: 1}, rdma.QueueOptions{}); err != nil {
		return err
	}
	pd, err := m.id.PD()
	if err != nil {
		return err
	}
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE
	if m.mr, err = pd.RegMR(make([]byte, 2*adBytes+2*m.size), access); err != nil {
		return err
	}
	return m.id.PostRecv(recvID, m.in(), m.mr)
}

// descriptor returns the descriptor of the kernel's connection manager.
func (m *managed) descriptor() int { return int(m.id.C().Channel.Deref().FD) }

func (m *managed) Close() (err error) {
	if m.mr != nil {
		err = m.mr.Close()
	}
	return errors.Join(err, m.id.Close())
}

// advertise sends the address of the memory at an offset.
func (m *managed) advertise(ctx context.Context, at int) error {
	b := binary.BigEndian.AppendUint64(m.out()[:0], m.mr.Address()+uint64(at))
	b = binary.BigEndian.AppendUint32(b, m.mr.RKey())
	binary.BigEndian.AppendUint32(b, uint32(m.size))
	if err := m.id.PostSend(sendID, m.out(), m.mr, ibv.SEND_SIGNALED); err != nil {
		return err
	}
	return m.sent(ctx)
}

// sent waits for the completion of a work request.
func (m *managed) sent(ctx context.Context) error {
	wc, err := m.id.GetSendComp(ctx)
	if err != nil {
		return err
	}
	return rdma.CompletionErr(&wc)
}

// receive waits for a message.
func (m *managed) receive(ctx context.Context) (address uint64, key, size uint32, err error) {
	wc, err := m.id.GetRecvComp(ctx)
	if err == nil {
		err = rdma.CompletionErr(&wc)
	}
	if err != nil {
		return 0, 0, 0, err
	}
	if wc.ByteLen != adBytes {
		return 0, 0, 0, fmt.Errorf("unexpected message of %d bytes, want %d; check that the peer is goverbs or rping",
			wc.ByteLen, adBytes)
	}
	b := m.in()
	address, key, size = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	return address, key, size, m.id.PostRecv(recvID, m.in(), m.mr)
}

// pingManager pings over the connection manager.
func (r *Result) pingManager(ctx context.Context, o *Options) (err error) {
	if o.Size < 1 || o.Size > MaxMessage/16 {
		return at("create the queue pair", o.ownDevice.Name(), fmt.Errorf("message size %d is not in 1 to %d; see -s",
			o.Size, MaxMessage/16))
	}
	local, err := ownGID(o)
	if err != nil {
		return at("find the local address", o.ownDevice.Name(), err)
	}
	source := netip.AddrPortFrom(rdma.GIDEntryAddress(local), 0)
	where := net.JoinHostPort(o.Peer, strconv.Itoa(o.CMPort))
	host, err := net.ResolveTCPAddr("tcp", where)
	if err != nil {
		return at("find the peer's address", where, err)
	}
	peer := host.AddrPort()
	peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	r.Own, r.Other = source.Addr().String(), peer.String()
	if peer.Addr().Is4() != source.Addr().Is4() {
		source = netip.AddrPort{} // the kernel chooses
	}
	m := &managed{size: o.Size}
	if m.id, err = cm.CreateIDOn(o.ownDevice.Info().Backend, rdmacm.PS_TCP); err != nil {
		return at("open the connection manager", r.Own, err)
	}
	defer func() {
		if err != nil && o.Leave != nil && !o.ownDevice.Info().IsSoftware() {
			err = errors.Join(err, o.Leave(m.descriptor()))
			return
		}
		err = errors.Join(err, m.Close())
	}()
	steps := []struct {
		name string
		do   func() error
	}{
		{"resolve the address", func() error { return m.id.ResolveAddr(ctx, source, peer, o.Timeout) }},
		{"resolve the route", func() error { return m.id.ResolveRoute(ctx, o.Timeout) }},
		{"create the queue pair", m.setup},
		{"connect", func() error {
			param := cm.DefaultConnParam()
			param.RetryCount, param.RNRRetryCount = 7, 7
			limited, cancel := context.WithTimeout(ctx, o.Timeout)
			defer cancel()
			return m.id.Connect(limited, &param, nil)
		}},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return at(step.name, r.Other, err)
		}
	}
	for range o.Count {
		r.Sent++
		start := time.Now()
		if err := m.ping(ctx, o.Timeout, r.Sent); err != nil {
			return at("ping", r.Other, err)
		}
		r.took = append(r.took, time.Since(start))
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	_ = m.id.Disconnect(limited) // the peer may have disconnected first
	return nil
}

func (m *managed) ping(ctx context.Context, timeout time.Duration, n int) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i := range m.source() { // NUL-terminated text: rping's server writes back no more than that
		m.source()[i] = 'A' + byte((n+i)%26)
	}
	m.source()[m.size-1] = 0
	clear(m.sink())
	for _, at := range []int{2 * adBytes, 2*adBytes + m.size} {
		if err := m.advertise(ctx, at); err != nil {
			return err
		}
		if _, _, _, err := m.receive(ctx); err != nil {
			return err
		}
	}
	if string(m.sink()) != string(m.source()) {
		return errors.New("peer wrote back different data; use the same size on both ends (rping -S)")
	}
	return nil
}

// listenManager listens on all addresses of RDMA devices, including future ones, or with -x on that GID only.
func (s *Server) listenManager() (all []*cm.ID, err error) {
	where := []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
	if s.GIDIndex >= 0 {
		local, err := ownGID(&Options{GIDIndex: s.GIDIndex, ownDevice: s.device})
		if err != nil {
			return nil, err
		}
		where = []netip.Addr{rdma.GIDEntryAddress(local)}
	}
	for _, address := range where { // binding IPv4 fails if the IPv6 socket accepts both
		l, bad := s.listenAt(netip.AddrPortFrom(address, uint16(s.CMPort)))
		if bad != nil {
			err = cmp.Or(err, bad)
			continue
		}
		all = append(all, l)
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, err
}

func (s *Server) listenAt(address netip.AddrPort) (*cm.ID, error) {
	l, err := cm.CreateIDOn(s.device.Info().Backend, rdmacm.PS_TCP)
	if err != nil {
		return nil, err
	}
	if err = l.Bind(address); err == nil {
		err = l.Listen(0) // 0: the maximum backlog
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serveManager serves clients of the connection manager.
func (s *Server) serveManager(ctx context.Context, l *cm.ID) {
	defer l.Close()
	free := places.New(clients, places.Waiting)
	defer free.Wait()
	for failures := 0; ; {
		id, _, err := l.GetRequest(ctx)
		if err != nil {
			if failures++; ctx.Err() == nil && waitRetry(ctx, failures) {
				continue
			}
			if ctx.Err() == nil {
				s.Log(fmt.Sprintf("stopped serving connection manager pings: %v", err))
			}
			return
		}
		failures = 0
		peer := id.PeerAddr()
		free.Go(ctx, peer.Addr(), func() {
			s.Log(fmt.Sprintf("%v: cm", peer))
			m := &managed{id: id, size: MaxMessage / 16}
			if err := m.serve(ctx, s.lost()); err != nil && ctx.Err() == nil {
				s.Log(fmt.Sprintf("%v: %v", peer, err))
			}
			s.closeConn(ctx, m)
		}, func() { _ = id.Close() }) // rejects the request
	}
}

// closeConn closes a connection, or leaves it to another process if the server ends before the peer.
func (s *Server) closeConn(ctx context.Context, m *managed) {
	if ctx.Err() == nil || s.Leave == nil || s.device.Info().IsSoftware() {
		_ = m.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, m.descriptor())
}

// confirmTimeout bounds the wait for the peer to confirm an accepted connection.
const confirmTimeout = 5 * time.Second

// serve answers until the peer disconnects or sends nothing for lost.
func (m *managed) serve(ctx context.Context, lost time.Duration) error {
	if err := m.setup(); err != nil {
		return errors.Join(err, m.id.Reject(nil))
	}
	param := cm.DefaultConnParam()
	limited, stop := context.WithTimeout(ctx, min(lost, confirmTimeout))
	err := m.id.Accept(limited, &param, nil)
	stop()
	if err != nil {
		return err
	}
	ctx, gone := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer gone()
	watch.Go(func() { // the queue pair does not report a disconnect, and the peer waits for ours
		if e, err := m.id.Event(ctx); err == nil && e.Type == rdmacm.CM_EVENT_DISCONNECTED {
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_ = m.id.Disconnect(limited)
		}
		gone()
	})
	silence := time.AfterFunc(lost, gone)
	defer silence.Stop()
	for ; ; silence.Reset(lost) {
		address, key, size, err := m.receive(ctx)
		if failed := new(rdma.CompletionError); ctx.Err() != nil ||
			errors.As(err, &failed) && failed.Status == ibv.WC_WR_FLUSH_ERR { // disconnected
			return nil
		}
		if err != nil {
			return err
		}
		if uint64(size) > uint64(m.size) {
			return fmt.Errorf("message size %d of the peer exceeds %d", size, m.size)
		}
		data := m.source()[:size]
		if err := m.id.PostRead(sendID, data, m.mr, ibv.SEND_SIGNALED, address, key); err != nil {
			return err
		}
		if err := m.sent(ctx); err != nil {
			return err
		}
		if err := m.advertise(ctx, 0); err != nil {
			return err
		}
		if address, key, size, err = m.receive(ctx); err != nil {
			return err
		}
		if err := m.id.PostWrite(sendID, data[:min(uint64(len(data)), uint64(size))], m.mr, ibv.SEND_SIGNALED, address,
			key); err != nil {
			return err
		}
		if err := m.sent(ctx); err != nil {
			return err
		}
		if err := m.advertise(ctx, 0); err != nil {
			return err
		}
	}
}
