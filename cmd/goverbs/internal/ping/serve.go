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

// clients is the maximum number of concurrent clients. One host gets at most three quarters.
const clients = 64

// idleTime bounds the wait for data over TCP, and for the next message of a pingpong program, which does not announce
// its end.
const idleTime = 5 * time.Second

// lostTime bounds the wait for the next message of other clients. Otherwise a client whose host is down would count as
// connected forever.
const lostTime = time.Minute

// Server answers pings of all kinds, from many clients at once.
type Server struct {
	Device   string
	GIDIndex int    // -1: choose automatically
	Port     int    // TCP
	CMPort   int    // for the connection manager; 0: disabled
	PingPong string // kind for pingpong programs of rdma-core: RC or UD
	Log      func(line string)
	Lost     time.Duration // timeout for an idle client; 0: one minute
	// Leave passes descriptors to another process, as in Options. Run then leaves open connections of the connection
	// manager to it.
	Leave func(descriptors ...int) error

	mu   sync.Mutex
	left []int // descriptors for Leave

	device *rdma.Device
	tcp    net.Listener
}

// Listen opens the device and listens. Call Run next.
func (s *Server) Listen() (err error) {
	if s.device, err = open(&Options{Device: s.Device}); err != nil {
		return err
	}
	if s.tcp, err = net.Listen("tcp", ":"+strconv.Itoa(s.Port)); err != nil {
		return errors.Join(fmt.Errorf("port %d: %w; choose another with -p", s.Port, err), s.device.Close())
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
		s.Log(fmt.Sprintf("pings will fail until the GID exists: %v", err))
	}
	if s.CMPort != 0 {
		listeners, err := s.listenManager()
		if err != nil {
			s.Log(fmt.Sprintf("not serving connection manager pings: %v", err))
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
			if failures++; !waitRetry(ctx, failures) {
				return err
			}
			continue
		}
		failures = 0
		free.Go(ctx, hostOf(conn), func() { s.serveTCP(ctx, conn) }, func() { _ = conn.Close() })
	}
}

func hostOf(conn net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return at.Addr().Unmap()
}

func (s *Server) lost() time.Duration { return cmp.Or(s.Lost, lostTime) }

// waitRetry waits before a retry of an operation that may fail temporarily, for lack of descriptors for instance. It
// returns false after too many consecutive failures.
func waitRetry(ctx context.Context, failures int) bool {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return failures < 100
}

// serveTCP serves a client that connected over TCP.
func (s *Server) serveTCP(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(idleTime))
	err := s.serveClient(ctx, cancel, conn)
	if err != nil && ctx.Err() == nil {
		s.Log(fmt.Sprintf("%v: %v", conn.RemoteAddr(), err))
		_ = conn.SetDeadline(time.Now().Add(idleTime))
		m := message{Error: err.Error()}
		if failed := new(connectError); errors.As(err, &failed) {
			m.Endpoint = &failed.own
		}
		_ = writeMessage(conn, m)
	}
}

// connectError reports that connecting the queue pair failed. It has both endpoints, so that the client can explain it.
type connectError struct {
	own, peer rdma.Endpoint
	err       error
}

func (u *connectError) Error() string {
	return fmt.Sprintf("connecting the queue pair to %v: %v", u.peer, u.err)
}

func (u *connectError) Unwrap() error { return u.err }

// serveClient exchanges endpoints with a client and serves it. A goverbs client begins with a line of JSON.
func (s *Server) serveClient(ctx context.Context, gone func(), conn net.Conn) error {
	o := &Options{GIDIndex: s.GIDIndex, ownDevice: s.device}
	reader := bufio.NewReaderSize(io.LimitReader(conn, maxLine), 512)
	first, err := reader.Peek(1)
	if err != nil {
		return err
	}
	if first[0] != '{' {
		return s.servePingpong(ctx, o, conn, reader)
	}
	m, err := readMessage(reader)
	if err != nil {
		return err
	}
	if m.Kind != RC && m.Kind != UD {
		return fmt.Errorf("unknown kind %q: rc and ud are served over TCP", m.Kind)
	}
	e, err := newEnd(o, m.Kind, m.Size)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.connect(*m.Endpoint, 0, false); err != nil {
		return &connectError{e.own, *m.Endpoint, err}
	}
	if err := writeMessage(conn, message{Endpoint: &e.own, PKeys: pkeys(s.device)}); err != nil {
		return err
	}
	s.Log(fmt.Sprintf("%v: %s", conn.RemoteAddr(), m.Kind))
	_ = conn.SetReadDeadline(time.Time{})
	go func() { // ends when either side closes the connection
		_, _ = io.Copy(io.Discard, conn)
		gone()
	}()
	return e.serve(ctx, s.lost())
}

// servePingpong serves a pingpong program of rdma-core.
func (s *Server) servePingpong(ctx context.Context, o *Options, conn net.Conn, reader io.Reader) error {
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
	s.Log(fmt.Sprintf("%v: %s, rdma-core pingpong", conn.RemoteAddr(), s.PingPong))
	if err := e.serve(ctx, idleTime); !errors.Is(err, errSilence) {
		return err
	}
	return nil
}
