// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

// narrow is a socket whose Writes accept given numbers of packets, and then fail.
type narrow struct {
	takes []int
	err   error // returned by incomplete Writes
	waits int
	ids   udp.Identification
	sent  [][]byte
}

func (n *narrow) Write(_ netip.AddrPort, b []byte, segment int) (int, error) {
	take := len(b)
	if len(n.takes) > 0 {
		take = min(n.takes[0]*segment, len(b))
		if len(n.takes) > 1 {
			n.takes = n.takes[1:]
		}
	}
	for at := 0; at < take; at += segment {
		n.sent = append(n.sent, append([]byte(nil), b[at:min(at+segment, take)]...))
	}
	if take < len(b) {
		if n.err == udp.ErrSealAgain {
			n.ids = udp.Zero
		}
		return take, n.err
	}
	return take, nil
}

func (n *narrow) WaitWrite(long time.Duration) error {
	n.waits++
	time.Sleep(min(10*time.Millisecond, long))
	return nil
}

func (n *narrow) Identification(netip.Addr) udp.Identification { return n.ids }

// flushed sends a number of packets of 100 bytes, the last of 60, over a link with a narrow socket.
func flushed(l *Link, packets int) {
	l.sent.reset()
	l.sent.begin(netip.MustParseAddr("192.0.2.2").As16(), 2)
	for i := range packets {
		n := 100
		if i == packets-1 {
			n = 60
		}
		p := l.sent.Packet(n)
		clear(p)
		p[0], p[bthLast] = 4, byte(i)
	}
	l.sent.end()
	l.sending.Lock()
	l.Flush()
}

const bthLast = 11 // the last byte of a BTH

func linkOver(to sender) *Link {
	return &Link{wire: &Wire{captures: &pcap.Captures{}}, to: to, headers: 28,
		own: packet.Endpoint{GID: netip.MustParseAddr("192.0.2.1").As16(), Port: packet.Port}}
}

// TestFullSocket: packets wait until the socket is writable and are sent once, in order, with a valid ICRC. Packets
// that time out are counted, and later ones do not wait again.
func TestFullSocket(t *testing.T) {
	for name, c := range map[string]struct {
		socket     narrow
		sent, full int
		unsendable int
		waits      int
		elapsed    time.Duration
	}{
		"room":                    {socket: narrow{}, sent: 10},
		"full for a moment":       {socket: narrow{takes: []int{0, 0, 0, 0, 0, 0, 10}, err: udp.ErrFull}, sent: 10, waits: 6},
		"a few packets at a time": {socket: narrow{takes: []int{3, 0, 1, 0, 1, 10}, err: udp.ErrFull}, sent: 10, waits: 5},
		"slow": {socket: narrow{takes: slices.Concat([]int{3}, make([]int, 90), []int{1}, make([]int, 90), []int{10}),
			err: udp.ErrFull}, sent: 10, waits: 182},
		"full until the timeout": {socket: narrow{takes: []int{4, 0}, err: udp.ErrFull}, sent: 4, full: 6, waits: 100,
			elapsed: writeTimeout},
		"closed": {socket: narrow{takes: []int{4, 0}, err: net.ErrClosed}, sent: 4},
		"wrong":  {socket: narrow{takes: []int{0}, err: syscall.EMSGSIZE}, unsendable: 10},
		"seal":   {socket: narrow{takes: []int{0, 10}, err: udp.ErrSealAgain, ids: udp.Counted}, sent: 10},
		"counts": {socket: narrow{ids: udp.Counted}, sent: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := c.socket
				l, start := linkOver(&s), time.Now()
				flushed(l, 10)
				if c.elapsed > 0 {
					assert.Equal(t, c.elapsed, time.Since(start))
				}
				if assert.Len(t, s.sent, c.sent); c.sent == 10 {
					assert.Len(t, s.sent[9], 60)
				}
				to := packet.Endpoint{GID: netip.MustParseAddr("192.0.2.2").As16(), Port: packet.Port}
				for i, p := range s.sent {
					want := uint16(0)
					if s.ids == udp.Counted {
						want = uint16(i)
					}
					id, ok := packet.Check(p, &l.own, &to, want)
					assert.True(t, ok && id == want)
					assert.EqualValues(t, i, p[bthLast])
				}
				assert.Equal(t, c.waits, s.waits)
				assert.EqualValues(t, c.sent, l.stats.sent.Load())
				assert.EqualValues(t, c.full, l.stats.full.Load())
				assert.EqualValues(t, c.unsendable, l.stats.unsendable.Load())
				if c.full == 0 {
					return
				}
				flushed(l, 5)
				assert.Equal(t, c.waits, s.waits, "no writer may wait while the socket is full")
				assert.EqualValues(t, c.full+5, l.stats.full.Load())
				s.takes = []int{5}
				flushed(l, 5)
				s.takes = []int{0, 5}
				flushed(l, 5)
				assert.Equal(t, c.waits+1, s.waits, "the socket has accepted some packets")
				assert.EqualValues(t, c.full+5, l.stats.full.Load())
			})
		})
	}
}

// TestLeft: packets written while others are being sent are left to the sending goroutine, link by link, and no writer
// waits.
func TestLeft(t *testing.T) {
	w := &Wire{captures: &pcap.Captures{}, links: map[[16]byte]*Link{}, host: noHost{}}
	var sockets [2]narrow
	var links [2]*Link
	write := func(i int) {
		l := links[i]
		to := message.Address{GID: netip.MustParseAddr("192.0.2.2").As16()}
		assert.True(t, l.start(&to, 2))
		clear(l.out.Packet(60))
		l.out.end()
	}
	for i := range links {
		links[i] = linkOver(&sockets[i])
		links[i].wire = w
		write(i)
	}
	first, _ := w.Take()
	assert.Same(t, links[0], first)
	assert.True(t, w.IsFilled(), "the second link's packet waits")
	write(0)
	second, _ := w.Take()
	assert.Same(t, links[1], second, "the first link's packets are left")
	second.Flush()
	none, crowded := w.Take()
	assert.Nil(t, none)
	assert.Nil(t, crowded)
	for range crowd / 60 {
		write(0)
	}
	_, crowded = w.Take()
	assert.Same(t, links[0], crowded)
	first.Flush()
	assert.True(t, w.IsFilled(), "the sending goroutine checks again")
	again, _ := w.Take()
	assert.Same(t, links[0], again)
	assert.False(t, w.IsFilled())
	again.Flush()
	assert.Len(t, sockets[0].sent, 2+crowd/60)
	assert.Len(t, sockets[1].sent, 1)
}

// noHost is a Host that does nothing.
type noHost struct{ Host }

func (noHost) Filled() {}
