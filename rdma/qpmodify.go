// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// Modify changes the state and attributes of the queue pair that mask selects. It first checks the transition against a
// generated table (ibv.ModifyQP). The error names missing attributes, attributes that are invalid for the transition,
// or the attribute value that the device rejects. Moving the queue pair to RESET discards outstanding work without
// completions and releases all slots.
//
// C: ibv_modify_qp
//
// Man: ibv_modify_qp(3)
func (q *QP) Modify(attr *ibv.QPAttr, mask ibv.QPAttrMask) error {
	if err := q.use("ibv_modify_qp"); err != nil {
		return err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	return q.modify(attr, mask)
}

// modify is Modify for callers that hold changes.
func (q *QP) modify(attr *ibv.QPAttr, mask ibv.QPAttrMask) error {
	const verb = "ibv_modify_qp"
	if attr == nil {
		return noAttributes(verb, q.name)
	}
	from := q.state()
	if mask&ibv.QP_CUR_STATE != 0 {
		from = attr.CurQPState
	}
	to := from
	if mask&ibv.QP_STATE != 0 {
		to = attr.QPState
	}
	if reason := q.maskReason(from, to, mask); reason != "" {
		return invalid(verb, q.name, "%s", reason)
	}
	if to == ibv.QPS_ERR && from != ibv.QPS_ERR {
		q.forgetLastWQE()
	}
	if err := q.modifyC(attr, mask, to); err != nil {
		refused := refusal.QP{Device: q.device.refused(), C: q.c, Kind: q.kind}
		reason := refused.Modify(from, to, attr, mask)
		if reason == "" && mask&ibv.QP_AV != 0 {
			reason = refused.Unreached(&attr.AHAttr, err)
		}
		return explain(verb, q.name, reason, err)
	}
	if q.c.QPNum != q.Num() { // a DCI or DCT gets its number in RTR
		q.untrack()
		q.track()
	}
	if mask&ibv.QP_MAX_QP_RD_ATOMIC != 0 {
		q.limitReads(attr.MaxRdAtomic)
	}
	if mask&ibv.QP_STATE == 0 {
		return nil
	}
	switch to {
	case ibv.QPS_RTR:
		q.received = true
	case ibv.QPS_RESET:
		if q.native != nil {
			q.native.Reset()
		}
		q.resetQueues()
	case ibv.QPS_INIT:
		if mask&ibv.QP_PORT != 0 {
			q.limitMessages(attr.PortNum)
		}
	}
	return nil
}

// modifyC calls ibv_modify_qp. On a move to RESET, providers reinitialize their queues without excluding concurrent
// posts, so modifyC blocks posts during the call. libefa leaves earlier completions in the completion queue and crashes
// when they are polled later, so modifyC polls them first.
func (q *QP) modifyC(attr *ibv.QPAttr, mask ibv.QPAttrMask, to ibv.QPState) error {
	f := func() error { return libibverbs.ModifyQP(q.c, attr, mask) }
	if mask&ibv.QP_STATE == 0 || to != ibv.QPS_RESET {
		return f()
	}
	q.collect()
	return whileNotPosting(q.send, q.recv, f)
}

// resetQueues releases the slots of outstanding work. It first collects earlier completions, so that they are not
// attributed to later requests.
func (q *QP) resetQueues() {
	q.collect()
	if q.send != nil {
		q.send.resetIdle(q.sendCQ)
	}
	if q.recv != nil {
		q.recv.resetIdle(q.recvCQ)
	}
	q.limitReads(1) // until the next Connect
	q.sendMark.forget()
	q.recvMark.forget()
	q.forgetLastWQE()
	q.received = false
}

// maskReason returns the reason why the table rejects a transition, or "".
func (q *QP) maskReason(from, to ibv.QPState, mask ibv.QPAttrMask) string {
	rule := ibv.ModifyQP(q.kind, from, to)
	transition := fmt.Sprintf("%s to %s", refusal.ShortState(from), refusal.ShortState(to))
	if refusal.Refused(rule.Validity) {
		return fmt.Sprintf("%s is not a valid state transition: %s", transition, rule.Reason)
	}
	if rule.Answer != ibv.AnswerYes {
		return "" // the table has no rows for this type of queue pair
	}
	if missing := rule.Required &^ mask; missing != 0 {
		return fmt.Sprintf("%s also needs %v", transition, missing)
	}
	if extra := mask &^ (rule.Required | rule.Optional | ibv.QP_STATE | ibv.QP_CUR_STATE); extra != 0 {
		return fmt.Sprintf("%s does not accept %v; it accepts %v", transition, extra, rule.Required|rule.Optional)
	}
	return ""
}

// limitReads makes checks reject reads and atomic operations if none may be in flight: rxe would never execute them and
// report no error.
func (q *QP) limitReads(atOnce uint8) {
	if q.send != nil && (q.kind == ibv.QPT_RC || q.kind == ibv.QPT_XRC_SEND) {
		q.send.limitReads(atOnce)
	}
}

// limitMessages sets the largest message size for checks, from the port's attributes.
func (q *QP) limitMessages(port uint8) {
	attr := new(ibv.PortAttr)
	if q.send == nil || libibverbs.QueryPort(q.device.c, port, attr) != nil {
		return
	}
	size := attr.MaxMsgSz
	if q.kind == ibv.QPT_UD {
		size = uint32(MTUBytes(attr.ActiveMTU))
	}
	q.send.limitMessages(size)
}

// MTUBytes returns an MTU in bytes, or 0 if it is unknown.
func MTUBytes(mtu ibv.MTU) int { return refusal.MTUBytes(mtu) }

// ModifyRateLimit sets the rate limit of a queue pair of type RAW_PACKET in state RTS.
//
// C: ibv_modify_qp_rate_limit
//
// Man: ibv_modify_qp_rate_limit(3)
func (q *QP) ModifyRateLimit(attr *ibv.QPRateLimitAttr) error {
	const verb = "ibv_modify_qp_rate_limit"
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	if attr == nil {
		return noAttributes(verb, q.name)
	}
	return wrap(verb, q.name, libibverbs.ModifyQPRateLimit(q.c, attr))
}

// forgetLastWQE discards a "last WQE reached" event from before the last RESET. It first reads the events that C has
// queued. If the device has moved the queue pair to ERR, the event is current and is kept.
func (q *QP) forgetLastWQE() {
	if q.srq == nil || !q.received {
		return
	}
	q.device.events.flush()
	happened := q.lastWQE.reset()
	now, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	if happened && libibverbs.QueryQP(q.c, now, ibv.QP_STATE, init) == nil && now.QPState == ibv.QPS_ERR {
		q.lastWQE.set()
	}
}
