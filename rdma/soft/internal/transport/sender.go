// SPDX-License-Identifier: BSD-2-Clause

// Package transport implements the sequence numbers, window and retransmission state of connections: which of a
// sender's packets are in flight, and which a receiver accepts. It uses no memory of programs, no socket and no clock.
// It follows the InfiniBand specification, volume 1, chapter 9.
package transport

// Width and mask of packet sequence numbers.
const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// Next returns the PSN n packets after psn.
func Next(psn, n uint32) uint32 { return (psn + n) & psnMask }

// Distance returns how far psn is ahead of from. It is negative if psn is behind.
func Distance(psn, from uint32) int32 { return int32((psn-from)<<(32-psnBits)) >> (32 - psnBits) }

// message is a message that a sender has begun.
type message struct {
	psn     uint32 // PSN of its first packet
	packets uint32 // number of its packets, or of its response's
	asks    bool   // needs a response with data: a read, an atomic
	done    bool
}

func (m *message) end() uint32 { return Next(m.psn, m.packets) }

// Sender tracks the packets that a queue pair sends. Several messages may be in flight. Completed messages are taken
// from the front, in order. When a packet is lost, the sender goes back and retransmits it and all later ones.
type Sender struct {
	messages []message
	at       int    // index of the message being sent
	next     uint32 // next packet to send
	oldest   uint32 // oldest unacknowledged packet
	top      uint32 // one after the highest packet sent
	asking   int    // unfinished messages that need data

	window   uint32 // packets that may be in flight
	most     uint32 // maximum window
	grown    uint32 // packets acknowledged since the window grew
	slow     uint32 // slow start threshold: below it the window grows with every packet, above once per window
	recover  uint32 // until this packet is acknowledged, the window is not halved again
	losing   bool
	wentBack bool   // went back to the oldest packet, and no response arrived since
	backs    uint32 // number of times it went back
	unasked  uint32 // packets since the last acknowledgement request
}

// Windows, in packets.
const (
	least = 4
	start = 32

	readPackets = 16 // packets requested by a part of a read
)

// Reset starts with a PSN, no messages, and a maximum window.
func (s *Sender) Reset(psn, most uint32) {
	*s = Sender{messages: s.messages[:0], next: psn, oldest: psn, top: psn, window: min(start, most), most: most,
		slow: most}
}

// Len returns the number of messages not yet taken.
func (s *Sender) Len() int { return len(s.messages) }

// Asking returns the number of unfinished messages that need data.
func (s *Sender) Asking() int { return s.asking }

// UnderWay returns the next packet to send and the number of unacknowledged packets before it.
func (s *Sender) UnderWay() (next, packets uint32) { return s.next, uint32(Distance(s.next, s.oldest)) }

// Waits reports whether packets are in flight.
func (s *Sender) Waits() bool { return s.oldest != s.top }

// End returns the PSN of the next message.
func (s *Sender) End() uint32 {
	if n := len(s.messages); n > 0 {
		return s.messages[n-1].end()
	}
	return s.next
}

// Begin adds a message with a number of packets, at least one. If asks, its response carries data.
func (s *Sender) Begin(packets uint32, asks bool) {
	s.messages = append(s.messages, message{psn: s.End(), packets: packets, asks: asks})
	if asks {
		s.asking++
	}
}

// Done reports whether the first message has completed.
func (s *Sender) Done() bool { return len(s.messages) > 0 && s.messages[0].done }

// Take removes the first message, which has completed or failed.
func (s *Sender) Take() {
	m := &s.messages[0]
	if m.asks && !m.done {
		s.asking--
	}
	s.messages = s.messages[:copy(s.messages, s.messages[1:])]
	s.at = max(s.at-1, 0)
}

// Part is a run of packets of a message to send.
type Part struct {
	Message int    // index of the message among those not taken
	PSN     uint32 // PSN of the first packet
	First   uint32 // index of that packet in the message
	Packets uint32
	Last    bool // the message ends with it
	Full    bool // fills the window
}

// Next returns the next part to send, of at most most packets. It returns false if everything was sent or the window is
// full.
func (s *Sender) Next(most uint32) (p Part, ok bool) {
	for s.at < len(s.messages) && s.messages[s.at].end() == s.next {
		s.at++
	}
	if s.at == len(s.messages) {
		return p, false
	}
	under := uint32(Distance(s.next, s.oldest))
	if under >= s.window {
		return p, false
	}
	if s.again() {
		most = 1
	}
	m, room := &s.messages[s.at], s.window-under
	p = Part{Message: s.at, PSN: s.next, First: uint32(Distance(s.next, m.psn))}
	left := m.packets - p.First
	if m.asks { // a repeated read must not request more than the first time
		p.Packets = min(left, readPackets-p.First%readPackets)
		if room < p.Packets && under > 0 {
			return p, false
		}
	} else {
		if room < min(left, most, s.window/4) { // wait for room for a larger part
			return p, false
		}
		p.Packets = min(left, room, most)
	}
	p.Last, p.Full = p.First+p.Packets == m.packets, p.Packets >= room
	return p, true
}

// Sent records that a part was sent. It returns the number of retransmitted packets.
func (s *Sender) Sent(p Part) (again uint32) {
	again = min(uint32(max(Distance(s.top, p.PSN), 0)), p.Packets)
	s.next = Next(p.PSN, p.Packets)
	if Distance(s.next, s.top) > 0 {
		s.top = s.next
	}
	return again
}

// again reports whether the next packet is the one that the sender went back to. It is sent alone and requests an
// acknowledgement: if only the last of several packets did, any loss would cost another retry.
func (s *Sender) again() bool { return s.wentBack && s.next == s.oldest }

// Asks reports whether a part returned by Next should request an acknowledgement. more means that another part follows
// at once.
func (s *Sender) Asks(p Part, more bool) bool {
	s.unasked += p.Packets
	if more && !p.Full && s.unasked < s.window/4 && !s.again() {
		return false
	}
	s.unasked = 0
	return true
}

// covers reports whether a packet is in flight.
func (s *Sender) covers(psn uint32) bool {
	return Distance(psn, s.oldest) >= 0 && Distance(psn, s.top) < 0
}

// Acknowledge records that all packets before a PSN arrived, and reports whether that is new. If one of them needs
// data, its response was lost, and the sender goes back to it.
func (s *Sender) Acknowledge(before uint32) (news bool) {
	if Distance(before, s.top) > 0 {
		return false
	}
	n := Distance(before, s.oldest)
	if n <= 0 {
		return false
	}
	was := s.oldest
	for i := range s.messages {
		m := &s.messages[i]
		if m.done {
			continue
		}
		if Distance(before, m.psn) <= 0 {
			break
		}
		if m.asks {
			if Distance(m.psn, s.oldest) > 0 {
				s.oldest = m.psn
			}
			s.advanced(was)
			s.Missing()
			return s.oldest != was
		}
		if Distance(before, m.end()) < 0 {
			s.oldest = before
			break
		}
		m.done, s.oldest = true, m.end()
	}
	s.advanced(was)
	return s.oldest != was
}

// advanced is called after the oldest packet has changed.
func (s *Sender) advanced(was uint32) {
	n := uint32(Distance(s.oldest, was))
	if n == 0 {
		return
	}
	s.wentBack = false
	if Distance(s.next, s.oldest) < 0 { // packets to be retransmitted have arrived
		s.next = s.oldest
		s.locate()
	}
	if s.losing && Distance(s.oldest, s.recover) >= 0 {
		s.losing = false
	}
	if s.losing {
		return
	}
	if s.grown += n; s.window < s.slow {
		s.window = min(s.window+n, s.slow)
		s.grown = 0
	} else if s.grown >= s.window {
		s.window = min(s.window+1, s.most)
		s.grown = 0
	}
}

// Answer returns the message whose data arrived in a packet, and the packet's index in it. It returns false if the
// packet is not the next one expected.
func (s *Sender) Answer(psn uint32) (message int, packet uint32, ok bool) {
	if !s.covers(psn) {
		return 0, 0, false
	}
	for i := range s.messages {
		m := &s.messages[i]
		if m.done {
			continue
		}
		if Distance(psn, m.end()) >= 0 {
			if m.asks { // its response is missing
				s.Missing()
				return 0, 0, false
			}
			continue
		}
		if !m.asks {
			return 0, 0, false
		}
		s.Acknowledge(m.psn)
		if psn != s.oldest {
			s.Missing()
			return 0, 0, false
		}
		return i, uint32(Distance(psn, m.psn)), true
	}
	return 0, 0, false
}

// Answered records that the packet that Answer identified was processed.
func (s *Sender) Answered(message int) {
	was := s.oldest
	s.oldest = Next(s.oldest, 1)
	if m := &s.messages[message]; s.oldest == m.end() {
		m.done = true
		s.asking--
	}
	s.advanced(was)
}

// Missing makes the sender go back to the oldest packet, once, because it did not arrive.
func (s *Sender) Missing() (back bool) {
	if s.wentBack || s.oldest == s.top {
		return false
	}
	s.back()
	if !s.losing {
		s.losing, s.recover = true, s.top
		s.window = max(s.window/2, least)
		s.slow = s.window
	}
	return true
}

// Back makes the sender go back to the oldest packet after a timeout or an RNR delay. lost shrinks the window.
func (s *Sender) Back(lost bool) {
	s.back()
	if lost {
		s.losing, s.recover = true, s.top
		s.slow = max(s.window/2, least)
		s.window = least
	}
}

func (s *Sender) back() {
	s.next, s.wentBack, s.unasked = s.oldest, true, 0
	s.backs++
	s.locate()
}

// locate finds the message of the next packet.
func (s *Sender) locate() {
	for s.at = 0; s.at < len(s.messages) && Distance(s.next, s.messages[s.at].end()) >= 0; s.at++ {
	}
}

// Backs returns the number of times the sender went back since Reset.
func (s *Sender) Backs() uint32 { return s.backs }

// First returns the index of the oldest packet's message.
func (s *Sender) First() int {
	i := 0
	for i < len(s.messages)-1 && s.messages[i].done {
		i++
	}
	return i
}

// Oldest returns the oldest unacknowledged packet.
func (s *Sender) Oldest() uint32 { return s.oldest }

// Window returns the number of packets that may be in flight.
func (s *Sender) Window() uint32 { return s.window }

// Unreliable completes everything sent, on a transport without acknowledgements.
func (s *Sender) Unreliable() { s.Acknowledge(s.next) }
