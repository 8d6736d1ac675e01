// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHello(t *testing.T) {
	h := hello{ring: 1<<40 + 5, rkey: 77, size: 1 << 20, depth: 64}
	padded := append(h.marshal(), make([]byte, 56-helloSize)...)
	for _, b := range [][]byte{padded, padded[:helloSize]} { // of a version that does not fetch
		got, err := parseHello(b)
		require.NoError(t, err)
		assert.Equal(t, h, got)
	}
	fetches := h
	fetches.fetches = true
	got, err := parseHello(fetches.marshal())
	require.NoError(t, err)
	assert.Equal(t, fetches, got)
	for name, bad := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 56),
		"short": h.marshal()[:helloSize-1]} {
		_, err := parseHello(bad)
		assert.ErrorIs(t, err, errNoStream, name)
	}
	padded[5]++
	_, err = parseHello(padded)
	assert.ErrorContains(t, err, "version 2")
	for _, bad := range []hello{{size: 1 << 20, depth: 7}, {size: MinBuffer - 1, depth: 64},
		{size: MaxBuffer + 1, depth: 64}} {
		_, err := parseHello(bad.marshal())
		assert.ErrorIs(t, err, errNoStream)
	}
}

// half models one side of a stream by its counters. Its messages go into the other side's queue, in order.
type half struct {
	Stream
	in    []message
	data  int // still to be written
	limit int // in one Write
	lends bool
}

type message struct {
	bytes   int // of data; or else
	control *control
}

// TestCreditsNeverRunOut makes two sides send, receive, fetch, read and complete sends in random order. No side may
// send to a peer without a free receive or without room in its ring, and while a side has data to write, at least one
// side must be able to proceed.
func TestCreditsNeverRunOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sides [2]half
		depth := rapid.IntRange(8, 64).Draw(t, "depth")
		sizes, mosts := []int{MinBuffer, 5000, 1 << 16, 1 << 18}, []int{16, 512, 1 << 18}
		if rapid.Bool().Draw(t, "large") { // limit smaller pieces are not offered
			sizes, mosts = []int{1 << 18, 1<<18 + 5000}, []int{1 << 18, 1 << 20}
		}
		for i := range sides {
			memory := func(what string) []byte { return make([]byte, rapid.SampledFrom(sizes).Draw(t, what)) }
			sides[i].ring, sides[i].staging = memory("ring"), memory("staging")
			sides[i].limit = rapid.SampledFrom(mosts).Draw(t, "most")
			sides[i].lends = rapid.Bool().Draw(t, "lends")
			sides[i].data = rapid.IntRange(0, 400).Draw(t, "data") * min(sides[i].limit, sizes[0]/4)
		}
		for i := range sides {
			sides[i].parts, sides[i].Reads = stagingParts, Reads{1, 1}
			sides[i].peer = hello{size: uint32(len(sides[1-i].ring)), depth: uint16(depth),
				fetches: rapid.Bool().Draw(t, "fetches")}
			sides[i].agree()
			// counters of messages and offers overflow their fields of 31 and 32 bits
			begin := rapid.SampledFrom([]uint64{0, fetchBit - 1, 1<<32 - 1}).Draw(t, "begin")
			from, to := &sides[i], &sides[1-i]
			from.Messages, from.Completed, from.peerHandled, from.peerFetchedTotal = begin, begin, begin, uint32(begin)
			to.handled, to.reportedHandled, to.Fetched, to.reportedFetched = begin, begin, uint32(begin), uint32(begin)
		}
		var signals [2][]uint64
		for step := 0; ; step++ {
			moved := false
			order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "order")
			for _, k := range order[:rapid.IntRange(1, 10).Draw(t, "some")] {
				moved = act(t, &sides, &signals, k%2, k/2, depth) || moved
			}
			if moved {
				continue
			}
			for k := range 10 {
				moved = act(t, &sides, &signals, k%2, k/2, depth) || moved
			}
			if !moved {
				break
			}
		}
		for i := range sides {
			if sides[i].data != 0 || sides[i].arrived != sides[i].read || len(sides[i].in) != 0 ||
				sides[i].ownOffers.n != 0 {
				t.Fatalf("stuck: side %d has %d bytes left to write and %d to read", i, sides[i].data,
					sides[i].arrived-sides[i].read)
			}
		}
	})
}

// act performs one action on one side, if possible.
func act(t *rapid.T, sides *[2]half, signals *[2][]uint64, i, what, depth int) bool {
	s, other := &sides[i], &sides[1-i]
	send := func(m message, signaled bool) {
		if len(other.in) >= depth {
			t.Fatalf("side %d sends to a peer without a receive", i)
		}
		if signaled || s.Messages%signalEvery == signalEvery-1 {
			signals[i] = append(signals[i], s.sendID())
			s.unsignaled = 0
		}
		s.behind[s.Messages%sendDepth] = s.staged
		s.Messages++
		other.in = append(other.in, m)
	}
	tell := func() {
		if s.mustReport(0, uint64(depth/2)) {
			send(message{control: &control{read: s.read, handled: s.handled, fetched: s.Fetched}}, false)
			s.reportedRead, s.reportedHandled, s.reportedFetched = s.read, s.handled, s.Fetched
		}
	}
	switch what {
	case 0: // write
		lent := s.lends && rapid.Bool().Draw(t, "lent")
		n := s.Room(min(s.data, s.limit), lent)
		if n == 0 {
			return false
		}
		if s.sent+uint64(n)-other.read > uint64(len(other.ring)) {
			t.Fatalf("side %d overruns the ring", i)
		}
		p := Piece{Staged: n, More: n < min(s.data, s.limit)}
		s.lastOffered = !lent && s.mayOffer(p)
		switch {
		case lent:
			send(message{bytes: n}, true)
		case s.lastOffered:
			s.ownOffers.add(span{n: uint32(n), from: s.staged})
			s.staged += uint64(n)
			send(message{control: &control{read: s.read, handled: s.handled, fetched: s.Fetched,
				offer: &span{n: uint32(n)}}}, true)
			s.reportedRead, s.reportedHandled, s.reportedFetched = s.read, s.handled, s.Fetched
		default:
			s.staged += uint64(n)
			s.unsignaled += uint64(n)
			send(message{bytes: n}, s.mustSignal(p))
		}
		if own := uint64(len(s.staging)); s.staged-s.unstaged > own ||
			s.ownOffers.n > 0 && s.staged-s.ownOffers.all[0].from > own {
			t.Fatalf("side %d overwrites data in flight", i)
		}
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
			if err := s.peerFetched(m.control.fetched); err != nil {
				t.Fatal(err)
			}
			if o := m.control.offer; o != nil {
				if err := s.recordOffer(*o); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.arrive(uint64(m.bytes))
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
		s.SendDone(signals[i][0], false)
		signals[i] = signals[i][1:]
		tell()
	case 4: // a fetch begins, or ends
		switch {
		case s.reading > 0:
			s.fetchDone()
			tell()
		case s.peerOffers.n > 0 && s.mayPost():
			s.reading = 1
		default:
			return false
		}
	}
	return true
}
