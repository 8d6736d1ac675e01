// SPDX-License-Identifier: BSD-2-Clause

// Package transport counts packets of connections: which of a sender's are under way, and which one a receiver takes.
// It has no memory, no socket and no clock. The rules are those of the InfiniBand specification, volume 1, chapter 9.
package transport

// Bits of a packet sequence number, and their number.
const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// Next is a packet sequence number n after another one.
func Next(psn, n uint32) uint32 { return (psn + n) & psnMask }

// Distance is how far a packet sequence number is ahead of another one: negative if it is behind.
func Distance(psn, from uint32) int32 { return int32((psn-from)<<(32-psnBits)) >> (32 - psnBits) }

// message is one that a sender began.
type message struct {
	psn     uint32 // of its first packet
	packets uint32 // that it takes, or the answer to it
	asks    bool   // its answer is data, which must come: a read, an atomic
	done    bool
}

func (m *message) end() uint32 { return Next(m.psn, m.packets) }

// Sender counts the packets that a queue pair sends. It may have several messages under way. Those that are done are
// taken from the front, in their order. When a packet is missing it goes back to that one and sends it and all later
// ones again.
type Sender struct {
	messages []message
	at       int    // index of the message that is sent
	next     uint32 // packet that is sent next
	oldest   uint32 // packet that no answer came for
	top      uint32 // one after the last that was ever sent
	asking   int    // messages that ask and are not done

	window   uint32 // packets that may be under way
	most     uint32 // limit of window
	grown    uint32 // packets that were acknowledged since it grew
	slow     uint32 // below it, the window grows with every packet; above, once for each window of packets
	recover  uint32 // while a packet before it is missing, the window is not halved again
	losing   bool
	wentBack bool   // to the oldest packet, and nothing came since
	backs    uint32 // how often it went back
	unasked  uint32 // packets since one that asked for an acknowledgement
}

// Windows, in packets.
const (
	least = 4
	start = 32

	readPackets = 16 // that a part of a read asks for
)

// Reset begins with a packet sequence number, and no message. At most so many packets are under way.
func (s *Sender) Reset(psn, most uint32) {
	*s = Sender{messages: s.messages[:0], next: psn, oldest: psn, top: psn, window: min(start, most), most: most,
		slow: most}
}

// Len is how many messages were begun and not taken.
func (s *Sender) Len() int { return len(s.messages) }

// Asking is how many of them ask, and are not done.
func (s *Sender) Asking() int { return s.asking }

// UnderWay is the packet that is sent next, and how many before it no answer came for.
func (s *Sender) UnderWay() (next, packets uint32) { return s.next, uint32(Distance(s.next, s.oldest)) }

// Waits says whether packets are under way.
func (s *Sender) Waits() bool { return s.oldest != s.top }

// End is the packet sequence number of the next message.
func (s *Sender) End() uint32 {
	if n := len(s.messages); n > 0 {
		return s.messages[n-1].end()
	}
	return s.next
}

// Begin adds a message that takes so many packets, at least one. One that asks is answered with data.
func (s *Sender) Begin(packets uint32, asks bool) {
	s.messages = append(s.messages, message{psn: s.End(), packets: packets, asks: asks})
	if asks {
		s.asking++
	}
}

// Done says whether the first message is done.
func (s *Sender) Done() bool { return len(s.messages) > 0 && s.messages[0].done }

// Take takes the first message away: it is done, or has failed.
func (s *Sender) Take() {
	m := &s.messages[0]
	if m.asks && !m.done {
		s.asking--
	}
	s.messages = s.messages[:copy(s.messages, s.messages[1:])]
	s.at = max(s.at-1, 0)
}

// Part is a run of packets of a message to be sent.
type Part struct {
	Message int    // index of the message, from the first one that was not taken
	PSN     uint32 // of the first packet
	First   uint32 // which packet of the message that is, counted from 0
	Packets uint32
	Last    bool // the message ends with it
	Full    bool // no more packets may be under way behind it
}

// Next is what is to be sent next, at most so many packets, or false: all was sent, or no more may be under way.
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
	if m.asks { // a read that is asked for again must not ask for more than the first time
		p.Packets = min(left, readPackets-p.First%readPackets)
		if room < p.Packets && under > 0 {
			return p, false
		}
	} else {
		if room < min(left, most, s.window/4) { // better to send more of it later
			return p, false
		}
		p.Packets = min(left, room, most)
	}
	p.Last, p.Full = p.First+p.Packets == m.packets, p.Packets >= room
	return p, true
}

// Sent says that a part was sent. It returns how many of its packets had been sent before.
func (s *Sender) Sent(p Part) (again uint32) {
	again = min(uint32(max(Distance(s.top, p.PSN), 0)), p.Packets)
	s.next = Next(p.PSN, p.Packets)
	if Distance(s.next, s.top) > 0 {
		s.top = s.next
	}
	return again
}

// again says whether the packet that is sent next is the one that the sender went back to. It goes alone and asks: if
// the receiver had only the last one of several to answer, the loss of any would cost another retry.
func (s *Sender) again() bool { return s.wentBack && s.next == s.oldest }

// Asks says whether a part, which Next gave, is to ask for an acknowledgement. More says that another part follows at
// once.
func (s *Sender) Asks(p Part, more bool) bool {
	s.unasked += p.Packets
	if more && !p.Full && s.unasked < s.window/4 && !s.again() {
		return false
	}
	s.unasked = 0
	return true
}

// covers says whether a packet is under way.
func (s *Sender) covers(psn uint32) bool {
	return Distance(psn, s.oldest) >= 0 && Distance(psn, s.top) < 0
}

// Acknowledge notes that all packets before one arrived. It says whether that is news. Where one of them asks, its
// answer was lost: the sender goes back to it.
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

// advanced is called when the oldest packet is another one than before.
func (s *Sender) advanced(was uint32) {
	n := uint32(Distance(s.oldest, was))
	if n == 0 {
		return
	}
	s.wentBack = false
	if Distance(s.next, s.oldest) < 0 { // what was to be sent again has arrived
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

// Answer notes that the packet with a number brought a part of what a message asks for, and says which: the message,
// and the number of the packet in it. False is an answer that is not the next one.
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
			if m.asks { // its answer is missing
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

// Answered notes that the packet that Answer told of is taken.
func (s *Sender) Answered(message int) {
	was := s.oldest
	s.oldest = Next(s.oldest, 1)
	if m := &s.messages[message]; s.oldest == m.end() {
		m.done = true
		s.asking--
	}
	s.advanced(was)
}

// Missing says that the oldest packet did not arrive: the sender goes back to it, once.
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

// Back lets the sender go back to the oldest packet: the time for an answer is over, or the receiver has become ready.
// Lost says that the window is to be small.
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

// locate finds the message that the next packet is of.
func (s *Sender) locate() {
	for s.at = 0; s.at < len(s.messages) && Distance(s.next, s.messages[s.at].end()) >= 0; s.at++ {
	}
}

// Backs counts how often the sender went back to a packet, since Reset.
func (s *Sender) Backs() uint32 { return s.backs }

// First is the index of the message that the oldest packet is of.
func (s *Sender) First() int {
	i := 0
	for i < len(s.messages)-1 && s.messages[i].done {
		i++
	}
	return i
}

// Oldest is the packet that no answer came for.
func (s *Sender) Oldest() uint32 { return s.oldest }

// Window is how many packets may be under way.
func (s *Sender) Window() uint32 { return s.window }

// Unreliable notes that nothing is answered: what was sent is done.
func (s *Sender) Unreliable() { s.Acknowledge(s.next) }
