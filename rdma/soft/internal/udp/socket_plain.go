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
	// A system that limits buffers refuses more than its limit.
	for set := range 2 {
		for size := o.Buffer; size >= 64<<10; size /= 2 {
			if set == 0 && conn.SetReadBuffer(size) == nil || set == 1 && conn.SetWriteBuffer(size) == nil {
				break
			}
		}
	}
	return s
}

// Join opens a socket that receives what is sent to a multicast group, over the interface of this socket's address and
// to its port. Close leaves the group. To send to the group, Write to it by the socket that Open returned.
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

// Addr is the address and port that the socket is bound to.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Buffer returns the bytes that the system's receive and send buffer hold: not known here, 0.
func (s *Socket) Buffer() (receive, send int) { return 0, 0 }

// Member is the socket's number in the group of Options.Share, which there is not here: 0.
func (s *Socket) Member() int { return 0 }

// IsShared says whether other processes may have the address, too: not here.
func (s *Socket) IsShared() bool { return false }

// Claim makes the socket the one that has a service, which here it is.
func (s *Socket) Claim(uint64) (*Claim, error) { return nil, nil }

// Claimed returns the member that has claimed a service: here there is none.
func (s *Socket) Claimed(uint64) (member int, ok bool) { return 0, false }

// Secret returns what only members know: here there are none.
func (s *Socket) Secret() (secret [16]byte) { return secret }

// Claimant says which process has claimed a service: here none.
func (s *Socket) Claimant(uint64) string { return "" }

// Claim is a service that a socket has claimed.
type Claim struct{}

// Close gives it up.
func (*Claim) Close() {}

// Counters may be asked for at any time.
func (s *Socket) Counters() Counters { return s.count.values() }

// MTU is how many bytes of payload a datagram to an address may have: here, what the interface of the socket's address
// allows.
func (s *Socket) MTU(netip.Addr) (int, error) { return s.InterfaceMTU() }

// Identification says what one Write's datagrams to an address have as their Identification, where that address is of
// IPv4.
func (s *Socket) Identification(netip.Addr) Identification { return identification }

// Read waits for datagrams and copies them to b, which should have MaxRead bytes: here, one. After Close, its error is
// net.ErrClosed; errors of the network are counted and are not returned.
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
			return err // of ReadNow
		case err != nil:
			// Windows reports here that an earlier datagram found no port, or that one was longer than b.
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

// Wait waits until there is something to read, on Linux. Here it does not wait: ReadNow does, for a millisecond.
func (s *Socket) Wait() error { return nil }

// ReadNow is Read that waits for a millisecond at most: it says whether there was something.
func (s *Socket) ReadNow(b []byte, a *Arrival) (bool, error) {
	s.polling.Lock()
	defer s.polling.Unlock()
	if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return false, net.ErrClosed
	}
	err := s.Read(b, a)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// patience is how long a Write may wait for room: Go's sockets cannot say at once that there is none.
const patience = time.Millisecond

// Write sends datagrams of so many bytes each, the last of which may be shorter, to a peer: MaxSegments and MaxWrite at
// most. Here it may wait for a millisecond. It returns how many bytes were sent, all of them if there is no error:
//
//   - ErrFull: no room for the rest.
//   - net.ErrClosed
//   - an error of the arguments
//
// What the network does with datagrams is no error, it is counted.
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
	if err := s.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
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

// WriteBuffers is Write of several buffers, MaxBuffers at most, one behind the other: datagrams are cut from them as
// from a single one.
func (s *Socket) WriteBuffers(to netip.AddrPort, buffers [][]byte, segment int) (int, error) {
	if len(buffers) > MaxBuffers {
		return 0, fmt.Errorf("udp: write: %d buffers: %d at most: %w", len(buffers), MaxBuffers, syscall.EINVAL)
	}
	return s.Write(to, slices.Concat(buffers...), segment)
}

// WaitWrite waits until there may be room to send, after ErrFull: a millisecond.
func (s *Socket) WaitWrite(long time.Duration) error {
	time.Sleep(min(patience, long))
	return nil
}

// Close closes the socket; Reads that wait end with net.ErrClosed.
func (s *Socket) Close() error {
	if err := s.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// holder says what to do where something has the port of an address. What has it, other programs tell.
func holder(netip.AddrPort) string {
	return "another program has the port (netstat tells which): end it, or choose another address of this machine"
}

// Linger may wait until there is something to read, for so long at most; here it does not.
func (s *Socket) Linger(time.Duration) { Yield() }

// Yield lets others run, if some want to.
func Yield() { runtime.Gosched() }
