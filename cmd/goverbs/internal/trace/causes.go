// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// cause is the reason of a failure with its fix.
type cause struct{ name, why, fix string }

// statusCause finds the cause of a status from the attributes of both ends. peer may be nil.
func (j *analyzer) statusCause(status string, q, peer *queuePair, r *posted, receive bool) cause {
	switch status {
	case "LOC_PROT_ERR":
		return j.localMemory(q, r, receive)
	case "LOC_LEN_ERR":
		if receive {
			return tooSmall(q, r)
		}
		return cause{"message-too-long", fmt.Sprintf("message size %d is too large", r.bytes()),
			"send at most the path MTU over UD, or max_msg_sz of the port otherwise"}
	case "LOC_QP_OP_ERR", "LOC_ACCESS_ERR":
		if q.RdAtomic != nil && *q.RdAtomic == 0 && (r.Op == "RDMA_READ" || strings.HasPrefix(r.Op, "ATOMIC")) {
			return cause{"no-reads-allowed", "max_rd_atomic of this end is 0: no read or atomic may be in " +
				"way",
				"set max_rd_atomic in the change to RTS"}
		}
		if c, ok := j.localError(q, r, receive); ok { // Soft-RoCE reports invalid keys with this status
			return c
		}
		return cause{"operation-refused", "the local device rejected the request",
			"goverbs explain " + r.Op + " " + q.Type + " lists the allowed operations"}
	case "REM_ACCESS_ERR":
		return j.remoteMemory(q, peer, r)
	case "REM_INV_REQ_ERR":
		return j.invalidRequest(q, peer, r)
	case "REM_OP_ERR":
		if peer != nil && len(peer.recvs)+len(peer.srq) > 0 {
			into := slices.Concat(peer.recvs, peer.srq)[0]
			if consumesReceive(r.Op) && r.Op != "RDMA_WRITE_WITH_IMM" && r.bytes() > into.bytes() {
				return tooSmall(peer, into)
			}
			return j.localMemory(peer, into, true)
		}
		return cause{"peer-failed", "the peer could not complete the request", "trace the peer, too"}
	case "RNR_RETRY_EXC_ERR":
		return cause{"no-receive", "the peer had no receive posted until rnr_retry ran out",
			"post receives before the peer sends; rnr_retry 7 retries forever"}
	case "RETRY_EXC_ERR":
		return j.unanswered(q, peer)
	case "WR_FLUSH_ERR":
		return j.flushed(q, peer, r, receive)
	case "MW_BIND_ERR":
		return bindFailed
	}
	return cause{"status-" + strings.ToLower(status), "", "goverbs explain " + status}
}

// localMemory checks the local memory of a request.
func (j *analyzer) localMemory(q *queuePair, r *posted, writes bool) cause {
	writes = writes || r.Op == "RDMA_READ" || strings.HasPrefix(r.Op, "ATOMIC")
	for _, s := range r.SGEs {
		m := j.local(q.trace, q.Device, s.LKey, r.t)
		at := fmt.Sprintf("%d bytes at 0x%x with lkey %#x of QP %#x", s.Bytes, uint64(s.At), s.LKey, q.num)
		switch {
		case m == nil:
			return cause{"lkey-unknown", at + ": no region has this key", "use the LKey of a registered region"}
		case !m.alive(r.t):
			return cause{"lkey-deregistered", at + ": the region was deregistered earlier",
				"close a region only when all its requests have completed"}
		case m.pd != q.PD:
			return cause{"lkey-other-pd", at + ": region and queue pair have different protection domains",
				"register the memory in the protection domain of the queue pair"}
		case s.At < m.at || uint64(s.At)+s.Bytes > uint64(m.at)+m.bytes:
			return cause{"local-range", fmt.Sprintf("%s: the region has %d bytes at 0x%x", at, m.bytes, uint64(m.at)),
				"stay within the region"}
		case writes && !has(m.access, "LOCAL_WRITE"):
			return cause{"local-write-missing", at + ": the operation writes to this memory, but the region lacks " +
				"LOCAL_WRITE",
				"register memory for receives, reads and atomics with LOCAL_WRITE"}
		}
	}
	return cause{"memory-gone", "the memory of a valid region is no longer mapped or is read-only",
		"keep memory mapped as long as it is registered"}
}

// rights are the access flags that operations need at the peer.
func rights(op string) string {
	switch {
	case strings.HasPrefix(op, "RDMA_WRITE"):
		return "REMOTE_WRITE"
	case op == "RDMA_READ":
		return "REMOTE_READ"
	case strings.HasPrefix(op, "ATOMIC"):
		return "REMOTE_ATOMIC"
	}
	return ""
}

// remoteMemory checks the remote memory of a request.
func (j *analyzer) remoteMemory(q, peer *queuePair, r *posted) cause {
	need := rights(r.Op)
	if peer == nil {
		return cause{"remote-access", "the peer denied access; it has no trace",
			"check rkey, range and REMOTE_ access of region and queue pair there; goverbs trace explain reads both " +
				"ends' files"}
	}
	m := j.region(func(m *region) bool { return m.trace == peer.trace && m.device == peer.Device && m.rkey == r.RKey },
		r.t)
	size := r.bytes()
	if strings.HasPrefix(r.Op, "ATOMIC") {
		size = 8
	}
	at := fmt.Sprintf("%d bytes at 0x%x with rkey %#x", size, uint64(r.Remote), r.RKey)
	switch {
	case need != "" && peer.Access != "" && !has(peer.Access, need), need != "" && peer.Access == "":
		return cause{"qp-lacks-" + dashed(need), fmt.Sprintf("QP %#x of the peer lacks %s", peer.num,
			need),
			"set it in qp_access_flags when moving it to INIT"}
	case m == nil:
		return cause{"rkey-unknown", at + ": no region of the peer has this key",
			"use the RKey of a current region; keys change with every registration"}
	case !m.alive(r.t):
		return cause{"rkey-deregistered", at + ": the peer has deregistered the region",
			"deregister it after the last access has completed"}
	case m.pd != peer.PD:
		return cause{"rkey-other-pd", at + ": the region has another protection domain than QP " +
			fmt.Sprintf("%#x", peer.num), "register the memory in the protection domain of the queue pair"}
	case uint64(r.Remote) < uint64(m.at) || uint64(r.Remote)+size > uint64(m.at)+m.bytes:
		return cause{"remote-range", fmt.Sprintf("%s: the region there has %d bytes at 0x%x", at, m.bytes,
			uint64(m.at)),
			"stay within the region"}
	case need != "" && !has(m.access, need):
		return cause{"mr-lacks-" + dashed(need), at + ": the region was registered without " + need,
			"register it with " + need}
	}
	return cause{"memory-gone", at + ": the region is valid, but its memory may be unmapped",
		"keep memory mapped as long as it is registered"}
}

func dashed(flag string) string { return strings.ToLower(strings.ReplaceAll(flag, "_", "-")) }

// invalidRequest explains a request that the peer rejected as invalid.
func (j *analyzer) invalidRequest(q, peer *queuePair, r *posted) cause {
	atomic := strings.HasPrefix(r.Op, "ATOMIC")
	switch {
	case atomic && r.Remote%8 != 0:
		return misaligned(&r.WR)
	case peer != nil && peer.DestRdAtomc != nil && *peer.DestRdAtomc == 0 && (atomic || r.Op == "RDMA_READ"):
		return cause{"peer-takes-no-reads", fmt.Sprintf("max_dest_rd_atomic of QP %#x is 0", peer.num),
			"set it when moving the peer to RTR"}
	case strings.HasPrefix(r.Op, "SEND"):
		return tooSmall(q, r)
	case peer != nil:
		return j.remoteMemory(q, peer, r)
	}
	return cause{"invalid-request", "the peer does not support the operation", "compare the attributes of both ends"}
}

func misaligned(wr *WR) cause {
	return cause{"atomic-misaligned", fmt.Sprintf("0x%x is not a multiple of 8", uint64(wr.Remote)),
		"align the targets of atomics to 8 bytes"}
}

// tooSmall explains a message that exceeds the receive.
func tooSmall(q *queuePair, r *posted) cause {
	reason := fmt.Sprintf("the receive is smaller than the message; this request has %d bytes", r.bytes())
	if q.Type == "UD" {
		return cause{"grh-room", reason + ", and a datagram receive needs 40 more for the GRH",
			"post receives 40 bytes larger than the datagram"}
	}
	return cause{"receive-too-small", reason, "post receives as large as the largest message"}
}

// unanswered explains a missing acknowledgment.
func (j *analyzer) unanswered(q, peer *queuePair) cause {
	if q.DestQP == nil {
		return cause{"path-lost", "no answer from the peer", "test the path with goverbs ping"}
	}
	to := fmt.Sprintf("QP %#x, the destination,", *q.DestQP)
	different := func(a, b *uint32) bool { return a != nil && b != nil && *a != *b }
	switch {
	case j.otherProcess(q, peer):
		return cause{"other-process", fmt.Sprintf("%s belongs to another process, which %s cannot reach", to, q.Device),
			"give each process a device soft@ADDRESS"}
	case peer == nil:
		return cause{"peer-unknown", to + " is in no trace: its number is wrong, or the peer was not traced",
			"check the exchanged QP number; trace the peer, too"}
	case peer.gone != 0:
		return cause{"peer-destroyed", to + " was destroyed", "close connections on both ends together"}
	case j.wrongGID(q, peer):
		return cause{"wrong-gid", "no port of the peer's device has GID " + q.DGID,
			"check the exchanged GID; list GIDs with goverbs gids"}
	case peer.Type != q.Type:
		return cause{"type-mismatch", fmt.Sprintf("%s has type %s, this one %s", to, peer.Type, q.Type),
			"use the same type on both ends"}
	case peer.State == "ERR" || peer.State == "SQE":
		return cause{"peer-in-error", to + " is in state " + peer.State, "check its first failure"}
	case peer.State != "RTR" && peer.State != "RTS" && peer.State != "SQD":
		return cause{"peer-not-ready", fmt.Sprintf("%s is in state %s", to, cmp.Or(peer.State, "RESET")),
			"move it to RTR before sending"}
	case different(peer.DestQP, &q.num):
		return cause{"peer-connected-elsewhere", fmt.Sprintf("%s is connected to QP %#x", to, *peer.DestQP),
			"connect queue pairs in pairs"}
	case different(q.SQPSN, peer.RQPSN):
		return cause{"psn-mismatch", fmt.Sprintf("sq_psn is %d, but rq_psn of the peer %d", *q.SQPSN,
			*peer.RQPSN), "set rq_psn to the sq_psn of the other end"}
	case q.MTU != nil && peer.MTU != nil && *q.MTU > *peer.MTU:
		return cause{"mtu-mismatch", fmt.Sprintf("path_mtu is %d here, %d on the peer", *q.MTU, *peer.MTU),
			"use the smaller one on both ends"}
	}
	return cause{"path-lost", "the attributes match: packets are lost, or the link is down",
		"test the path with goverbs ping; check the ports (goverbs devices), firewalls for UDP port 4791, and the " +
			"counters"}
}

// otherProcess reports whether a queue pair of a software device without an address is connected to one of another
// process. peer, if any, has the number of the destination in this process.
func (j *analyzer) otherProcess(q, peer *queuePair) bool {
	inProcess := func(q *queuePair) bool {
		return strings.HasPrefix(q.Device, "soft") && !strings.HasPrefix(q.Device, "soft@")
	}
	same := func(a, b *uint32) bool { return a != nil && b != nil && *a == *b }
	if !inProcess(q) {
		return false
	}
	if peer == q {
		return q.RQPSN != nil && q.SQPSN != nil && !same(q.RQPSN, q.SQPSN)
	}
	return slices.ContainsFunc(j.qps, func(p *queuePair) bool {
		return p.trace != q.trace && inProcess(p) && p.num == *q.DestQP && same(p.DestQP, &q.num) && same(p.SQPSN, q.RQPSN)
	})
}

// wrongGID reports whether a connection's GID is known not to belong to the peer's device.
func (j *analyzer) wrongGID(q, peer *queuePair) bool {
	known := j.gids[peer.Device]
	return q.DGID != "" && len(known) > 0 && !slices.Contains(known, q.DGID)
}

// unknownGID reports whether no known device has a GID.
func (j *analyzer) unknownGID(gid string) bool {
	for _, known := range j.gids {
		if slices.Contains(known, gid) {
			return false
		}
	}
	return len(j.gids) > 0
}

var withoutDevices = cause{"no-devices", "the kernel has no RDMA support and the program opened no other device",
	"run goverbs doctor, or use a software device: GOVERBS_DEVICE=soft0, or soft@ADDRESS to reach other processes"}

// failedCall explains a failed call or post.
func (j *analyzer) failedCall(t *Trace, e *Event) {
	var q *queuePair
	if e.QP != nil {
		q = j.find(t, *e.QP)
	}
	finding := fmt.Sprintf("%s: %s", e.Verb, cmp.Or(e.Error, fmt.Sprintf("errno %d", e.Errno)))
	const (
		ebusy  = 16
		enomem = 12
		efault = 14
		enosys = 38
	)
	if e.Verb == "ibv_get_device_list" && e.Errno == enosys {
		if j.noDevice[t] == nil { // once per trace: programs retry
			j.noDevice[t] = j.add(e, nil, finding, withoutDevices)
		}
		return
	}
	c := cause{"call-failed", e.Error, "see the error of the call"}
	switch {
	case e.Object != "": // a check of this library
		finding, c = e.Verb+" of "+e.Object+" was rejected", checkCause(e)
	case strings.HasPrefix(e.Verb, "ibv_post_"), strings.HasPrefix(e.Verb, "ibv_wr_"),
		e.Verb == "ibv_bind_mw" && e.N == 0:
		c = postCause(q, e, e.Errno == enomem)
	case strings.HasPrefix(e.Verb, "ibv_reg_mr"):
		switch remote := has(e.Access, "REMOTE_WRITE") || has(e.Access, "REMOTE_ATOMIC"); {
		case remote && !has(e.Access, "LOCAL_WRITE"):
			c = cause{"remote-without-local-write", "remote write access requires LOCAL_WRITE",
				"add LOCAL_WRITE"}
		case e.Errno == efault:
			c = cause{"memory-not-mapped", fmt.Sprintf("%d bytes at 0x%x are not fully mapped, or are read-only",
				e.Bytes, uint64(e.At)), "register mapped memory, with matching access"}
		case e.Errno == enomem:
			c = cause{"memlock-limit", "the process exceeds its limit of locked memory", "raise ulimit -l"}
		}
	case e.Verb == "ibv_modify_qp" && q != nil:
		if c = changeCause(q, e); c.name == "attribute-value" && e.DGID != "" && j.unknownGID(e.DGID) {
			c = cause{"wrong-gid", "no device of the trace has GID " + e.DGID,
				"check the exchanged GID; list GIDs with goverbs gids"}
		}
	case strings.HasPrefix(e.Verb, "rdma_"):
		c = idCause(e)
	case e.Errno == ebusy:
		c = cause{"still-in-use", "other objects use it", "close its children first"}
	case strings.Contains(e.Verb, "_create_"):
		c = cause{"capacity", "the request exceeds a limit of the device", "see the limits with goverbs query"}
	}
	j.add(e, q, finding, c)
}

// checkCause classifies the errors of checks.
func checkCause(e *Event) cause {
	for _, sort := range []struct{ verb, says, name, fix string }{
		{"ibv_modify_qp", "is not a valid state transition", "transition-invalid", "use RESET, INIT, RTR, RTS"},
		{"ibv_modify_qp", " needs ", "attributes-missing", "set them and their mask bits"},
		{"ibv_modify_qp", " does not accept ", "attributes-too-many", "leave them out of the mask"},
		{"ibv_reg_", "LOCAL_WRITE", "remote-without-local-write", "add LOCAL_WRITE"},
	} {
		if strings.HasPrefix(e.Verb, sort.verb) && strings.Contains(e.Error, sort.says) {
			return cause{sort.name, e.Error, sort.fix}
		}
	}
	return cause{"call-refused", e.Error, "correct the argument named in the reason"}
}

// postCause explains a rejected post.
func postCause(q *queuePair, e *Event, full bool) cause {
	state := ""
	if q != nil {
		state = cmp.Or(q.State, "RESET")
	}
	recv := strings.Contains(e.Verb, "recv")
	// The error of a check has a reason, that of a device does not.
	explained := e.WRs == nil && e.Error != "" && !strings.Contains(e.Error, "accepts no requests in")
	const eopnotsupp = 95
	switch {
	case explained && e.Errno == eopnotsupp:
		return cause{"not-supported", e.Error, "see the capabilities with goverbs query"}
	case explained && !full:
	case recv && state == "RESET", !recv && (state == "RESET" || state == "INIT" || state == "RTR"):
		return cause{"wrong-state", "the queue pair is in state " + state,
			"sends need RTS, receives INIT: move the queue pair first"}
	case full:
		return cause{"queue-full", "the queue is full; " + e.Error,
			"poll completions, signal some sends, or create a deeper queue"}
	}
	for i := range e.WRs {
		if wr := &e.WRs[i]; strings.HasPrefix(wr.Op, "ATOMIC") && wr.Remote%8 != 0 {
			return misaligned(wr)
		}
	}
	return cause{"invalid-request", e.Error, "correct the request"}
}

// changeCause checks a state change against the table of the man page.
func changeCause(q *queuePair, e *Event) cause {
	var kind ibv.QPType
	var from, to ibv.QPState
	if kind.UnmarshalText([]byte("IBV_QPT_"+q.Type)) != nil || from.UnmarshalText([]byte("IBV_QPS_"+e.From)) != nil ||
		to.UnmarshalText([]byte("IBV_QPS_"+cmp.Or(e.State, e.From))) != nil {
		return cause{"call-failed", e.Error, ""}
	}
	rule := ibv.ModifyQP(kind, from, to)
	if rule.Answer == ibv.AnswerNo {
		return cause{"transition-invalid", fmt.Sprintf("a %s queue pair cannot move from %s to %s", q.Type,
			e.From,
			e.State), "use RESET, INIT, RTR, RTS; see goverbs explain " + e.From + " " + e.State}
	}
	var missing []string
	for _, a := range attributes {
		if rule.Required&a.mask != 0 && !a.has(e) {
			missing = append(missing, a.mask.String())
		}
	}
	if missing != nil {
		return cause{"attributes-missing", "missing attributes: " + strings.Join(missing, ", "),
			"set them and their mask bits"}
	}
	return cause{"attribute-value", "all attributes are set; the device rejected a value",
		"check the values with goverbs query and goverbs gids"}
}

// attributes returns the attributes of an event.
var attributes = []struct {
	mask ibv.QPAttrMask
	has  func(*Event) bool
}{
	{ibv.QP_DEST_QPN, func(e *Event) bool { return e.DestQP != nil }},
	{ibv.QP_AV, func(e *Event) bool { return e.DGID != "" }},
	{ibv.QP_QKEY, func(e *Event) bool { return e.QKey != nil }},
	{ibv.QP_RQ_PSN, func(e *Event) bool { return e.RQPSN != nil }},
	{ibv.QP_SQ_PSN, func(e *Event) bool { return e.SQPSN != nil }},
	{ibv.QP_PKEY_INDEX, func(e *Event) bool { return e.PKeyIndex != nil }},
	{ibv.QP_PATH_MTU, func(e *Event) bool { return e.MTU != nil }},
	{ibv.QP_TIMEOUT, func(e *Event) bool { return e.Timeout != nil }},
	{ibv.QP_RETRY_CNT, func(e *Event) bool { return e.RetryCnt != nil }},
	{ibv.QP_RNR_RETRY, func(e *Event) bool { return e.RNRRetry != nil }},
	{ibv.QP_MIN_RNR_TIMER, func(e *Event) bool { return e.RNRTimer != nil }},
	{ibv.QP_MAX_QP_RD_ATOMIC, func(e *Event) bool { return e.RdAtomic != nil }},
	{ibv.QP_MAX_DEST_RD_ATOMIC, func(e *Event) bool { return e.DestRdAtomc != nil }},
}
