package rdma

import (
	"errors"
	"fmt"
	"math"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Modify changes the queue pair's state and attributes: those of attr that mask names. What a transition needs and allows is checked by the
// generated table first (ibv.ModifyQP); the error names what is missing, or does not belong there. Moving it to RESET drops what is
// outstanding without completions, and gives all slots back.
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

// modify is Modify; the caller holds changes.
func (q *QP) modify(attr *ibv.QPAttr, mask ibv.QPAttrMask) error {
	const verb = "ibv_modify_qp"
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
	if err := libibverbs.ModifyQP(q.c, attr, mask); err != nil {
		return explain(verb, q.name, q.modifyReason(from, to, attr, mask, err), err)
	}
	if q.c.QPNum != q.Num() { // a target of dynamic connections has its number from RTR on
		q.untrack()
		q.track()
	}
	if mask&ibv.QP_STATE == 0 {
		return nil
	}
	switch to {
	case ibv.QPS_RTR:
		q.received = true
	case ibv.QPS_RESET:
		q.resetQueues()
	case ibv.QPS_INIT:
		if mask&ibv.QP_PORT != 0 {
			q.limitMessages(attr.PortNum)
		}
	}
	return nil
}

// resetQueues forgets what was outstanding. Completions that came before are put aside, so that nobody takes them for newer ones.
func (q *QP) resetQueues() {
	q.collect()
	if q.send != nil {
		q.sendCQ.queue.quiet(q.send.Reset)
	}
	if q.recv != nil {
		q.recvCQ.queue.quiet(q.recv.Reset)
	}
	q.sendMark.forget()
	q.recvMark.forget()
	q.forgetLastWQE()
	q.received = false
}

// maskReason says why the table refuses a transition, or nothing.
func (q *QP) maskReason(from, to ibv.QPState, mask ibv.QPAttrMask) string {
	rule := ibv.ModifyQP(q.kind, from, to)
	transition := fmt.Sprintf("%s to %s", shortState(from), shortState(to))
	if refused(rule.Validity) {
		return fmt.Sprintf("%s is no transition of a queue pair: %s", transition, rule.Reason)
	}
	if rule.Answer != ibv.AnswerYes {
		return "" // the table does not know this type of queue pair
	}
	if missing := rule.Required &^ mask; missing != 0 {
		return fmt.Sprintf("%s needs %v as well", transition, missing)
	}
	if extra := mask &^ (rule.Required | rule.Optional | ibv.QP_STATE | ibv.QP_CUR_STATE); extra != 0 {
		return fmt.Sprintf("%s does not take %v; it takes %v", transition, extra, rule.Required|rule.Optional)
	}
	return ""
}

// modifyReason says why C may have refused a transition that the table allows, or nothing.
func (q *QP) modifyReason(from, to ibv.QPState, attr *ibv.QPAttr, mask ibv.QPAttrMask, cause error) string {
	now, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	if libibverbs.QueryQP(q.c, now, ibv.QP_STATE, init) == nil && now.QPState != from {
		if mask&ibv.QP_CUR_STATE != 0 {
			return fmt.Sprintf("the queue pair is in %s, not in %s as cur_qp_state says", shortState(now.QPState), shortState(from))
		}
		return fmt.Sprintf("the queue pair is in %s, not in %s as it was left: an error moved it there", shortState(now.QPState), shortState(from))
	}
	if !errors.Is(cause, einval) {
		return ""
	}
	if reason := q.attrReason(attr, mask); reason != "" || mask&ibv.QP_AV == 0 {
		return reason
	}
	return q.device.pathReason(&attr.AHAttr)
}

// attrReason says which attribute of those in mask has a value that there is not, or that the device does not have; or nothing.
func (q *QP) attrReason(attr *ibv.QPAttr, mask ibv.QPAttrMask) string {
	device, port := new(ibv.DeviceAttr), new(ibv.PortAttr)
	if libibverbs.QueryDevice(q.device.c, device) != nil {
		return ""
	}
	if n := attr.PortNum; mask&ibv.QP_PORT != 0 && (n == 0 || n > device.PhysPortCnt) {
		return fmt.Sprintf("there is no port %d (port_num); ports are 1 to %d", n, device.PhysPortCnt)
	}
	const any32 = math.MaxInt32
	keys := int32(any32) // of the port's table, if that is known
	if mask&ibv.QP_PORT != 0 && libibverbs.QueryPort(q.device.c, attr.PortNum, port) == nil {
		keys = int32(port.PKeyTblLen) - 1
	}
	for _, limit := range []struct {
		flag               ibv.QPAttrMask
		member             string
		value, least, most int32
	}{
		{ibv.QP_PKEY_INDEX, "pkey_index", int32(attr.PKeyIndex), 0, keys},
		{ibv.QP_PATH_MTU, "path_mtu", int32(attr.PathMTU), int32(ibv.MTU_256), int32(ibv.MTU_4096)},
		{ibv.QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", int32(attr.MaxRdAtomic), 0, device.MaxQPInitRdAtom},
		{ibv.QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", int32(attr.MaxDestRdAtomic), 0, device.MaxQPRdAtom},
		{ibv.QP_MIN_RNR_TIMER, "min_rnr_timer", int32(attr.MinRNRTimer), 0, 31},
		{ibv.QP_TIMEOUT, "timeout", int32(attr.Timeout), 0, 31},
		{ibv.QP_RETRY_CNT, "retry_cnt", int32(attr.RetryCnt), 0, 7},
		{ibv.QP_RNR_RETRY, "rnr_retry", int32(attr.RNRRetry), 0, 7},
	} {
		if mask&limit.flag != 0 && (limit.value < limit.least || limit.value > limit.most) {
			return fmt.Sprintf("%s is %d, and has to be from %d to %d", limit.member, limit.value, limit.least, limit.most)
		}
	}
	return ""
}

// pathReason says what is wrong with a path, or nothing.
func (d *Device) pathReason(path *ibv.AHAttr) string {
	port := new(ibv.PortAttr)
	if libibverbs.QueryPort(d.c, path.PortNum, port) != nil {
		return fmt.Sprintf("the path leads through port %d, which the device does not have", path.PortNum)
	}
	if path.IsGlobal == 0 {
		if ibv.LinkLayer(port.LinkLayer) == ibv.LINK_LAYER_ETHERNET {
			return "on Ethernet a path has to be global: is_global and grh.dgid have to be set"
		}
		return ""
	}
	if path.GRH.DGID == (ibv.GID{}) {
		return "the path leads to the GID of zeros, which nobody has (grh.dgid)"
	}
	e := new(ibv.GIDEntry)
	if libibverbs.QueryGIDEx(d.c, uint32(path.PortNum), uint32(path.GRH.SGIDIndex), e, 0) != nil {
		return fmt.Sprintf("the port's GID table has no entry %d (sgid_index)", path.GRH.SGIDIndex)
	}
	return ""
}

// limitMessages lets the checks know how much the port carries in a message.
func (q *QP) limitMessages(port uint8) {
	attr := new(ibv.PortAttr)
	if q.send == nil || libibverbs.QueryPort(q.device.c, port, attr) != nil {
		return
	}
	most := attr.MaxMsgSz
	if q.kind == ibv.QPT_UD {
		most = uint32(MTUBytes(attr.ActiveMTU))
	}
	q.send.limitMessages(most)
}

// MTUBytes is an MTU of the headers in bytes, and 0 of an unknown one.
func MTUBytes(mtu ibv.MTU) int {
	if mtu < ibv.MTU_256 || mtu > ibv.MTU_4096 {
		return 0
	}
	return 128 << mtu
}

// ModifyRateLimit limits the rate of a queue pair of type RAW_PACKET in RTS.
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
	return wrap(verb, q.name, libibverbs.ModifyQPRateLimit(q.c, attr))
}
