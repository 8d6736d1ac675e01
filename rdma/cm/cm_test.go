// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

func TestAddressesSurviveC(t *testing.T) {
	for _, text := range []string{"10.77.0.1:7471", "[fd77::1]:1", "0.0.0.0:0", "[::]:65535", "[fe80::1%7]:9"} {
		want := netip.MustParseAddrPort(text)
		assert.Equal(t, want, addrPort(header(sockaddr(want))))
	}
	assert.Equal(t, []byte{2, 0, 0x1d, 0x2f, 10, 77, 0, 1},
		copyBytes(address(sockaddr(netip.MustParseAddrPort("10.77.0.1:7471"))), 8),
		"as C has it on a little-endian machine")
	assert.False(t, addrPort(nil).IsValid())
	assert.False(t, addrPort(&rdmacm.Sockaddr{SAFamily: rdmacm.AF_IB}).IsValid())
}

func TestHello(t *testing.T) {
	h := hello{ring: 1<<40 + 5, rkey: 77, size: 1 << 20, depth: 64}
	padded := append(h.marshal(), make([]byte, 56-helloSize)...)
	got, err := parseHello(padded)
	require.NoError(t, err)
	assert.Equal(t, h, got)
	for name, bad := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 56),
		"short": h.marshal()[:helloSize-1]} {
		_, err := parseHello(bad)
		assert.ErrorIs(t, err, errNoStream, name)
	}
	padded[5]++
	_, err = parseHello(padded)
	assert.ErrorContains(t, err, "version 2")
	for _, bad := range []hello{{size: 1 << 20, depth: 7}, {size: minBuffer - 1, depth: 64},
		{size: maxBuffer + 1, depth: 64}} {
		_, err := parseHello(bad.marshal())
		assert.ErrorIs(t, err, errNoStream)
	}
}

func TestEventErrorsAreErrnos(t *testing.T) {
	for _, c := range []struct {
		event  rdmacm.CMEventType
		status int
		errno  syscall.Errno
		says   string
	}{
		{rdmacm.CM_EVENT_REJECTED, 8, syscall.ECONNREFUSED, "nobody listens there (status 8)"},
		{rdmacm.CM_EVENT_REJECTED, 28, syscall.ECONNREFUSED, "program rejected it"},
		{rdmacm.CM_EVENT_UNREACHABLE, -110, syscall.ETIMEDOUT, "does not answer"},
		{rdmacm.CM_EVENT_UNREACHABLE, 0, syscall.ETIMEDOUT, "does not answer"},
		{rdmacm.CM_EVENT_ADDR_ERROR, -19, syscall.ENODEV, "no RDMA device"},
		{rdmacm.CM_EVENT_DEVICE_REMOVAL, 0, syscall.ENODEV, "taken away"},
		{rdmacm.CM_EVENT_CONNECT_ERROR, -524, syscall.Errno(524), "not supported by the kernel or its driver ("},
	} {
		err := error(&EventError{Verb: "rdma_connect", Object: "ID", Event: Event{Type: c.event, Status: c.status}})
		assert.ErrorIs(t, err, c.errno)
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, c.event.String())
		var timeout interface{ Timeout() bool }
		require.True(t, errors.As(err, &timeout))
		assert.Equal(t, c.errno == syscall.ETIMEDOUT, timeout.Timeout())
	}
}

func TestWhatStandsInAChannelsWay(t *testing.T) {
	assert.Equal(t, "ID 1 has to be closed or migrated first", mustClose("ID 1", 0))
	assert.Equal(t, "ID 1 and one more ID have to be closed or migrated first", mustClose("ID 1", 1))
	assert.Equal(t, "ID 1 and 2 more IDs have to be closed or migrated first", mustClose("ID 1", 2))

	f, err := soft.New(soft.Options{})
	keep(t, f, err)
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	err = ch.Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "ID has to be closed or migrated first")
}

func TestConfig(t *testing.T) {
	c, err := (*Config)(nil).complete()
	require.NoError(t, err)
	assert.Equal(t, Config{Backend: runtime.Native, Buffer: DefaultBuffer, HandshakeTimeout: DefaultHandshakeTimeout,
		Linger: DefaultLinger, AckTimeout: DefaultAckTimeout, Backlog: DefaultBacklog}, c)
	c, err = (&Config{Buffer: minBuffer + 1}).complete()
	require.NoError(t, err)
	assert.Equal(t, minBuffer+64, c.Buffer, "control messages behind it stay in their places")
	for _, bad := range []Config{{Buffer: 1}, {Buffer: maxBuffer + 1}, {AckTimeout: 32}, {Linger: -1}, {Heartbeat: -1},
		{BusyPoll: -1}, {Backlog: -1}} {
		_, err := bad.complete()
		assert.Error(t, err, "%+v", bad)
	}
}

func TestDeadline(t *testing.T) {
	came := make(chan bool, 8)
	d := newDeadline()
	d.came = func() { came <- true }
	d.set(time.Now().Add(time.Hour))
	assert.False(t, isDone(d.passed()))
	d.set(time.Now().Add(-time.Second))
	assert.True(t, isDone(d.passed()))
	<-came
	d.set(time.Now().Add(5 * time.Millisecond))
	assert.False(t, isDone(d.passed()), "moved again")
	<-d.passed()
	<-came
	d.set(time.Time{})
	assert.False(t, isDone(d.passed()))
}

// half is one side of a stream as far as its numbers go: what it sends goes into the other's queue, in order.
type half struct {
	stream
	in   []message
	data int // still to be written
	most int // in one Write
}

type message struct {
	bytes   int // of data; or else
	control *control
}

// TestCreditsNeverRunOut has two sides send, receive, read and hear of their sends in any order. No side may send to a
// peer that has no receive left or no room in its ring, and as long as somebody has something to write, somebody can do
// something.
func TestCreditsNeverRunOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sides [2]half
		depth := rapid.IntRange(8, 64).Draw(t, "depth")
		for i := range sides {
			ring := rapid.SampledFrom([]int{minBuffer, 5000, 1 << 16}).Draw(t, "ring")
			sides[i].ring, sides[i].staging = make([]byte, ring),
				make([]byte, rapid.SampledFrom([]int{minBuffer, 5000, 1 << 16}).Draw(t, "staging"))
			sides[i].most = rapid.SampledFrom([]int{16, 512, 1 << 18}).Draw(t, "most")
			sides[i].data = rapid.IntRange(0, 400*min(sides[i].most, 1<<10)).Draw(t, "data")
		}
		for i := range sides {
			sides[i].peer = hello{size: uint32(len(sides[1-i].ring)), depth: uint16(depth)}
		}
		var signals [2][]uint64
		for step := 0; ; step++ {
			moved := false
			order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "order")
			for _, k := range order[:rapid.IntRange(1, 8).Draw(t, "some")] {
				moved = act(t, &sides, &signals, k%2, k/2, depth) || moved
			}
			if moved {
				continue
			}
			for k := range 8 { // nothing of those: of all
				moved = act(t, &sides, &signals, k%2, k/2, depth) || moved
			}
			if !moved {
				break
			}
		}
		for i := range sides {
			if sides[i].data != 0 || sides[i].arrived != sides[i].read || len(sides[i].in) != 0 {
				t.Fatalf("stuck: side %d has %d bytes left to write and %d to read", i, sides[i].data,
					sides[i].arrived-sides[i].read)
			}
		}
	})
}

// act does one thing on one side, if it can.
func act(t *rapid.T, sides *[2]half, signals *[2][]uint64, i, what, depth int) bool {
	s, other := &sides[i], &sides[1-i]
	send := func(m message, signaled bool) {
		if len(other.in) >= depth {
			t.Fatalf("side %d sends to a peer without a receive", i)
		}
		if signaled || s.messages%signalEvery == signalEvery-1 {
			signals[i] = append(signals[i], s.messages)
			s.unsignaled = 0
		}
		s.behind[s.messages%sendDepth] = s.staged
		s.messages++
		other.in = append(other.in, m)
	}
	tell := func() {
		if s.must(0, uint64(depth/2)) {
			send(message{control: &control{read: s.read, handled: s.handled}}, false)
			s.toldRead, s.toldHand = s.read, s.handled
		}
	}
	switch what {
	case 0: // write
		n := s.room(min(s.data, s.most))
		if n == 0 {
			return false
		}
		if s.sent+uint64(n)-other.read > uint64(len(other.ring)) {
			t.Fatalf("side %d overruns the ring", i)
		}
		s.staged += uint64(n)
		s.unsignaled += uint64(n)
		send(message{bytes: n}, s.unsignaled >= uint64(len(s.staging))/stagingParts)
		s.sent += uint64(n)
		s.data -= n
	case 1: // receive
		if len(s.in) == 0 {
			return false
		}
		m := s.in[0]
		s.in = s.in[1:]
		if m.control != nil {
			s.taken, s.peerHandled = max(s.taken, m.control.read), max(s.peerHandled, m.control.handled)
		}
		s.arrived += uint64(m.bytes)
		s.handled++
		tell()
	case 2: // read
		if s.arrived == s.read {
			return false
		}
		s.read += rapid.Uint64Range(1, s.arrived-s.read).Draw(t, "n")
		tell()
	case 3: // a send has ended, which may be before or after the peer received it
		if len(signals[i]) == 0 {
			return false
		}
		s.sendDone(signals[i][0])
		signals[i] = signals[i][1:]
		tell()
	}
	return true
}
