// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// total is how many bytes entries have.
func total(sges []ibv.SGE) (n uint64) {
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// hold lets the first request wait for its time: nothing else wakes it, neither a receive nor another request. It gives
// the status that ends it when it has waited often enough.
func (q *qp) hold(why outcome) ibv.WCStatus {
	s, f := &q.stall, q.fabric()
	if s.on = true; why == notReady { // the peer is there
		s.lost, s.spent = 0, false
	}
	var d time.Duration
	switch why {
	case notReady:
		if q.attr.RNRRetry != forEver {
			if s.notReady >= int(q.attr.RNRRetry) {
				return ibv.WC_RNR_RETRY_EXC_ERR
			}
			s.notReady++
		}
		d = notReadyTime(q.reply.timer)
	case lost:
		if q.attr.Timeout == 0 { // no timer: another request shows that one is missing, and both are sent
			return ibv.WC_SUCCESS
		}
		s.lost++
		if s.spent = s.lost > int(q.attr.RetryCnt); !s.spent {
			q.count(counters.WentBack)
			q.count(counters.Timeouts)
		}
		d = time.Duration(4096) * time.Nanosecond << (q.attr.Timeout & 31)
	case late:
		d = s.wait
	}
	s.timer = f.clock.After(d, s.fire)
	return ibv.WC_SUCCESS
}

// forEver is the rnr_retry that has no end.
const forEver = 7

// notReadyTimes are those of the codes from 1 on, in hundredths of a millisecond; code 0 is the longest.
var notReadyTimes = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
	6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func notReadyTime(code uint8) time.Duration {
	return time.Duration(notReadyTimes[code&31]) * 10 * time.Microsecond
}

// psnMask are the bits of a packet sequence number.
const psnMask = 1<<24 - 1

// atomicSize is what atomics are of, in bytes.
const atomicSize = 8

// execute carries a request out: here, or by sending it.
func (q *qp) execute(r *request) verdict {
	switch r.opcode {
	case ibv.WR_LOCAL_INV:
		return q.invalidate(r)
	case ibv.WR_BIND_MW:
		return q.bindWindow(r)
	}
	local, length := []segment(nil), uint64(0)
	if r.opcode < ibv.WR_FLUSH { // the others have no memory of the sender's
		var status ibv.WCStatus
		if local, length, status = q.gather(q.next); status != ibv.WC_SUCCESS {
			return failed(status)
		}
	}
	if q.kind == ibv.QPT_UD && length > q.device.bytes() {
		return failed(ibv.WC_LOC_LEN_ERR)
	}
	if q.stall.spent {
		return failed(ibv.WC_RETRY_EXC_ERR)
	}
	// what describe does: a call of it costs 3 ns of the 60 that a message takes
	m := &q.out
	m.Opcode, m.Solicited, m.Imm, m.SRQ = r.opcode, r.flags&ibv.SEND_SOLICITED != 0, ibv.BE32(r.imm), r.number
	m.Remote, m.RKey, m.Length = r.remote, r.rkey, length
	payload := len(local)
	q.returns = false
	switch r.opcode {
	case ibv.WR_RDMA_READ:
		payload, q.returns = 0, true
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		payload, m.Operand, m.Swap, q.returns = 0, r.operand, r.swap, true
	case ibv.WR_ATOMIC_WRITE:
		payload, m.Operand, m.Length = 0, r.operand, atomicSize
	case ibv.WR_FLUSH:
		payload, m.Length, m.Placement, m.Level = 0, r.operand, uint32(r.swap), uint32(r.swap>>32)
	}
	m.Payload = m.Payload[:payload] // of Fabric.from, where gather has put it
	if q.kind == ibv.QPT_UD {
		q.direct(m, r)
	}
	if q.reading != nil {
		q.reading = nil
	}
	return q.transmit(m)
}

// describe makes the message of a request, whose memory is that of Fabric.from, to be sent as packets.
func (q *qp) describe(r *request, local []segment, length uint64) {
	m := &q.out
	m.Opcode, m.Solicited, m.Imm, m.SRQ = r.opcode, r.flags&ibv.SEND_SOLICITED != 0, ibv.BE32(r.imm), r.number
	m.Remote, m.RKey, m.Length = r.remote, r.rkey, length
	payload := len(local)
	q.returns = false
	switch r.opcode {
	case ibv.WR_RDMA_READ:
		payload, q.returns = 0, true
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		payload, m.Operand, m.Swap, q.returns = 0, r.operand, r.swap, true
	case ibv.WR_ATOMIC_WRITE:
		payload, m.Operand, m.Length = 0, r.operand, atomicSize
	case ibv.WR_FLUSH:
		payload, m.Length, m.Placement, m.Level = 0, r.operand, uint32(r.swap), uint32(r.swap>>32)
	}
	m.Payload = m.Payload[:payload] // of Fabric.from, where gather has put it
}

// direct says where a datagram goes.
func (q *qp) direct(m *message.Request, r *request) {
	to := &r.ah.route
	m.From.GID, _ = q.device.gidAt(to.SGIDIndex)
	m.To = *r.ah.address(r.number)
	m.Route = message.Route{TrafficClass: to.TrafficClass, HopLimit: to.HopLimit}
	m.DestQP, m.QKey, m.MTU = r.number, r.qkey, uint32(q.device.bytes())
	if int32(r.qkey) < 0 { // a controlled key: the sender's own is meant
		m.QKey = q.attr.QKey
	}
}

// transmit sends a message. A reliable connection then waits for the answer, which a wire in memory returns; others
// wait for nothing.
func (q *qp) transmit(m *message.Request) verdict {
	f, d := q.on, q.device
	m.PSN, m.Packets = q.psn, 1
	if m.Length > 256 {
		m.Packets = q.packets(m)
	}
	q.awaits, q.reply.there = q.reliable, false
	var answer *message.Answer
	if d.down || m.To.Link == 0 {
		f.lose(m)
	} else {
		var wait time.Duration
		if answer, wait = f.wire.Send(m); wait > 0 {
			q.awaits, q.stall.wait = false, wait
			return verdict{outcome: late}
		}
	}
	if !q.reliable {
		q.advance()
		return succeeded
	}
	if answer != nil {
		q.awaits = false
		if answer.Syndrome == message.Ack && !q.returns {
			q.advance()
			return succeeded
		}
		v, data, fits := q.verdictOf(answer)
		if !fits {
			return verdict{outcome: lost}
		}
		if data != nil {
			v.status = q.copyBack(data)
		}
		if v.outcome == finished {
			q.advance()
		}
		return v
	}
	if v, there := q.answered(); there {
		return v
	}
	return verdict{outcome: lost}
}

// verdictOf makes a verdict of an answer, if it is one to the request. What it brings is to be copied to the memory of
// the request before it counts.
func (q *qp) verdictOf(a *message.Answer) (v verdict, data []segment, fits bool) {
	v = succeeded
	if a.Syndrome != message.Ack {
		told, _ := counters.OfRefusal(a.Syndrome)
		q.count(told)
	}
	switch a.Syndrome {
	case message.Ack:
		switch q.out.Opcode {
		case ibv.WR_RDMA_READ:
			data = a.Data
			if sum(data) != q.out.Length || len(data) > message.MaxSegments {
				return v, nil, false
			}
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			f := q.on
			f.original = a.Original
			f.data[0] = segment{Base: addressOf(&f.original), Length: atomicSize}
			data = f.data[:]
		}
	case message.NotReady:
		v.outcome, q.reply.timer = notReady, a.Timer
	case message.InvalidRequest:
		v.status = ibv.WC_REM_INV_REQ_ERR
	case message.RemoteAccess:
		v.status = ibv.WC_REM_ACCESS_ERR
	default:
		v.status = ibv.WC_REM_OP_ERR
	}
	return v, data, true
}

// copyBack copies what came back. It panics where memory is gone.
func (q *qp) copyBack(data []segment) ibv.WCStatus {
	if q.reading != nil {
		return q.place(q.srq.recvs.pd, q.reading.tag.sges, data, q.out.Length)
	}
	f := q.on
	local := f.from[:]
	if !q.moving || f.careful { // other requests were sent since, or the memory was not touched
		var status ibv.WCStatus
		if local, _, status = q.gather(q.next); status != ibv.WC_SUCCESS {
			return status
		}
	}
	mem.Scatter(local, data)
	return ibv.WC_SUCCESS
}

// sum is how many bytes segments have.
func sum(of []segment) (n uint64) {
	for i := range of {
		n += of[i].Length
	}
	return n
}

// packets is how many packets of the path's MTU a message takes, or the answer to a read.
func (q *qp) packets(m *message.Request) uint32 {
	if m.Opcode == ibv.WR_FLUSH || q.kind == ibv.QPT_UD {
		return 1
	}
	shift := 7 + q.attr.PathMTU
	return uint32((m.Length + 1<<shift - 1) >> shift)
}

// advance goes on to the packet sequence number of the next message.
func (q *qp) advance() { q.psn = (q.psn + q.out.Packets) & psnMask }

// lose counts a message that does not arrive, if it is a connected queue pair's.
func (f *Fabric) lose(m *message.Request) {
	if m.Transport != ibv.QPT_UD {
		f.lost++
	}
}

// gather looks up the memory of the request at a position, on the sender's side.
func (q *qp) gather(position uint32) (local []segment, length uint64, status ibv.WCStatus) {
	f, r := q.on, &q.ring[position&q.mask]
	if r.inline >= 0 {
		f.from[0] = segment{Base: q.inlineAt(position), Length: uint64(r.inline)}
		return f.from[:1], uint64(r.inline), ibv.WC_SUCCESS
	}
	access := ibv.AccessFlags(0)
	switch r.opcode {
	case ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		access = ibv.ACCESS_LOCAL_WRITE
	}
	n := 0
	for _, s := range q.entries(position)[:r.sges] {
		if s.Length == 0 {
			continue
		}
		segment, ok := q.device.keys.local(q.protects, s, access)
		if !ok || f.careful && !mem.Touch(segment, access != 0) {
			return nil, 0, ibv.WC_LOC_PROT_ERR
		}
		f.from[n] = segment
		n++
		length += uint64(s.Length)
	}
	switch {
	case access != 0 && q.attr.MaxRdAtomic == 0:
		return nil, 0, ibv.WC_LOC_QP_OP_ERR
	case length > maxMessage, access != 0 && r.opcode != ibv.WR_RDMA_READ && length != atomicSize:
		return nil, 0, ibv.WC_LOC_LEN_ERR
	}
	return f.from[:n], length, ibv.WC_SUCCESS
}

// answered takes the reply, if there is one.
func (q *qp) answered() (v verdict, there bool) {
	if there = q.reply.there; there {
		v, q.reply.there = q.reply.verdict, false
	}
	return v, there
}

// finish ends the first request of the send queue.
func (q *qp) finish(r *request, status ibv.WCStatus) {
	position := q.next
	q.next++
	if q.stall.on {
		q.settle()
	}
	if status != ibv.WC_SUCCESS || r.flags&ibv.SEND_SIGNALED != 0 || q.signals {
		e := q.sendCQ.next()
		e.wc = ibv.WC{WRID: r.id, Status: status, Opcode: sendOpcodes[r.opcode], QPNum: q.number}
		switch r.opcode {
		case ibv.WR_RDMA_READ:
			e.wc.ByteLen = uint32(total(q.entries(position)[:r.sges]))
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			e.wc.ByteLen = 8
		}
		e.sender, e.receiver, e.position = q, nil, q.next
		q.sendCQ.publish(e, false)
	}
	q.count(counters.OfRequest(r.opcode))
	switch status {
	case ibv.WC_SUCCESS:
		return
	case ibv.WC_RETRY_EXC_ERR:
		q.count(counters.RetriesExceeded)
	case ibv.WC_RNR_RETRY_EXC_ERR:
		q.count(counters.NotReadyExceeded)
	}
	if state, changes := stateAfter(status, q.kind); changes && q.state != ibv.QPS_ERR {
		q.setState(state)
	}
}
