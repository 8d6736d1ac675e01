// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// sender is the progress of sending. Numbers of bytes and messages count from the beginning.
type sender struct {
	there   place  // the memory that the peer has lent
	written uint32 // bytes of it

	posted    uint64 // messages
	completed uint64 // messages whose send has completed
	given     uint64 // bytes of the program in posted messages, and in
	delivered uint64 // messages whose send has completed
	ends      [sendDepth]uint64
	staged    uint64 // bytes that were copied into staging
	unstaged  uint64 // bytes of staging that are free again
	unsignal  uint64 // bytes that were staged since the last signalled send
	behind    [sendDepth]uint64

	// A client counts the messages for which the server may have no receive yet, see mayFlood.
	asked     uint64 // messages up to the last question, or 0
	answered  uint64 // messages up to the last question that the server has answered
	questions int    // of the peer that are to be answered
	selected  uint16 // by the last of them
}

// Slots of the send queue: data leaves some to commands, so that both ends can always lend memory and answer.
const keptForCommands = 4

// valkey-server has receives for 1,024 messages, and posts each again when it comes to handle the message. It accepts
// connections with rnr_retry_count = 0, so a client whose small messages outrun these receives, while the server is
// busy with a long command, would lose the connection. The server answers getServerFeature in its turn: then it has
// posted the receives of all messages before. A client sends no more messages than these without an answer. The peers
// of a server may wait for its receives (rnr_retry_count = 7 of clients in C and of this package), and take no
// questions.
const (
	askEvery     = 256
	mostData     = 960
	mostUnderWay = 1000
	endlessRetry = 7
)

// mayFlood reports whether a client may send one more message, when it may have so many without an answer.
func (c *Conn) mayFlood(most uint64) bool { return c.server || c.posted-c.answered < most }

// maySay reports whether a command may be sent now.
func (c *Conn) maySay() bool { return c.posted-c.completed < sendDepth && c.mayFlood(mostUnderWay) }

// room returns how many of n bytes may be sent now, in one message. It returns 0 rather than send small pieces of them
// because staging is nearly full: half of it becomes free soon.
func (c *Conn) room(n int) int {
	n = min(n, maxPiece, int(c.there.length-c.written))
	if n == 0 || c.posted-c.completed+keptForCommands >= sendDepth || !c.mayFlood(mostData) {
		return 0
	}
	if n <= c.inline {
		return n
	}
	if stagingSize-(c.staged-c.unstaged) < uint64(n) {
		return 0
	}
	return min(n, stagingSize-int(c.staged%stagingSize)) // in one piece of the ring
}

// postData sends as many bytes as there is room for. The caller holds mu.
func (c *Conn) postData(p []byte) error {
	c.sends.Reset()
	imm := ibv.ToBE32(uint32(len(p)))
	w := c.sends.WriteImm(c.posted, c.there.address+uint64(c.written), c.there.key, imm)
	if len(p) <= c.inline {
		w.Inline(p)
	} else {
		at := c.staged % stagingSize
		copy(c.staging[at:], p)
		w.Add(c.ownMR.SGE(stagingAt+at, uint32(len(p))))
		c.staged += uint64(len(p))
		c.unsignal += uint64(len(p))
	}
	c.given += uint64(len(p))
	if err := c.post(w, c.unsignal >= maxPiece); err != nil {
		c.given -= uint64(len(p))
		return err
	}
	c.written += uint32(len(p))
	c.askServer()
	return nil
}

// say sends a command. The caller holds mu.
func (c *Conn) say(what command, signaled bool) error {
	b := what.marshal()
	c.sends.Reset()
	w := c.sends.Send(c.posted)
	if len(b) <= c.inline {
		w.Inline(b[:])
	} else {
		at := commandsAt + c.posted%sendDepth*commandSize
		copy(c.own.Bytes()[at:], b[:])
		w.Add(c.ownMR.SGE(at, commandSize))
	}
	return c.post(w, signaled)
}

// sayIf sends a command if there is a slot, and reports whether it did. The caller holds mu.
func (c *Conn) sayIf(may bool, what command) bool {
	if !may || c.err != nil || c.gone {
		return false
	}
	if err := c.say(what, false); err != nil {
		c.fail(err)
		return false
	}
	return true
}

// post posts the request in the batch.
func (c *Conn) post(w rdma.SendRequest, signaled bool) error {
	if signaled || c.posted%signalEvery == signalEvery-1 {
		w.Signaled()
		c.unsignal = 0
	}
	c.behind[c.posted%sendDepth], c.ends[c.posted%sendDepth] = c.staged, c.given
	if _, err := c.qp.PostSend(c.sends); err != nil {
		return err
	}
	c.posted++
	return nil
}

// sent records that sends have completed, up to the one with the number.
func (c *Conn) sent(number uint64) {
	c.unstaged = c.behind[number%sendDepth]
	c.completed, c.delivered = number+1, c.ends[number%sendDepth]
}

// askServer asks the server, now and then, a question that it answers after all messages before.
func (c *Conn) askServer() {
	if c.server || c.asked > c.answered || c.posted-c.answered < askEvery {
		return
	}
	if c.sayIf(c.maySay(), command{opcode: getServerFeature}) {
		c.asked = c.posted
	}
}

// handleCommand handles a command of the peer. The caller holds mu.
func (c *Conn) handleCommand(what command) error {
	switch what.opcode {
	case registerXferMemory:
		c.there, c.written = what.place, 0
	case getServerFeature:
		switch {
		case c.server:
			c.questions, c.selected = c.questions+1, what.selected
		case c.asked <= c.answered:
			return fmt.Errorf("%w: it answers what was not asked", ErrProtocol)
		default:
			c.answered = c.asked
		}
	case setClientFeature:
		if !c.server || what.features != 0 {
			return fmt.Errorf("%w: it sets features %#x, and there are none", ErrProtocol, what.features)
		}
	}
	return nil
}

// tell sends the peer the notifications that it waits for, as far as there are slots. The caller holds mu.
func (c *Conn) tell() {
	if c.mayLend(uint64(c.ring.Len())) && c.sayIf(c.maySay(), command{opcode: registerXferMemory, place: c.next()}) {
		c.lent++
	}
	for c.questions > 0 && c.sayIf(c.maySay(), command{opcode: getServerFeature, selected: c.selected}) {
		c.questions--
	}
	c.askServer()
}
