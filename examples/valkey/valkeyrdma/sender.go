// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// sender counts the progress of sending since the start of the connection.
type sender struct {
	peerMemory place  // the memory that the peer has granted
	written    uint32 // bytes written to it

	posted     uint64 // messages
	completed  uint64 // messages whose send has completed
	accepted   uint64 // bytes of user data in posted messages
	delivered  uint64 // bytes of user data in messages whose send has completed
	ends       [sendDepth]uint64
	staged     uint64 // bytes copied to staging
	unstaged   uint64 // bytes of staging freed
	unsignaled uint64 // bytes staged since the last signaled send
	stagedAt   [sendDepth]uint64

	// A client counts the messages for which the server may have no receive. See hasCredit.
	requested uint64 // messages up to the last getServerFeature, or 0
	answered  uint64 // messages up to the last getServerFeature that the server has answered
	requests  int    // requests of the peer that need a reply
	selected  uint16 // value of the last of them
}

// Slots of the send queue that are reserved for commands, so that both ends can always grant memory and reply.
const reservedForCommands = 4

// valkey-server has 1,024 receives and reposts each when it handles the message. It accepts connections with
// rnr_retry_count = 0, so a client would lose the connection if it sent more messages while the server executes a long
// command. The server handles getServerFeature in order: when it replies, it has reposted the receives of all earlier
// messages. A client therefore sends no more messages without a reply than the limits below. Servers need no limit,
// because clients have rnr_retry_count = 7.
const (
	askEvery          = 256
	maxUnansweredData = 960
	maxUnanswered     = 1000
	infiniteRetry     = 7
)

// hasCredit reports whether fewer than most messages are unconfirmed. Servers always have credit.
func (c *Conn) hasCredit(most uint64) bool { return c.server || c.posted-c.answered < most }

// canSendCommand reports whether a command may be sent now.
func (c *Conn) canSendCommand() bool {
	return c.posted-c.completed < sendDepth && c.hasCredit(maxUnanswered)
}

// room returns how many of n bytes can be sent now in one message. If staging is nearly full, it returns 0 instead of a
// small number, because half of staging becomes free soon.
func (c *Conn) room(n int) int {
	n = min(n, maxPiece, int(c.peerMemory.length-c.written))
	if n == 0 || c.posted-c.completed+reservedForCommands >= sendDepth || !c.hasCredit(maxUnansweredData) {
		return 0
	}
	if n <= c.inline {
		return n
	}
	if stagingSize-(c.staged-c.unstaged) < uint64(n) {
		return 0
	}
	return min(n, stagingSize-int(c.staged%stagingSize)) // contiguous bytes
}

// postData sends data whose length is a result of room. The caller holds mu.
func (c *Conn) postData(p []byte) error {
	c.sends.Reset()
	imm := ibv.ToBE32(uint32(len(p)))
	w := c.sends.WriteImm(c.posted, c.peerMemory.address+uint64(c.written), c.peerMemory.key, imm)
	if len(p) <= c.inline {
		w.Inline(p)
	} else {
		at := c.staged % stagingSize
		copy(c.staging[at:], p)
		w.Add(c.ownMR.SGE(stagingAt+at, uint32(len(p))))
		c.staged += uint64(len(p))
		c.unsignaled += uint64(len(p))
	}
	c.accepted += uint64(len(p))
	if err := c.post(w, c.unsignaled >= maxPiece); err != nil {
		c.accepted -= uint64(len(p))
		return err
	}
	c.written += uint32(len(p))
	c.askServer()
	return nil
}

// sendCommand sends a command. The caller holds mu.
func (c *Conn) sendCommand(cmd command, signaled bool) error {
	b := cmd.marshal()
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

// trySendCommand sends a command if may is true, and reports whether it did. The caller holds mu.
func (c *Conn) trySendCommand(may bool, cmd command) bool {
	if !may || c.err != nil || c.gone {
		return false
	}
	if err := c.sendCommand(cmd, false); err != nil {
		c.fail(err)
		return false
	}
	return true
}

// post posts the request in the batch.
func (c *Conn) post(w rdma.SendRequest, signaled bool) error {
	if signaled || c.posted%signalEvery == signalEvery-1 {
		w.Signaled()
		c.unsignaled = 0
	}
	c.stagedAt[c.posted%sendDepth], c.ends[c.posted%sendDepth] = c.staged, c.accepted
	if _, err := c.qp.PostSend(c.sends); err != nil {
		return err
	}
	c.posted++
	return nil
}

// sent records that all sends up to a number have completed.
func (c *Conn) sent(number uint64) {
	c.unstaged = c.stagedAt[number%sendDepth]
	c.completed, c.delivered = number+1, c.ends[number%sendDepth]
}

// askServer regularly sends getServerFeature. The reply shows that the server has handled all earlier messages.
func (c *Conn) askServer() {
	if c.server || c.requested > c.answered || c.posted-c.answered < askEvery {
		return
	}
	if c.trySendCommand(c.canSendCommand(), command{opcode: getServerFeature}) {
		c.requested = c.posted
	}
}

// handleCommand handles a command of the peer. The caller holds mu.
func (c *Conn) handleCommand(cmd command) error {
	switch cmd.opcode {
	case registerXferMemory:
		c.peerMemory, c.written = cmd.place, 0
	case getServerFeature:
		switch {
		case c.server:
			c.requests, c.selected = c.requests+1, cmd.selected
		case c.requested <= c.answered:
			return fmt.Errorf("%w: answers no request", ErrProtocol)
		default:
			c.answered = c.requested
		}
	case setClientFeature:
		if !c.server || cmd.features != 0 {
			return fmt.Errorf("%w: sets features %#x, but none are defined", ErrProtocol, cmd.features)
		}
	}
	return nil
}

// notify sends the commands that the peer waits for, while there are free slots. The caller holds mu.
func (c *Conn) notify() {
	if c.mayLend(uint64(c.ring.Len())) && c.trySendCommand(c.canSendCommand(),
		command{opcode: registerXferMemory, place: c.next()}) {
		c.lent++
	}
	for c.requests > 0 && c.trySendCommand(c.canSendCommand(),
		command{opcode: getServerFeature, selected: c.selected}) {
		c.requests--
	}
	c.askServer()
}
