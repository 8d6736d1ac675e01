// SPDX-License-Identifier: BSD-2-Clause

package roce

import "github.com/goverbs/goverbs/rdma/soft/internal/udp"

// batch holds packets to be sent, in order. Consecutive packets of one size to one peer form a group, which is sent in
// one system call.
type batch struct {
	bytes  []byte
	groups []group
	to     toward // destination of the current message
	alone  bool   // the message's packets share no system call with others
	mark   int    // number of groups before the message
	size   int    // packets of the last group before the message
	open   bool   // a message was begun; if set at the next begin, its memory was unmapped
}

// toward is a destination: several processes may share an address, each with a range of queue pair numbers.
type toward struct {
	gid    [16]byte
	member uint8
}

// managerQP is the queue pair of the connection manager. Its messages contain the IDs that determine the process.
const managerQP = 1

// group is a run of packets of one size, except the last, which may be shorter.
type group struct {
	to      toward
	alone   bool
	segment int
	begin   int // offset in bytes
	end     int
	count   int // number of packets
}

func (b *batch) isEmpty() bool { return len(b.groups) == 0 }

func (b *batch) reset() { b.bytes, b.groups, b.open = b.bytes[:0], b.groups[:0], false }

// begin begins a message to a queue pair at an address.
func (b *batch) begin(to [16]byte, qpn uint32) {
	if b.open {
		b.cancel()
	}
	b.to, b.alone = toward{to, uint8(udp.MemberOfQP(qpn))}, qpn == managerQP
	b.open, b.mark, b.size = true, len(b.groups), 0
	if n := len(b.groups); n > 0 {
		b.size = b.groups[n-1].count
	}
}

// end ends the message.
func (b *batch) end() { b.open = false }

// cancel removes the packets of the current message, whose memory was found to be unmapped while they were written.
func (b *batch) cancel() {
	b.open = false
	b.groups = b.groups[:b.mark]
	if b.mark > 0 {
		g := &b.groups[b.mark-1]
		g.end = min(g.end, g.begin+b.size*g.segment)
		g.count = b.size
	}
	b.bytes = b.bytes[:0]
	if b.mark > 0 {
		b.bytes = b.bytes[:b.groups[b.mark-1].end]
	}
}

// Packet returns memory for a packet of n bytes.
func (b *batch) Packet(n int) []byte {
	at := len(b.bytes)
	if at+n <= cap(b.bytes) {
		b.bytes = b.bytes[:at+n]
	} else {
		b.bytes = append(b.bytes, make([]byte, n)...)
	}
	if k := len(b.groups); k > 0 {
		g := &b.groups[k-1]
		if !b.alone && !g.alone && g.to == b.to && n <= g.segment && g.end-g.begin == g.count*g.segment &&
			g.count < udp.MaxSegments && g.end-g.begin+n <= udp.MaxWrite {
			g.end, g.count = at+n, g.count+1
			return b.bytes[at:]
		}
	}
	g := group{to: b.to, alone: b.alone, segment: n, begin: at, end: at + n, count: 1}
	b.groups = append(b.groups, g)
	return b.bytes[at:]
}
