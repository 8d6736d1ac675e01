// SPDX-License-Identifier: BSD-2-Clause

package device

import "github.com/goverbs/goverbs/generated/ibv"

// completion is one entry, and whose slot its poll gives back.
type completion struct {
	wc       ibv.WC
	tm       ibv.WCTMInfo
	sender   *qp // of a send
	receiver *recvQueue
	position uint32 // behind the request in its queue
	stamp    int64  // nanoseconds since the fabric was made
	wall     int64  // nanoseconds of wall clock
}

// freed collects the slots that completions give back, to free those of one queue at once.
type freed struct {
	sender   *qp
	receiver *recvQueue
	position uint32
	n        uint32
}

func (s *freed) add(e *completion) {
	if e.sender != s.sender || e.receiver != s.receiver {
		s.free()
		s.sender, s.receiver = e.sender, e.receiver
	}
	s.position = e.position
	s.n++
}

func (s *freed) free() {
	switch {
	case s.sender != nil:
		s.sender.retire(s.position)
	case s.receiver != nil:
		s.receiver.retire(s.position, s.n)
	}
	s.n = 0
}

// retire gives back the slot of a completion that was polled.
func (e *completion) retire() {
	switch {
	case e.sender != nil:
		e.sender.retire(e.position)
	case e.receiver != nil:
		e.receiver.retire(e.position, 1)
	}
}
