// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Sizes of a stream's queues. With the slot that rdma adds to each for its markers, they are powers of two, to which
// devices round up.
const (
	recvDepth   = 63
	sendDepth   = 63
	signalEvery = 8       // at least one of this many sends is signalled
	maxPiece    = 1 << 20 // bytes of one write
	maxInline   = 64      // requested from the device
)

// recvBit marks the wr_ids of receives.
const recvBit = 1 << 63

// stream holds the queue pair, the memory and the progress of a connection. Numbers of bytes and messages count from
// the beginning. The connection's mu guards most of them.
type stream struct {
	channel *rdma.CompChannel
	cq      *rdma.CQ
	qp      *rdma.QP
	wcs     []ibv.WC
	buffers [2]*rdma.Buffer // one that the peer writes into, and one for sends
	mrs     [2]*rdma.MR
	sends   *rdma.SendBatch
	recvs   *rdma.RecvBatch
	inline  int // bytes that a request can carry inline
	text    []byte

	ring    []byte // the peer writes here, and
	slots   []byte // control messages arrive here
	staging []byte // data that is being sent

	arrived, read     uint64 // bytes: written to the ring, and read from it
	toldRead          uint64 // the value of read that the peer knows
	handled, toldHand uint64 // the same for messages

	peer        hello
	sent        uint64 // bytes
	taken       uint64 // bytes that the peer has read
	messages    uint64 // sent
	peerHandled uint64 // messages that the peer has received
	completed   uint64 // messages whose send has completed
	staged      uint64 // bytes that were copied into staging
	unstaged    uint64 // bytes of staging that are free again
	unsignaled  uint64 // bytes that were staged since the last signalled send
	behind      [sendDepth]uint64
}

// open creates the queue pair of an ID that has a device, and posts all receives.
func (s *stream) open(id *ID, config *Config) (err error) {
	buffer := config.Buffer
	d, err := id.Device()
	if err != nil {
		return err
	}
	pd, err := id.PD()
	if err != nil {
		return err
	}
	if s.channel, err = d.CreateCompChannel(); err != nil {
		return err
	}
	if s.cq, err = d.CreateCQ(sendDepth+recvDepth, s.channel, 0); err != nil {
		return err
	}
	s.cq.SetBusyPoll(config.BusyPoll)
	s.wcs, s.text = make([]ibv.WC, 32), make([]byte, 0, controlSize)
	attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: s.cq.Ptr(), RecvCQ: s.cq.Ptr(), Cap: ibv.QPCap{
		MaxSendWR: sendDepth, MaxRecvWR: recvDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: maxInline,
	}}
	// no more is posted than was asked for
	if s.qp, err = id.CreateQP(pd, attr, rdma.QueueOptions{Overcommit: true}); err != nil {
		return err
	}
	s.inline = int(min(s.qp.Cap().MaxInlineData, maxInline))
	staged := buffer / stagingPart
	if controlSize > s.inline {
		staged += sendDepth * controlSize
	}
	for i, size := range [2]int{buffer + recvDepth*controlSize, staged} {
		if s.buffers[i], err = rdma.NewBuffer(size, rdma.MapOptions{}); err != nil {
			return err
		}
		access := ibv.ACCESS_LOCAL_WRITE
		if i == 0 {
			access |= ibv.ACCESS_REMOTE_WRITE
		}
		if s.mrs[i], err = pd.RegBuffer(s.buffers[i], access); err != nil {
			return err
		}
	}
	s.ring, s.slots = s.buffers[0].Bytes()[:buffer], s.buffers[0].Bytes()[buffer:]
	s.staging = s.buffers[1].Bytes()[:buffer/stagingPart]
	if s.sends, err = rdma.NewSendBatch(1, 1, maxInline); err != nil {
		return err
	}
	if s.recvs, err = rdma.NewRecvBatch(recvDepth, 1); err != nil {
		return err
	}
	for slot := range uint64(recvDepth) {
		s.addRecv(slot)
	}
	_, err = s.qp.PostRecv(s.recvs)
	s.recvs.Reset()
	return err
}

// hello returns what the peer has to know.
func (s *stream) hello() hello {
	r := s.mrs[0].Region()
	return hello{ring: r.Address, rkey: s.mrs[0].RKey(), size: uint32(len(s.ring)), depth: recvDepth}
}

// close releases everything except the ID.
func (s *stream) close(id *ID) error {
	var all []error
	add := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	if s.qp != nil {
		add(s.qp.Close())
	}
	if s.cq != nil {
		add(s.cq.Close())
	}
	if s.channel != nil {
		add(s.channel.Close())
	}
	for i := range s.mrs {
		if s.mrs[i] != nil {
			add(s.mrs[i].Close())
		}
		if s.buffers[i] != nil {
			add(s.buffers[i].Close())
		}
	}
	if s.sends != nil {
		add(s.sends.Close())
	}
	if s.recvs != nil {
		add(s.recvs.Close())
	}
	return errors.Join(all...)
}

func (s *stream) addRecv(slot uint64) {
	r := s.mrs[0].Region()
	s.recvs.Recv(recvBit|slot).SGE(r.Address+uint64(len(s.ring))+slot*controlSize, controlSize, r.LKey)
}

// copyOut copies bytes out of the ring.
func (s *stream) copyOut(p []byte, from, to uint64) int {
	at := int(from % uint64(len(s.ring)))
	n := copy(p[:min(uint64(len(p)), to-from)], s.ring[at:])
	return n + copy(p[n:min(uint64(len(p)), to-from)], s.ring)
}

// outstanding returns how many of the peer's receives may be in use.
func (s *stream) outstanding() uint64 { return s.messages - s.peerHandled }

// The last receives of the peer are reserved, so that both sides can always report that receives are free again. Data
// leaves two of them. A report about read bytes leaves one, and a report about received messages takes the last. Each
// such message frees at least half of the other side's, so they never run out on both sides at once.
const (
	keptByData  = 2
	keptByBytes = 1
)

// slotFree reports whether a message may be sent that leaves a number of receives.
func (s *stream) slotFree(kept uint64) bool {
	return s.outstanding()+kept < uint64(s.peer.depth) && s.messages-s.completed < sendDepth
}

// must reports whether there is something that the peer has to know, and a receive for it: flags, a number of received
// messages, or a quarter of the ring that was read.
func (s *stream) must(flags controlFlags, many uint64) bool {
	return flags != 0 || s.handled-s.toldHand >= many && s.slotFree(0) ||
		s.read-s.toldRead >= uint64(len(s.ring))/ringParts && s.slotFree(keptByBytes)
}

// A piece is at most a quarter of the ring, so that the peer can read while the next pieces are sent, and at most half
// of staging, so that one half is filled while the other is sent. Pieces are no smaller than that, because each one
// wakes the reader.
const (
	ringParts    = 4
	stagingParts = 2
	stagingPart  = 2 // of the buffer
)

// room returns how many of n bytes to send in one piece. It returns 0 rather than send small pieces: the peer reports
// at every quarter of the ring what it has read, and half of staging completes at once, so more room becomes free.
func (s *stream) room(n int) int {
	size, own := uint64(s.peer.size), uint64(len(s.staging))
	there, here := size-(s.sent-s.taken), own-(s.staged-s.unstaged)
	if !s.slotFree(keptByData) || there < min(uint64(n), size/ringParts) || here < min(uint64(n), own/stagingParts) {
		return 0
	}
	// in one piece of each ring
	return int(min(uint64(n), there, here, size-s.sent%size, own-s.staged%own, own/stagingParts, maxPiece))
}

// postData sends bytes from staging, or inline. The caller has checked that there is room.
func (s *stream) postData(piece []byte, inline bool) error {
	s.sends.Reset()
	size := uint64(s.peer.size)
	w := s.sends.WriteImm(s.messages, s.peer.ring+s.sent%size, s.peer.rkey, ibv.ToBE32(uint32(len(piece))))
	if inline {
		w.Inline(piece)
	} else {
		r := s.mrs[1].Region()
		own := uint64(len(s.staging))
		w.SGE(r.Address+s.staged%own, uint32(len(piece)), r.LKey)
		s.staged += uint64(len(piece))
		s.unsignaled += uint64(len(piece))
	}
	if err := s.post(w, s.unsignaled >= uint64(len(s.staging))/stagingParts); err != nil {
		return err
	}
	s.sent += uint64(len(piece))
	return nil
}

// postControl sends a control message with everything that the peer does not know yet.
func (s *stream) postControl(flags controlFlags) error {
	s.text = control{flags, s.read, s.handled}.marshal(s.text)
	s.sends.Reset()
	w := s.sends.Send(s.messages)
	if controlSize <= s.inline {
		w.Inline(s.text)
	} else {
		r := s.mrs[1].Region()
		at := len(s.staging) + int(s.messages%sendDepth)*controlSize
		copy(s.buffers[1].Bytes()[at:], s.text)
		w.SGE(r.Address+uint64(at), controlSize, r.LKey)
	}
	if err := s.post(w, flags != 0); err != nil {
		return err
	}
	s.toldRead, s.toldHand = s.read, s.handled
	return nil
}

// post posts the request in the batch.
func (s *stream) post(w rdma.SendRequest, signaled bool) error {
	if signaled || s.messages%signalEvery == signalEvery-1 {
		w.Signaled()
		s.unsignaled = 0
	}
	s.behind[s.messages%sendDepth] = s.staged
	if _, err := s.qp.PostSend(s.sends); err != nil {
		return err
	}
	s.messages++
	return nil
}

// sendDone records completed sends.
func (s *stream) sendDone(seq uint64) {
	s.unstaged = s.behind[seq%sendDepth]
	s.completed = seq + 1
}

// received handles a received message; flags are the peer's. It does not trust the peer: impossible values are an
// error.
func (s *stream) received(wc *ibv.WC, said controlFlags) (controlFlags, error) {
	switch free := uint64(len(s.ring)) - (s.arrived - s.read); {
	case wc.Opcode == ibv.WC_RECV_RDMA_WITH_IMM:
		n := uint64(wc.ImmData().Host())
		if said&fin != 0 {
			return 0, fmt.Errorf("%w: %d bytes after its end of data", errProtocol, n)
		}
		if n > free {
			return 0, fmt.Errorf("%w: %d bytes, and there is room for %d", errProtocol, n, free)
		}
		s.arrived += n
		return 0, nil
	case wc.Opcode != ibv.WC_RECV, wc.ByteLen != controlSize:
		return 0, fmt.Errorf("%w: %v of %d bytes", errProtocol, wc.Opcode, wc.ByteLen)
	}
	m := parseControl(s.slots[(wc.WRID&^recvBit)*controlSize:])
	switch {
	case m.flags&^(fin|done) != 0:
		return 0, fmt.Errorf("%w: flags %#x", errProtocol, m.flags)
	case m.read > s.sent:
		return 0, fmt.Errorf("%w: it has read %d bytes of %d", errProtocol, m.read, s.sent)
	case m.handled > s.messages:
		return 0, fmt.Errorf("%w: it has received %d messages of %d", errProtocol, m.handled, s.messages)
	}
	s.taken, s.peerHandled = max(s.taken, m.read), max(s.peerHandled, m.handled)
	return m.flags, nil
}

// handle handles completions, posts their receives again, and wakes waiting goroutines.
func (c *Conn) handle(wcs []ibv.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != ibv.WC_SUCCESS:
			c.completionFailed(wc)
			continue
		case wc.WRID&recvBit == 0:
			c.sendDone(wc.WRID)
			continue
		}
		flags, err := c.received(wc, c.peerFin)
		if err != nil {
			c.fail(err)
			break
		}
		c.peerFin |= flags
		c.handled++
		c.addRecv(wc.WRID &^ recvBit)
	}
	if c.recvs.Len() > 0 && c.err == nil && !c.gone {
		if _, err := c.qp.PostRecv(c.recvs); err != nil {
			c.fail(err)
		}
	}
	c.recvs.Reset()
	if c.peerFin&done != 0 {
		c.finWanted |= fin // nobody would read our data, so the peer need not wait
	}
	c.sendControl()
	signal(c.readable)
	signal(c.writable)
	signal(c.moved)
}

// sendControl tells the peer what it has to know, if there is a receive for it. The caller holds mu.
func (c *Conn) sendControl() {
	if c.err != nil || c.gone {
		return
	}
	flags := c.finWanted &^ c.finSent
	if !c.slotFree(keptByData) {
		flags = 0
	}
	if !c.must(flags, recvDepth/2) {
		return
	}
	if err := c.postControl(flags); err != nil {
		c.fail(err)
		return
	}
	if c.finSent |= flags; flags != 0 {
		c.finSeq = c.messages
	}
}

// sendHeartbeat sends a control message, if there is a receive for it. The caller holds mu.
func (c *Conn) sendHeartbeat() {
	if c.slotFree(keptByData) {
		if err := c.postControl(0); err != nil {
			c.fail(err)
		}
	}
}
