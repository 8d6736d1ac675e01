// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma"
)

// clients is how many clients a server has at once. One host gets at most three quarters of these places.
const clients = 64

// idleTime is how long a server waits for what a client says over TCP, or for the next message of a program of
// rdma-core, which does not say that it is through.
const idleTime = 5 * time.Second

// lostTime is how long a server waits for the next message of other clients. There are places for few of them, and one
// whose host is gone does not say so.
const lostTime = time.Minute

// Server answers pings of all kinds, many at once.
type Server struct {
	Device   string
	GIDIndex int    // -1: the best one
	Port     int    // TCP
	CMPort   int    // of the connection manager; 0: none
	PingPong string // the kind that programs of rdma-core are served: RC or UD
	Said     func(string)
	Lost     time.Duration // a client that sends nothing for so long has lost its place; 0: a minute
	// Leave has another process close descriptors when this one has ended: see Options. Run then leaves connections of
	// the connection manager that are not over.
	Leave func(descriptors ...int) error

	mu   sync.Mutex
	left []int // descriptors for Leave

	device *rdma.Device
	tcp    net.Listener
}

// Listen opens the device and listens. Run then serves.
func (s *Server) Listen() (err error) {
	if s.device, err = open(&Options{Device: s.Device}); err != nil {
		return err
	}
	if s.tcp, err = net.Listen("tcp", ":"+strconv.Itoa(s.Port)); err != nil {
		return errors.Join(fmt.Errorf("port %d: %w; -p chooses another", s.Port, err), s.device.Close())
	}
	return nil
}

// Run serves until the context ends.
func (s *Server) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var managers sync.WaitGroup
	free := places.New(clients, places.Waiting)
	defer func() {
		cancel()
		_ = s.tcp.Close()
		managers.Wait()
		free.Wait()
		if s.Leave != nil {
			err = errors.Join(err, s.Leave(s.left...))
		}
		err = errors.Join(err, s.device.Close())
	}()
	stop := context.AfterFunc(ctx, func() { _ = s.tcp.Close() })
	defer stop()
	if _, err := ownGID(&Options{GIDIndex: s.GIDIndex, ownDevice: s.device}); err != nil {
		s.Said(fmt.Sprintf("pings fail until there is such a GID: %v", err))
	}
	if s.CMPort != 0 {
		listeners, err := s.listenManager()
		if err != nil {
			s.Said(fmt.Sprintf("pings by the connection manager are not served: %v", err))
		}
		for _, l := range listeners {
			managers.Go(func() { s.serveManager(ctx, l) })
		}
	}
	for failures := 0; ; {
		conn, err := s.tcp.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if failures++; !again(ctx, failures) {
				return err
			}
			continue
		}
		failures = 0
		free.Go(ctx, hostOf(conn), func() { s.one(ctx, conn) }, func() { _ = conn.Close() })
	}
}

func hostOf(conn net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return at.Addr().Unmap()
}

func (s *Server) lost() time.Duration { return cmp.Or(s.Lost, lostTime) }

// again waits a moment after something failed that may go by, such as a lack of descriptors. It is false when that was
// so many times in a row.
func again(ctx context.Context, failures int) bool {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return failures < 100
}

// one serves a client over TCP.
func (s *Server) one(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(idleTime))
	err := s.answer(ctx, cancel, conn)
	if err != nil && ctx.Err() == nil {
		s.Said(fmt.Sprintf("%v: %v", conn.RemoteAddr(), err))
		_ = conn.SetDeadline(time.Now().Add(idleTime))
		m := message{Error: err.Error()}
		if apart := new(unconnected); errors.As(err, &apart) {
			m.Endpoint = &apart.own
		}
		_ = say(conn, m)
	}
}

// unconnected says why an end could not be connected to its peer's. With both of them, the peer may know better.
type unconnected struct {
	own, peer rdma.Endpoint
	err       error
}

func (u *unconnected) Error() string {
	return fmt.Sprintf("connecting the queue pair to %v: %v", u.peer, u.err)
}

func (u *unconnected) Unwrap() error { return u.err }

// answer meets a client and serves it. A client of ours begins with a line of JSON.
func (s *Server) answer(ctx context.Context, gone func(), conn net.Conn) error {
	o := &Options{GIDIndex: s.GIDIndex, ownDevice: s.device}
	reader := bufio.NewReaderSize(io.LimitReader(conn, longest), 512)
	first, err := reader.Peek(1)
	if err != nil {
		return err
	}
	if first[0] != '{' {
		return s.answerText(ctx, o, conn, reader)
	}
	m, err := hear(reader)
	if err != nil {
		return err
	}
	if m.Kind != RC && m.Kind != UD {
		return fmt.Errorf("there are no pings of kind %q here: rc and ud are served over TCP", m.Kind)
	}
	e, err := newEnd(o, m.Kind, m.Size)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.connect(*m.Endpoint, 0, false); err != nil {
		return &unconnected{e.own, *m.Endpoint, err}
	}
	if err := say(conn, message{Endpoint: &e.own, PKeys: pkeys(s.device)}); err != nil {
		return err
	}
	s.Said(fmt.Sprintf("%v: %s", conn.RemoteAddr(), m.Kind))
	_ = conn.SetReadDeadline(time.Time{})
	go func() { // it ends when the client closes, or at the end of one
		_, _ = io.Copy(io.Discard, conn)
		gone()
	}()
	return e.serve(ctx, s.lost())
}

// answerText serves a program of rdma-core.
func (s *Server) answerText(ctx context.Context, o *Options, conn net.Conn, reader io.Reader) error {
	b := make([]byte, textLength)
	if _, err := io.ReadFull(reader, b); err != nil {
		return err
	}
	peer, err := getText(b)
	if err != nil {
		return err
	}
	size := 4096
	if s.PingPong == UD {
		if _, port, err := s.device.ActivePort(); err == nil {
			size = min(2048, rdma.MTUBytes(port.ActiveMTU))
		}
	}
	e, err := newEnd(o, s.PingPong, size)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.connect(peer, 0, true); err != nil {
		return err
	}
	if _, err := conn.Write(putText(e.own)); err != nil {
		return err
	}
	if _, err := io.ReadFull(reader, make([]byte, len(done))); err != nil {
		return err
	}
	s.Said(fmt.Sprintf("%v: %s, a program of rdma-core", conn.RemoteAddr(), s.PingPong))
	if err := e.serve(ctx, idleTime); !errors.Is(err, errSilence) {
		return err
	}
	return nil
}
