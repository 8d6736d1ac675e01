package soft

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// verdict is what became of a request.
type verdict struct {
	status  ibv.WCStatus
	outcome outcome
}

type outcome uint8

const (
	finished outcome = iota // with a status
	notReady                // the peer has no receive
	lost                    // nobody answered
	late                    // a fault delays it
)

var succeeded = verdict{status: ibv.WC_SUCCESS}

func failed(status ibv.WCStatus) verdict { return verdict{status: status} }

// progress carries out the requests of the send queue, in order, until one has to wait.
func (q *qp) progress() {
	if q.moving { // its own peer
		return
	}
	q.moving = true
	for q.stall.timer == 0 && q.sendFins() && q.next != q.posted {
		r := &q.ring[q.next&q.mask]
		if q.state == ibv.QPS_ERR || q.state == ibv.QPS_SQE {
			q.finish(r, ibv.WC_WR_FLUSH_ERR)
			continue
		}
		if q.state != ibv.QPS_RTS && (q.state != ibv.QPS_SQD || !q.stall.on) {
			break
		}
		v := q.execute(r)
		if v.outcome == finished {
			q.finish(r, v.status)
			continue
		}
		if q.state == ibv.QPS_ERR { // by what it did itself
			continue
		}
		if status := q.hold(v.outcome); status != ibv.WC_SUCCESS {
			q.finish(r, status)
			continue
		}
		break
	}
	q.moving = false
	if q.state == ibv.QPS_SQD && !q.stall.on && q.attr.SQDraining != 0 {
		q.attr.SQDraining = 0
		if q.attr.EnSQDAsyncNotify != 0 {
			q.attr.EnSQDAsyncNotify = 0
			q.tell(ibv.EVENT_SQ_DRAINED)
		}
	}
}

// finish ends the first request of the send queue.
func (q *qp) finish(r *request, status ibv.WCStatus) {
	position := q.next
	q.next++
	q.settle()
	if status != ibv.WC_SUCCESS || r.flags&ibv.SEND_SIGNALED != 0 || q.signals {
		e := q.sendCQ.next()
		e.wc = ibv.WC{WRID: r.id, Status: status, Opcode: sendOpcodes[r.opcode], QPNum: q.number}
		switch r.opcode {
		case ibv.WR_RDMA_READ:
			e.wc.ByteLen = total(q.entries(position)[:r.sges])
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			e.wc.ByteLen = 8
		}
		e.sender, e.receiver, e.position = q, nil, q.next
		q.sendCQ.publish(e, false)
	}
	if state, changes := stateAfter(status, q.kind); changes && q.state != ibv.QPS_ERR {
		q.setState(state)
	}
}

// total is how many bytes entries have.
func total(sges []ibv.SGE) (n uint32) {
	for i := range sges {
		n += sges[i].Length
	}
	return n
}

// hold lets the first request wait for its time: nothing else wakes it, neither a receive nor another request. It gives the status that
// ends it when it has waited often enough.
func (q *qp) hold(why outcome) ibv.WCStatus {
	s, f := &q.stall, q.fabric()
	s.on = true
	var d time.Duration
	switch why {
	case notReady:
		if q.attr.RNRRetry != forEver {
			if s.notReady >= int(q.attr.RNRRetry) {
				return ibv.WC_RNR_RETRY_EXC_ERR
			}
			s.notReady++
		}
		d = notReadyTime(q.patience())
	case lost:
		if q.attr.Timeout == 0 { // no timer: another request shows that one is missing, and both are sent
			return ibv.WC_SUCCESS
		}
		s.lost++
		s.spent = s.lost > int(q.attr.RetryCnt)
		d = time.Duration(4096) * time.Nanosecond << (q.attr.Timeout & 31)
	case late:
		d = f.faults.Late
	}
	s.timer = f.after(d, s.fire)
	return ibv.WC_SUCCESS
}

// forEver is the rnr_retry that has no end.
const forEver = 7

// timeout is the timer of the first request.
func (q *qp) timeout() {
	q.stall.timer = 0
	q.progress()
}

// settle forgets why the first request waited.
func (q *qp) settle() {
	if !q.stall.on {
		return
	}
	if q.stall.timer != 0 {
		q.fabric().cancel(q.stall.timer)
	}
	q.stall = stall{fire: q.stall.fire}
}

// patience is the code of the time that the peer asks to wait when it is not ready.
func (q *qp) patience() uint8 {
	if peer, ok := q.fabric().numbers.get(q.attr.DestQPNum).(*qp); ok {
		return peer.attr.MinRNRTimer
	}
	return 1
}

// notReadyTimes are those of the codes from 1 on, in hundredths of a millisecond; code 0 is the longest.
var notReadyTimes = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func notReadyTime(code uint8) time.Duration {
	return time.Duration(notReadyTimes[code&31]) * 10 * time.Microsecond
}
