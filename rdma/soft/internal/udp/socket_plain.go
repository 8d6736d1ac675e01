// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Socket is a UDP socket of one address, or the socket of a multicast group.
type Socket struct {
	addr    netip.AddrPort
	o       Options
	conn    *net.UDPConn
	count   counters
	writing sync.Mutex // guards the deadline of writes
	polling sync.Mutex // guards the deadline of reads
}

func open(at netip.AddrPort, o Options) (*Socket, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { doNotFragment(fd, at.Addr().Is4()) })
	}}
	network := "udp6"
	if at.Addr().Is4() {
		network = "udp4"
	}
	conn, err := config.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, named(err)
	}
	return socket(conn.(*net.UDPConn), at.Addr(), o), nil
}

func socket(conn *net.UDPConn, addr netip.Addr, o Options) *Socket {
	s := &Socket{o: o, conn: conn}
	s.addr = netip.AddrPortFrom(addr, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	// Some systems reject buffers above their limit.
	for set := range 2 {
		for size := o.Buffer; size >= 64<<10; size /= 2 {
			if set == 0 && conn.SetReadBuffer(size) == nil || set == 1 && conn.SetWriteBuffer(size) == nil {
				break
			}
		}
	}
	return s
}

// Join opens a socket that receives datagrams to a multicast group on this socket's interface and port. Close leaves
// the group. To send to the group, use the socket that Open returned.
func (s *Socket) Join(group netip.Addr) (*Socket, error) {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != s.addr.Addr().Is4() {
		return nil, fmt.Errorf("udp: join %v: not a multicast group of %s: %w", group, family(s.addr.Addr()),
			syscall.EINVAL)
	}
	i, err := InterfaceOf(s.addr.Addr())
	if err != nil {
		return nil, fmt.Errorf("udp: join %v: %w", group, err)
	}
	network := "udp6"
	if group.Is4() {
		network = "udp4"
	}
	at := netip.AddrPortFrom(group, s.addr.Port())
	conn, err := net.ListenMulticastUDP(network, i, net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("%w (joining a group over %s)", explain(at, named(err)), i.Name)
	}
	return socket(conn, group, s.o), nil
}

// Addr returns the address and port that the socket is bound to.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Buffer returns 0: the sizes of the system's buffers are unknown.
func (s *Socket) Buffer() (receive, send int) { return 0, 0 }

// Member returns 0, because addresses cannot be shared.
func (s *Socket) Member() int { return 0 }

// IsShared returns false, because addresses cannot be shared.
func (s *Socket) IsShared() bool { return false }

// Claim does nothing: every service belongs to this socket.
func (s *Socket) Claim(uint64) (*Claim, error) { return nil, nil }

// Claimed returns false, because there are no members.
func (s *Socket) Claimed(uint64) (member int, ok bool) { return 0, false }

// Secret returns zeros, because there are no members.
func (s *Socket) Secret() (secret [16]byte) { return secret }

// Claimant returns "", because there are no members.
func (s *Socket) Claimant(uint64) string { return "" }

// Claim is a service claimed by a socket.
type Claim struct{}

// Close does nothing.
func (*Claim) Close() {}

// Counters returns the socket's counters. It may be called at any time.
func (s *Socket) Counters() Counters { return s.count.values() }

// MTU returns the maximum payload of a datagram, by the MTU of the interface with the socket's address.
func (s *Socket) MTU(netip.Addr) (int, error) { return s.InterfaceMTU() }

// Identification returns the Identification fields that the datagrams of one Write to an IPv4 address have.
func (s *Socket) Identification(netip.Addr) Identification { return identification }

// Read waits for one datagram and copies it to b, which should have MaxRead bytes. After Close, it returns
// net.ErrClosed. Network errors are counted and not returned.
func (s *Socket) Read(b []byte, a *Arrival) error {
	if len(b) == 0 {
		return fmt.Errorf("udp: read: no buffer: %w", syscall.EINVAL)
	}
	for failed := 0; ; {
		n, from, err := s.conn.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return net.ErrClosed
		case errors.Is(err, os.ErrDeadlineExceeded):
			return err // for ReadNow
		case err != nil:
			// Windows reports an unreachable port of an earlier datagram here, or a datagram longer than b.
			s.count.unreachable.Add(1)
			if failed++; failed > 1000 {
				return fmt.Errorf("udp: read: %w", err)
			}
		case n == 0:
			s.count.empty.Add(1)
		default:
			s.count.reads.Add(1)
			s.count.received.Add(1)
			*a = Arrival{N: n, Segment: n, From: netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())}
			return nil
		}
	}
}

// Wait returns at once on this system. ReadNow waits up to a millisecond instead.
func (s *Socket) Wait() error { return nil }

// ReadNow is Read with a timeout of a millisecond, and reports whether it read a datagram.
func (s *Socket) ReadNow(b []byte, a *Arrival) (bool, error) {
	s.polling.Lock()
	defer s.polling.Unlock()
	if err := s.conn.SetReadDeadline(time.Now().Add(writeTimeout)); err != nil {
		return false, net.ErrClosed
	}
	err := s.Read(b, a)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// writeTimeout is the longest wait of a Write for room, because Go's sockets do not report a full buffer at once.
const writeTimeout = time.Millisecond

// Write sends datagrams of segment bytes each, the last of which may be shorter, to a peer: at most MaxSegments
// datagrams and MaxWrite bytes. It may wait for a millisecond. It returns the number of bytes sent, which is len(b)
// unless there is an error:
//
//   - ErrFull: no room for the rest.
//   - net.ErrClosed
//   - an error of the arguments
//
// Network errors are counted and not returned.
func (s *Socket) Write(to netip.AddrPort, b []byte, segment int) (int, error) {
	if to.Addr().Is4() != s.addr.Addr().Is4() {
		return 0, fmt.Errorf("udp: write: %v is not reached from %v: %w", to, s.addr, syscall.EINVAL)
	}
	if segment <= 0 || len(b) > MaxWrite || len(b) > segment*MaxSegments {
		return 0, fmt.Errorf("udp: write: %d bytes in datagrams of %d: 1 to %d datagrams, %d bytes at most: %w", len(b),
			segment, MaxSegments, MaxWrite, syscall.EINVAL)
	}
	if zone := s.addr.Addr().Zone(); zone != "" && to.Addr().IsLinkLocalUnicast() && to.Addr().Zone() == "" {
		to = netip.AddrPortFrom(to.Addr().WithZone(zone), to.Port())
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, net.ErrClosed
	}
	done := 0
	for done < len(b) {
		next := b[done:min(done+segment, len(b))]
		_, err := s.conn.WriteToUDPAddrPort(next, to)
		switch {
		case err == nil:
			s.count.writes.Add(1)
			s.count.sent.Add(1)
		case errors.Is(err, net.ErrClosed):
			return done, net.ErrClosed
		case errors.Is(err, os.ErrDeadlineExceeded) || full(err):
			s.count.full.Add(1)
			return done, ErrFull
		case tooLong(err):
			return done, err
		default:
			s.count.unreachable.Add(1)
		}
		done += len(next)
	}
	return done, nil
}

// WriteBuffers is Write of up to MaxBuffers buffers, which are split into datagrams as if they were one.
func (s *Socket) WriteBuffers(to netip.AddrPort, buffers [][]byte, segment int) (int, error) {
	if len(buffers) > MaxBuffers {
		return 0, fmt.Errorf("udp: write: %d buffers: %d at most: %w", len(buffers), MaxBuffers, syscall.EINVAL)
	}
	return s.Write(to, slices.Concat(buffers...), segment)
}

// WaitWrite waits a millisecond for room after ErrFull.
func (s *Socket) WaitWrite(long time.Duration) error {
	time.Sleep(min(writeTimeout, long))
	return nil
}

// Close closes the socket. Waiting Reads return net.ErrClosed.
func (s *Socket) Close() error {
	if err := s.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// holder returns a hint for finding the process that uses a port, which this system does not report.
func holder(netip.AddrPort) string {
	return "another program uses the port (find it with netstat): end it, or choose another address of this machine"
}

// Linger only yields on this system.
func (s *Socket) Linger(time.Duration) { Yield() }

// Yield lets other goroutines run.
func Yield() { runtime.Gosched() }
