// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// atomicSize is the size of the operand of an atomic, in bytes.
const atomicSize = 8

// answered handles an answer that Send did not return. An answer that matches no pending message is dropped. The caller
// holds Core.Mu.
func (q *QP) answered(a *message.Answer) {
	if q.sender != nil {
		q.takePacketAnswer(a)
		return
	}
	if q.pending.len() == 0 || !q.sent || a.PSN != q.Out.PSN {
		q.count(counters.LateAnswers)
		return
	}
	b := q.pending.first()
	switch {
	case a.Syndrome != message.Ack:
		q.refused(a)
		return
	case !returnsData(q.Out.Opcode):
		b.done = true
	default:
		b.status, b.done = q.takeLateData(*b, a, 0)
	}
	if b.done {
		q.psn = transport.Next(q.psn, q.Out.Packets)
	}
}

// takePacketAnswer handles an answer to messages that travelled as packets.
func (q *QP) takePacketAnswer(a *message.Answer) {
	s := q.sender
	if q.pending.len() == 0 || a.Kind == message.Plain && transport.Distance(a.PSN, s.Oldest()) < 0 {
		q.count(counters.LateAnswers)
		return
	}
	news, backs := false, s.Backs()
	switch {
	case a.Kind != message.Plain:
		if news = q.dataArrived(a); !news {
			q.count(counters.LateAnswers)
		}
	case a.Syndrome == message.Ack:
		news = s.Acknowledge(transport.Next(a.PSN, 1))
		if !news && backs == s.Backs() { // it acknowledges packets that were never sent, or repeats a known gap
			q.count(counters.LateAnswers)
		}
	default:
		news = s.Acknowledge(a.PSN) // earlier messages
		if s.Oldest() == a.PSN && s.Waits() {
			q.refused(a)
			backs = s.Backs() // already counted
		} else if !news {
			q.count(counters.LateAnswers)
		}
	}
	if backs != s.Backs() {
		q.count(counters.WentBack)
		q.count(counters.ImpliedGaps)
	}
	if news {
		q.retry.lost, q.retry.notReady, q.retry.due = 0, 0, 0
	}
}

// refused handles a NAK, which refers to the oldest unacknowledged message.
func (q *QP) refused(a *message.Answer) {
	b, t := q.pending.first(), &q.retry
	if q.sender != nil {
		b = q.pending.at(q.sender.First())
	}
	counter, _ := counters.OfNAK(a.Syndrome)
	switch a.Syndrome {
	case message.OutOfOrder:
		q.count(counters.ReceivedSequenceNAKs)
		if q.sender != nil && q.sender.Missing() {
			q.count(counters.WentBack)
		}
	case message.NotReady:
		if t.paused { // a duplicate
			q.count(counters.LateAnswers)
			return
		}
		t.lost = 0
		if q.Attr.RNRRetry != forever {
			if t.notReady >= int(q.Attr.RNRRetry) {
				b.status = ibv.WC_RNR_RETRY_EXC_ERR
				break
			}
			t.notReady++
		}
		q.goBack(false)
		q.pause(notReadyTime(a.Timer))
	case message.InvalidRequest:
		b.status = ibv.WC_REM_INV_REQ_ERR
	case message.RemoteAccess:
		b.status = ibv.WC_REM_ACCESS_ERR
	default:
		b.status = ibv.WC_REM_OP_ERR
	}
	q.count(counter)
}

// answerTimedOut retransmits the messages that were not answered in time, unless the retries are used up.
func (q *QP) answerTimedOut() {
	t := &q.retry
	t.due = 0
	q.count(counters.Timeouts)
	if t.lost++; t.lost > int(q.Attr.RetryCnt) {
		q.pending.first().status = ibv.WC_RETRY_EXC_ERR
		return
	}
	q.count(counters.WentBack)
	q.goBack(true)
}

// goBack schedules all unacknowledged messages for retransmission.
func (q *QP) goBack(lost bool) {
	if q.sent = false; q.sender != nil {
		q.sender.Back(lost)
	}
}

// dataArrived stores the next part of a response's data, and reports whether an answer contains it.
func (q *QP) dataArrived(a *message.Answer) bool {
	i, packet, ok := q.sender.Answer(a.PSN)
	if !ok {
		return false
	}
	b := q.pending.at(i)
	if b.status != ibv.WC_SUCCESS {
		return false
	}
	status, fits := q.takeLateData(*b, a, uint64(packet)<<(7+q.Attr.PathMTU))
	if fits {
		b.status = status
		q.sender.Answered(i)
	}
	return fits
}

// takeData copies the data of a response to the memory of a message, after its first skip bytes, and reports whether
// the response fits the request. It panics if memory is unmapped.
func (q *QP) takeData(b pending, a *message.Answer, skip uint64) (status ibv.WCStatus, fits bool) {
	opcode, length := q.Out.Opcode, q.Out.Length
	if q.sender != nil { // Out may be another message
		if opcode = ibv.WR_RDMA_READ; b.transfer {
			length = uint64(q.rendezvous.first().headers.rvh.Len.Host())
		} else {
			r := q.Place(b.position)
			opcode, length = r.Opcode, resource.Room(r.SGEs)
		}
		length = min(length-skip, 128<<q.Attr.PathMTU)
	}
	data := a.Data
	if opcode == ibv.WR_ATOMIC_CMP_AND_SWP || opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
		f := q.On
		f.original = a.Original
		f.data[0] = mem.Segment{Base: mem.AddressOf(&f.original), Length: atomicSize}
		data, fits = f.data[:], a.Kind == message.AtomicData
	} else {
		fits = a.Kind != message.AtomicData && sum(data) == length && len(data) <= message.MaxSegments
	}
	switch {
	case !fits || len(data) == 0:
	case !b.transfer && q.sender == nil && q.moving && !q.On.Careful: // this is its Send
		mem.Scatter(q.On.from[:], data)
	default:
		status = q.placeData(b, skip, data)
	}
	return status, fits
}

// takeLateData is takeData for answers that Send did not return. It repeats the copy if memory of this side turns out
// to be unmapped. A response whose own memory is unmapped cannot be read.
func (q *QP) takeLateData(b pending, a *message.Answer, skip uint64) (status ibv.WCStatus, fits bool) {
	gone := q.On.repeat(a.Data, func() { status, fits = q.takeData(b, a, skip) })
	switch {
	case gone == nil:
		return status, fits
	case mem.TouchAll(a.Data):
		return ibv.WC_LOC_PROT_ERR, true
	}
	return status, false
}

// placeData copies data to a message's memory, after its first skip bytes. It panics if memory is unmapped.
func (q *QP) placeData(b pending, skip uint64, data []mem.Segment) ibv.WCStatus {
	if b.transfer {
		d, sges := q.SRQ.Recvs.Domain, q.rendezvous.first().tag.SGEs
		if skip == 0 {
			return q.place(d, sges, data, sum(data))
		}
		return q.placeAt(d, sges, skip, data, sum(data))
	}
	n, _, status := q.gather(q.Place(b.position))
	if status != ibv.WC_SUCCESS {
		return status
	}
	mem.Scatter(mem.Skip(q.On.from[:n], skip), data)
	return ibv.WC_SUCCESS
}

// gather looks up the sender's memory of a request, and stores its n segments in Engine.from.
func (q *QP) gather(r *Request) (n int, length uint64, status ibv.WCStatus) {
	f := q.On
	if r.Inline >= 0 {
		f.from[0] = mem.Segment{Base: r.data, Length: uint64(r.Inline)}
		return 1, uint64(r.Inline), ibv.WC_SUCCESS
	}
	access := ibv.AccessFlags(0)
	switch r.Opcode {
	case ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		access = ibv.ACCESS_LOCAL_WRITE
	}
	for i := range r.SGEs {
		s := &r.SGEs[i]
		if s.Length == 0 {
			continue
		}
		segment, ok := q.Port.Keys.Local(q.Protects, *s, access)
		if !ok || f.Careful && !mem.Touch(segment, access != 0) {
			return 0, 0, ibv.WC_LOC_PROT_ERR
		}
		f.from[n] = segment
		n++
		length += uint64(s.Length)
	}
	switch {
	case access != 0 && q.Attr.MaxRdAtomic == 0:
		return 0, 0, ibv.WC_LOC_QP_OP_ERR
	case length > MaxMessage, access != 0 && r.Opcode != ibv.WR_RDMA_READ && length != atomicSize:
		return 0, 0, ibv.WC_LOC_LEN_ERR
	}
	return n, length, ibv.WC_SUCCESS
}

// endIfDone ends the first pending message if it is done or has failed, and reports whether it did.
func (q *QP) endIfDone() bool {
	b := q.pending.first()
	if b.status == ibv.WC_SUCCESS && !b.done && (q.sender == nil || !q.sender.Done()) {
		return false
	}
	q.endPending(b.status)
	return true
}

// endPending ends the first pending message with a status.
func (q *QP) endPending(status ibv.WCStatus) {
	b := *q.pending.first()
	q.pending.drop()
	if q.sender != nil {
		q.sender.Take()
	} else {
		q.sent, q.retry.lost, q.retry.notReady, q.retry.due = false, 0, 0, 0
	}
	if r := q.requestOf(&b); r != nil {
		q.finish(r, status)
	} else {
		q.endTransfer(status)
	}
}

// endTransfer ends the read or the FIN of the first rendezvous, which is no longer pending.
func (q *QP) endTransfer(status ibv.WCStatus) {
	t := q.rendezvous.first()
	done := t.isRead || status != ibv.WC_SUCCESS
	if !t.isRead {
		q.completeTag(t, status, ibv.WC_TM_DATA_VALID, t.headers.rvh.Len.Host())
		q.SRQ.Tags.Recycle(t.tag)
		t.isRead = true
	}
	if done {
		q.rendezvous.drop()
	}
	if status != ibv.WC_SUCCESS {
		q.SetState(ibv.QPS_ERR)
	}
}

// endRendezvous ends all transfers: tags whose data was not read complete with an error.
func (q *QP) endRendezvous() {
	for q.rendezvous.len() > 0 {
		if r := q.rendezvous.first(); !r.isRead {
			q.completeTag(r, ibv.WC_WR_FLUSH_ERR, ibv.WC_TM_DATA_VALID, 0)
			q.SRQ.Tags.Recycle(r.tag)
		}
		q.rendezvous.drop()
	}
}

// finish completes the first request of the send queue.
func (q *QP) finish(r *Request, status ibv.WCStatus) {
	q.next++
	if status != ibv.WC_SUCCESS || r.flags&ibv.SEND_SIGNALED != 0 || q.Signals {
		slot := resource.Slot{Sends: &q.retired, Position: q.next}
		e := q.SendCQ.Next(slot, r.id, status, sendOpcodes[r.Opcode], q.Number)
		switch r.Opcode {
		case ibv.WR_RDMA_READ:
			e.WC.ByteLen = uint32(resource.Room(r.SGEs))
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			e.WC.ByteLen = 8
		}
		q.SendCQ.Publish(e, false)
	}
	q.count(counters.OfRequest(r.Opcode))
	switch status {
	case ibv.WC_SUCCESS:
		return
	case ibv.WC_RETRY_EXC_ERR:
		q.count(counters.RetriesExceeded)
	case ibv.WC_RNR_RETRY_EXC_ERR:
		q.count(counters.NotReadyExceeded)
	}
	// Datagrams and unreliable connections can return from SQE.
	rule := ibv.StateAfterCompletion(status, ibv.WorkQueueSend, q.Kind)
	if rule.Answer == ibv.AnswerYes && q.State != ibv.QPS_ERR {
		q.SetState(rule.State)
	}
}

// waits reports whether messages are in flight.
func (q *QP) waits() bool {
	if q.sender != nil {
		return q.sender.Waits()
	}
	return q.sent
}

// setTimer sets the timer for the answers to messages in flight. A timer that is already set stays: when it fires, the
// queue pair compares the time with the current deadline.
func (q *QP) setTimer() {
	t := &q.retry
	if t.paused {
		return
	}
	if !q.waits() {
		if t.timer != 0 && q.On.Clock.IsVirtual() { // it would advance the time
			q.stopTimer()
		}
		return
	}
	if q.Attr.Timeout == 0 {
		return
	}
	d := int64(4096) << (q.Attr.Timeout & 31)
	if t.due == 0 {
		t.due = q.On.Clock.Now() + d
	}
	if t.timer == 0 {
		t.timer = q.On.Clock.After(time.Duration(d), t.fire)
	}
}

// pause stops sending for d.
func (q *QP) pause(d time.Duration) {
	q.stopTimer()
	q.retry.paused = true
	q.retry.timer = q.On.Clock.After(d, q.retry.fire)
}

// forever is the rnr_retry without a limit.
const forever = 7

// notReadyTimes are the RNR timers by code, in units of 10 µs. Code 0 is the longest.
var notReadyTimes = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
	6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func notReadyTime(code uint8) time.Duration {
	return time.Duration(notReadyTimes[code&31]) * 10 * time.Microsecond
}

// withResponse are the operations whose answer is a response, not only an acknowledgement.
const withResponse = withData | 1<<ibv.WR_FLUSH | 1<<ibv.WR_ATOMIC_WRITE

// withData are the operations whose response has data.
const withData = 1<<ibv.WR_RDMA_READ | 1<<ibv.WR_ATOMIC_CMP_AND_SWP | 1<<ibv.WR_ATOMIC_FETCH_AND_ADD

// returnsData reports whether the response to a request has data.
func returnsData(opcode ibv.WROpcode) bool { return withData>>(opcode&31)&1 != 0 }

// expectsResponse reports whether the answer to a request is a response, not only an acknowledgement.
func expectsResponse(opcode ibv.WROpcode) bool { return withResponse>>(opcode&31)&1 != 0 }

// packets returns the number of packets of the path's MTU in a message, or in the response to a read.
func (q *QP) packets(m *message.Request) uint32 {
	if m.Opcode == ibv.WR_FLUSH || q.Kind == ibv.QPT_UD {
		return 1
	}
	return packetsOf(m.Length, q.Attr.PathMTU)
}

// packetsOf returns the number of packets for length bytes.
func packetsOf(length uint64, mtu ibv.MTU) uint32 {
	return uint32((length + 128<<mtu - 1) >> (7 + mtu))
}

// sum returns the number of bytes in segments.
func sum(of []mem.Segment) (n uint64) {
	for i := range of {
		n += of[i].Length
	}
	return n
}

// KnownOpcodes exceeds the highest opcode of the tables.
const KnownOpcodes = 16

// sendOpcodes are the opcodes of completions, by opcode of the request.
var sendOpcodes = func() (all [KnownOpcodes]ibv.WCOpcode) {
	for op := range ibv.WROpcode(KnownOpcodes) {
		all[op] = ibv.SendCompletion(op).Opcode
	}
	return all
}()
