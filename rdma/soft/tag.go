package soft

import (
	"slices"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// tags are the tag list of a shared receive queue that matches tags.
type tags struct {
	entries    []*tag // in the order in which they match
	most       int
	last       uint32    // handle
	ops        recvQueue // counts operations whose completions were not polled
	unexpected uint32    // messages that matched no tag
	told       uint32    // of those, what the program last said that it has seen
}

// tag is an entry of the list.
type tag struct {
	handle    uint32
	id        uint64 // recv_wr_id
	tag, mask uint64
	sges      []ibv.SGE
	held      bool // added when the program had not seen every unexpected message, and so matches none before it has
}

const (
	tmhSize   = uint64(unsafe.Sizeof(ibv.TMH{}))
	rvhSize   = uint64(unsafe.Sizeof(ibv.RVH{}))
	rndvBytes = 64 // max_rndv_hdr_size
)

// checkTags checks what a queue that matches tags is asked for.
func checkTags(c *ibv.TMCap) runtime.Errno {
	if c.MaxNumTags == 0 || c.MaxNumTags > maxTags || c.MaxOps == 0 || c.MaxOps > maxTagOps {
		return einval
	}
	return 0
}

func newTags(c *ibv.TMCap) *tags {
	return &tags{most: int(c.MaxNumTags), ops: recvQueue{capacity: c.MaxOps, shared: true}}
}

// inStep says whether the program has seen every unexpected message.
func (t *tags) inStep() bool { return t.told == t.unexpected }

// tell takes the program's count of unexpected messages.
func (t *tags) tell(count uint32) {
	t.told = count
	if t.inStep() {
		for _, e := range t.entries {
			e.held = false
		}
	}
}

// holds says whether a tag is held back.
func (t *tags) holds() bool {
	return !t.inStep() && slices.ContainsFunc(t.entries, func(e *tag) bool { return e.held })
}

// match takes the first entry that a tag matches out of the list, or gives nil.
func (t *tags) match(of uint64) *tag {
	for i, e := range t.entries {
		if !e.held && (of^e.tag)&e.mask == 0 {
			t.entries = slices.Delete(t.entries, i, i+1)
			return e
		}
	}
	return nil
}

// postSRQOps is the operation post_srq_ops.
func postSRQOps(address, first, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := locked[srq](address)
	if s == nil {
		return uint64(einval), 0
	}
	defer s.fabric().unlock()
	n := uint32(0)
	for op := first; op != 0; n++ {
		w, errno := at[ibv.OpsWR](op), enomem // a list without an end
		if s.tags == nil || n < s.tags.ops.capacity {
			errno = s.operate(w)
		}
		if errno != 0 {
			if bad != 0 {
				*at[uintptr](bad) = uintptr(op)
			}
			return uint64(errno), 0
		}
		op = uint64(w.Next)
	}
	return 0, 0
}

// operate carries out one operation on the tag list.
func (s *srq) operate(w *ibv.OpsWR) runtime.Errno {
	t := s.tags
	switch {
	case t == nil:
		return eopnotsupp
	case w.Flags&^(ibv.OPS_SIGNALED|ibv.OPS_TM_SYNC) != 0:
		return einval
	case t.ops.posted-t.ops.freed.Load() >= t.ops.capacity:
		return enomem
	}
	status, opcode := ibv.WC_SUCCESS, ibv.WC_TM_ADD
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		if errno := s.checkTag(&w.TM.Add); errno != 0 {
			return errno
		}
	case ibv.WR_TAG_DEL:
		opcode = ibv.WC_TM_DEL
	case ibv.WR_TAG_SYNC:
		opcode = ibv.WC_TM_SYNC
	default:
		return einval
	}
	if w.Flags&ibv.OPS_TM_SYNC != 0 || w.Opcode == ibv.WR_TAG_SYNC {
		t.tell(w.TM.UnexpectedCnt)
	}
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		add := &w.TM.Add
		t.last++
		w.TM.Handle = t.last
		e := &tag{handle: t.last, id: add.RecvWRID, tag: add.Tag, mask: add.Mask, held: !t.inStep()}
		if add.NumSGE > 0 {
			e.sges = slices.Clone(list[ibv.SGE](uint64(add.SGList), int(add.NumSGE)))
		}
		t.entries = append(t.entries, e)
	case ibv.WR_TAG_DEL:
		i := slices.IndexFunc(t.entries, func(e *tag) bool { return e.handle == w.TM.Handle })
		if i < 0 { // a message took it
			status = ibv.WC_TM_ERR
		} else {
			t.entries = slices.Delete(t.entries, i, i+1)
		}
	}
	if w.Flags&ibv.OPS_SIGNALED == 0 && status == ibv.WC_SUCCESS {
		return 0
	}
	e := s.cq.next()
	*e = completion{wc: ibv.WC{WRID: w.WRID, Status: status, Opcode: opcode}, receiver: &t.ops}
	if !t.inStep() {
		e.wc.WCFlags = ibv.WC_TM_SYNC_REQ
	}
	t.ops.posted++
	s.cq.publish(e, false)
	return 0
}

func (s *srq) checkTag(add *ibv.OpsTMAdd) runtime.Errno {
	switch {
	case add.NumSGE < 0 || add.NumSGE > maxSGE || add.NumSGE > 0 && add.SGList == 0:
		return einval
	case len(s.tags.entries) >= s.tags.most:
		return enomem
	}
	return 0
}

// tagged takes a message into the buffer of its tag, or into a plain receive where no tag matches, and then invalidates what it says.
func (peer *qp) tagged(q *qp, r *request, local []segment, length uint64) verdict {
	if q.fabric().faults.NotReady {
		return q.unready()
	}
	if r.opcode != ibv.WR_SEND_WITH_INV {
		return peer.matched(q, r, local, length)
	}
	w := peer.boundWindow(r.imm)
	if w == nil {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	v := peer.matched(q, r, local, length)
	if v == succeeded {
		w.unbind()
	}
	return v
}

func (peer *qp) matched(q *qp, r *request, local []segment, length uint64) verdict {
	s, f := peer.srq, peer.fabric()
	var h struct {
		tmh ibv.TMH
		rvh ibv.RVH
	}
	peek(addressOf(&h), tmhSize+rvhSize, local)
	op := ibv.TMHOp(h.tmh.Opcode)
	if length < uint64(tmhSize) || op == ibv.TMH_RNDV && (length < uint64(tmhSize+rvhSize) || length > rndvBytes) {
		op = ibv.TMH_NO_TAG
	}
	if op != ibv.TMH_EAGER && op != ibv.TMH_RNDV {
		return peer.untagged(q, r, local, length, ibv.WC_TM_NO_TAG)
	}
	e := s.tags.match(h.tmh.Tag.Host())
	if e == nil {
		return peer.untagged(q, r, local, length, ibv.WC_TM_RECV)
	}
	info := ibv.WCTMInfo{Tag: h.tmh.Tag.Host(), Priv: h.tmh.AppCtx.Host()}
	done := func(status ibv.WCStatus, flags ibv.WCFlags, n uint32) {
		c := s.cq.next()
		*c = completion{wc: ibv.WC{WRID: e.id, Status: status, Opcode: ibv.WC_TM_RECV, ByteLen: n, QPNum: peer.number, SrcQP: q.number, WCFlags: flags}, tm: info}
		s.cq.publish(c, r.flags&ibv.SEND_SOLICITED != 0)
	}
	if op == ibv.TMH_EAGER {
		n := length - uint64(tmhSize)
		status := peer.place(s.recvs.pd, e.sges, skip(local, uint64(tmhSize)), n)
		done(status, ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID, uint32(n))
		return peer.answer(status)
	}
	n := h.rvh.Len.Host()
	if uint64(n) > room(e.sges) { // the program has to go on: it finds both headers in the buffer
		headers := segment{addressOf(&h), uint64(tmhSize + rvhSize)}
		if status := peer.place(s.recvs.pd, e.sges, []segment{headers}, headers.length); status != ibv.WC_SUCCESS {
			done(status, ibv.WC_TM_MATCH, 0)
			return peer.answer(status)
		}
		done(ibv.WC_TM_RNDV_INCOMPLETE, ibv.WC_TM_MATCH, uint32(headers.length))
		return succeeded
	}
	done(ibv.WC_SUCCESS, ibv.WC_TM_MATCH, n)
	status := peer.fetch(q, e, &h.rvh, n)
	done(status, ibv.WC_TM_DATA_VALID, n)
	if status != ibv.WC_SUCCESS {
		peer.setState(ibv.QPS_ERR)
		return succeeded // the message itself arrived
	}
	h.tmh.Opcode = uint8(ibv.TMH_FIN)
	peer.fins = append(peer.fins, [fin]byte(list[byte](addressOf(&h), fin)))
	f.ready = append(f.ready, peer)
	return succeeded
}

// fin is the size of the message that tells the sender of a rendezvous that its data was read: both headers.
const fin = int(tmhSize + rvhSize)

// fetch reads the data of a rendezvous from the sender's side, which breaks as at any read of its memory that it refuses.
func (peer *qp) fetch(q *qp, e *tag, rvh *ibv.RVH, n uint32) ibv.WCStatus {
	if n == 0 {
		return ibv.WC_SUCCESS
	}
	if peer.state > ibv.QPS_RTR && peer.attr.MaxRdAtomic == 0 { // before, it is not known yet
		return ibv.WC_LOC_QP_OP_ERR
	}
	if !q.allows(ibv.ACCESS_REMOTE_READ) || q.attr.MaxDestRdAtomic == 0 || !q.receives() {
		return q.refuse(peer, ibv.WC_REM_INV_REQ_ERR).status
	}
	from, ok := q.remote(&request{remote: rvh.VA.Host(), rkey: rvh.RKey.Host()}, uint64(n), ibv.ACCESS_REMOTE_READ)
	if !ok {
		return q.refuse(peer, ibv.WC_REM_ACCESS_ERR).status
	}
	return peer.place(peer.srq.recvs.pd, e.sges, []segment{from}, uint64(n))
}

// untagged takes a message into a plain receive.
func (peer *qp) untagged(q *qp, r *request, local []segment, length uint64, opcode ibv.WCOpcode) verdict {
	recvs, s, v := peer.receiver(q, r)
	if recvs == nil {
		return v
	}
	got, sges := recvs.take()
	s.took()
	c := s.cq.next()
	*c = completion{wc: ibv.WC{WRID: got.id, Opcode: opcode, ByteLen: uint32(length), QPNum: peer.number, SrcQP: q.number}, receiver: recvs}
	switch r.opcode {
	case ibv.WR_SEND_WITH_IMM:
		c.wc.WCFlags = ibv.WC_WITH_IMM
		*c.wc.ImmData() = ibv.BE32(r.imm)
	case ibv.WR_SEND_WITH_INV:
		c.wc.WCFlags = ibv.WC_WITH_INV
		*c.wc.InvalidatedRKey() = r.imm
	}
	if opcode == ibv.WC_TM_RECV {
		s.tags.unexpected++
		if s.tags.holds() {
			c.wc.WCFlags |= ibv.WC_TM_SYNC_REQ
		}
	}
	c.wc.Status = peer.place(recvs.pd, sges, local, length)
	s.cq.publish(c, r.flags&ibv.SEND_SOLICITED != 0)
	return peer.answer(c.wc.Status)
}

// answer is what the sender hears of a message that was, or was not, placed.
func (peer *qp) answer(status ibv.WCStatus) verdict {
	switch status {
	case ibv.WC_SUCCESS:
		return succeeded
	case ibv.WC_LOC_LEN_ERR:
		peer.setState(ibv.QPS_ERR)
		return failed(ibv.WC_REM_INV_REQ_ERR)
	}
	peer.setState(ibv.QPS_ERR)
	return failed(ibv.WC_REM_OP_ERR)
}

// sendFins sends what tells senders that their data was read, before requests of the queue pair's own that were not begun. It says
// whether these may go on.
func (q *qp) sendFins() bool {
	for len(q.fins) > 0 && (!q.stall.on || q.stall.fin) {
		switch q.state {
		case ibv.QPS_ERR:
			q.fins = nil
			return true
		case ibv.QPS_RTS:
		default:
			if q.state != ibv.QPS_SQD || !q.stall.fin { // what was begun is ended
				return false
			}
		}
		v := q.exchange(&request{opcode: ibv.WR_SEND, inline: int32(fin)}, []segment{{addressOf(&q.fins[0][0]), uint64(fin)}}, uint64(fin))
		status := v.status
		if v.outcome != finished {
			q.stall.fin = true
			if status = q.hold(v.outcome); status == ibv.WC_SUCCESS {
				return false
			}
		}
		q.settle()
		q.fins = q.fins[1:]
		if status != ibv.WC_SUCCESS {
			q.setState(ibv.QPS_ERR)
		}
	}
	return true
}

// room is how many bytes entries have.
func room(sges []ibv.SGE) (n uint64) {
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// skip leaves out the first bytes of a message.
func skip(from []segment, n uint64) []segment {
	for len(from) > 0 && n > 0 {
		k := min(n, from[0].length)
		from[0].skip(k)
		n -= k
		if from[0].length == 0 {
			from = from[1:]
		}
	}
	return from
}

// peek copies the first bytes of a message, as many as it has.
func peek(to uint64, n uint64, from []segment) {
	for _, s := range from {
		k := min(n, s.length)
		move(to, s.base, k)
		to, n = to+k, n-k
	}
}
