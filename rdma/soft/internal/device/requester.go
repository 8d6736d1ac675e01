// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// total is how many bytes entries have.
func total(sges []ibv.SGE) (n uint32) {
	for i := range sges {
		n += sges[i].Length
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
		s.spent = s.lost > int(q.attr.RetryCnt)
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
	local, length, status := q.gather(r)
	if status != ibv.WC_SUCCESS {
		return failed(status)
	}
	if q.kind == ibv.QPT_UD && length > q.device.bytes() {
		return failed(ibv.WC_LOC_LEN_ERR)
	}
	if q.stall.spent {
		return failed(ibv.WC_RETRY_EXC_ERR)
	}
	m := &q.out
	m.Opcode, m.Solicited, m.Imm, m.SRQ = r.opcode, r.flags&ibv.SEND_SOLICITED != 0, ibv.BE32(r.imm), r.number
	m.Remote, m.RKey, m.Length, m.Payload = r.remote, r.rkey, length, local
	q.returns = false
	switch r.opcode {
	case ibv.WR_RDMA_READ:
		m.Payload, q.returns = nil, true
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		m.Payload, m.Operand, m.Swap, q.returns = nil, r.operand, r.swap, true
	case ibv.WR_ATOMIC_WRITE:
		m.Payload, m.Operand, m.Length = nil, r.operand, atomicSize
	case ibv.WR_FLUSH:
		m.Payload, m.Length, m.Placement, m.Level = nil, r.operand, uint32(r.swap), uint32(r.swap>>32)
	}
	if q.kind == ibv.QPT_UD {
		q.direct(m, r)
	}
	q.reading = nil
	return q.transmit(m)
}

// direct says where a datagram goes.
func (q *qp) direct(m *message.Request, r *request) {
	to := &r.ah.route
	m.From.GID, _ = q.device.gidAt(to.SGIDIndex)
	m.To = q.device.fabric.addressOf(r.ah.gid)
	m.Route = message.Route{FlowLabel: to.FlowLabel, TrafficClass: to.TrafficClass, HopLimit: to.HopLimit}
	m.DestQP, m.QKey = r.number, r.qkey
	if int32(r.qkey) < 0 { // a controlled key: the sender's own is meant
		m.QKey = q.attr.QKey
	}
}

// transmit sends a message. A reliable connection then waits for the answer, which a wire in memory has brought by now;
// others wait for nothing.
func (q *qp) transmit(m *message.Request) verdict {
	f, d := q.on, q.device
	m.PSN, m.Packets = q.psn, 1
	if m.Length > 256 {
		m.Packets = q.packets(m)
	}
	q.awaits, q.reply.there = q.reliable, false
	if d.down || m.To.Link == 0 {
		f.lose(m)
	} else {
		before := f.sending
		f.sending = q
		wait := f.wire.Send(m)
		f.sending = before
		if wait > 0 {
			q.awaits, q.stall.wait = false, wait
			return verdict{outcome: late}
		}
	}
	switch {
	case !q.reliable:
		q.advance()
		return succeeded
	case !q.reply.there:
		return verdict{outcome: lost}
	}
	q.reply.there = false
	return q.reply.verdict
}

// packets is how many packets of the path's MTU a message takes, or the answer to a read.
func (q *qp) packets(m *message.Request) uint32 {
	if m.Opcode == ibv.WR_FLUSH {
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
		f.counters.Lost++
	}
}

// gather looks up the memory of the sender's side.
func (q *qp) gather(r *request) (local []segment, length uint64, status ibv.WCStatus) {
	f := q.on
	if r.inline >= 0 {
		f.from[0] = segment{Base: q.inlineAt(q.next), Length: uint64(r.inline)}
		return f.from[:1], uint64(r.inline), ibv.WC_SUCCESS
	}
	access := ibv.AccessFlags(0)
	switch r.opcode {
	case ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		access = ibv.ACCESS_LOCAL_WRITE
	}
	n := 0
	for _, s := range q.entries(q.next)[:r.sges] {
		if s.Length == 0 {
			continue
		}
		segment, ok := q.device.keys.local(q.protects(), s, access)
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

// local is where an entry of the owner's own is: of a region of the domain.
func (k *keys) local(p *pd, s ibv.SGE, access ibv.AccessFlags) (segment, bool) {
	m := k.get(s.LKey)
	if m == nil || m.pd != p || m.window != nil {
		return segment{}, false
	}
	return m.locate(s.Addr, uint64(s.Length), access)
}

// answered takes the reply, if there is one.
func (q *qp) answered() (v verdict, there bool) {
	if there = q.reply.there; there {
		v, q.reply.there = q.reply.verdict, false
	}
	return v, there
}
