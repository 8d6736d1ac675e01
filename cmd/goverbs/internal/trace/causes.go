// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// cause is why something failed, and what to do.
type cause struct{ name, why, fix string }

// why finds the cause of a status, from the attributes of both ends. peer may be nil.
func (j *judge) why(status string, q, peer *queuePair, r *posted, receive bool) cause {
	switch status {
	case "LOC_PROT_ERR":
		return j.localMemory(q, r, receive)
	case "LOC_LEN_ERR":
		if receive {
			return tooSmall(q, r)
		}
		return cause{"message-too-long", fmt.Sprintf("the message has %d bytes", r.bytes()),
			"send no more than the path's MTU over UD, and no more than max_msg_sz of the port otherwise"}
	case "LOC_QP_OP_ERR", "LOC_ACCESS_ERR":
		if q.RdAtomic != nil && *q.RdAtomic == 0 && (r.Op == "RDMA_READ" || strings.HasPrefix(r.Op, "ATOMIC")) {
			return cause{"no-reads-allowed", "max_rd_atomic of this end is 0, so it may have no read or atomic under " +
				"way",
				"set max_rd_atomic in the change to RTS"}
		}
		if c, ok := j.ownMistake(q, r, receive); ok { // Soft-RoCE says so of keys
			return c
		}
		return cause{"operation-refused", "the device refused the request before it sent anything",
			"goverbs explain " + r.Op + " " + q.Type + " says what is allowed"}
	case "REM_ACCESS_ERR":
		return j.remoteMemory(q, peer, r)
	case "REM_INV_REQ_ERR":
		return j.invalidRequest(q, peer, r)
	case "REM_OP_ERR":
		if peer != nil && len(peer.recvs)+len(peer.srq) > 0 {
			into := slices.Concat(peer.recvs, peer.srq)[0]
			if has2(r.Op) && r.Op != "RDMA_WRITE_WITH_IMM" && r.bytes() > into.bytes() {
				return tooSmall(peer, into)
			}
			return j.localMemory(peer, into, true)
		}
		return cause{"peer-failed", "the other end could not carry out the request", "trace the other end as well"}
	case "RNR_RETRY_EXC_ERR":
		return cause{"no-receive", "the other end had no receive posted, and rnr_retry ran out",
			"post receives before the other end sends; rnr_retry 7 waits without end"}
	case "RETRY_EXC_ERR":
		return j.unanswered(q, peer)
	case "WR_FLUSH_ERR":
		return j.flushed(q, peer, r, receive)
	case "MW_BIND_ERR":
		return windowRefused
	}
	return cause{"status-" + strings.ToLower(status), "", "goverbs explain " + status}
}

// localMemory judges the memory of a request.
func (j *judge) localMemory(q *queuePair, r *posted, writes bool) cause {
	writes = writes || r.Op == "RDMA_READ" || strings.HasPrefix(r.Op, "ATOMIC")
	for _, s := range r.SGEs {
		m := j.local(q.trace, q.Device, s.LKey, r.t)
		at := fmt.Sprintf("%d bytes at 0x%x with lkey %#x of QP %#x", s.Bytes, uint64(s.At), s.LKey, q.num)
		switch {
		case m == nil:
			return cause{"lkey-unknown", at + ": no region has the key", "use the LKey of a registered region"}
		case !m.alive(r.t):
			return cause{"lkey-deregistered", at + ": the region was deregistered before",
				"close a region only when all its requests have completed"}
		case m.pd != q.PD:
			return cause{"lkey-other-pd", at + ": the region is of another protection domain than the queue pair",
				"register the memory in the queue pair's domain"}
		case s.At < m.at || uint64(s.At)+s.Bytes > uint64(m.at)+m.bytes:
			return cause{"local-range", fmt.Sprintf("%s: the region has %d bytes at 0x%x", at, m.bytes, uint64(m.at)),
				"stay within the region"}
		case writes && !has(m.access, "LOCAL_WRITE"):
			return cause{"local-write-missing", at + ": the device has to write there, and the region lacks " +
				"LOCAL_WRITE",
				"register memory for receives, reads and atomics with LOCAL_WRITE"}
		}
	}
	return cause{"memory-gone", "the regions fit: the memory below them is not mapped any more, or may not be written",
		"keep memory mapped as long as it is registered"}
}

// rights are the access flags that operations need at the other end.
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

// remoteMemory judges what a request names at the other end.
func (j *judge) remoteMemory(q, peer *queuePair, r *posted) cause {
	need := rights(r.Op)
	if peer == nil {
		return cause{"remote-access", "the other end refused access, and it is not in the trace",
			"check rkey, range, REMOTE_ rights of region and queue pair there; goverbs trace explain takes both " +
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
		return cause{"qp-lacks-" + dashed(need), fmt.Sprintf("QP %#x of the other end was not given %s", peer.num,
			need),
			"set qp_access_flags in its change to INIT"}
	case m == nil:
		return cause{"rkey-unknown", at + ": the other end has no region with the key",
			"send the RKey of a region that lives; keys change with every registration"}
	case !m.alive(r.t):
		return cause{"rkey-deregistered", at + ": the other end has deregistered the region",
			"keep the region until the last access has completed"}
	case m.pd != peer.PD:
		return cause{"rkey-other-pd", at + ": the region is of another protection domain than QP " +
			fmt.Sprintf("%#x", peer.num), "register the memory in the domain of the queue pair"}
	case uint64(r.Remote) < uint64(m.at) || uint64(r.Remote)+size > uint64(m.at)+m.bytes:
		return cause{"remote-range", fmt.Sprintf("%s: the region there has %d bytes at 0x%x", at, m.bytes,
			uint64(m.at)),
			"stay within the region"}
	case need != "" && !has(m.access, need):
		return cause{"mr-lacks-" + dashed(need), at + ": the region was registered without " + need,
			"register it with " + need}
	}
	return cause{"memory-gone", at + ": the region fits, and the memory below it may be unmapped",
		"keep memory mapped as long as it is registered"}
}

func dashed(flag string) string { return strings.ToLower(strings.ReplaceAll(flag, "_", "-")) }

// invalidRequest judges a request that the other end called invalid.
func (j *judge) invalidRequest(q, peer *queuePair, r *posted) cause {
	atomic := strings.HasPrefix(r.Op, "ATOMIC")
	switch {
	case atomic && r.Remote%8 != 0:
		return misaligned(&r.WR)
	case peer != nil && peer.DestRdAtomc != nil && *peer.DestRdAtomc == 0 && (atomic || r.Op == "RDMA_READ"):
		return cause{"peer-takes-no-reads", fmt.Sprintf("max_dest_rd_atomic of QP %#x is 0", peer.num),
			"set it in the change to RTR of the other end"}
	case strings.HasPrefix(r.Op, "SEND"):
		return tooSmall(q, r)
	case peer != nil:
		return j.remoteMemory(q, peer, r)
	}
	return cause{"invalid-request", "the other end does not take the operation", "compare both ends' attributes"}
}

func misaligned(wr *WR) cause {
	return cause{"atomic-misaligned", fmt.Sprintf("0x%x is no multiple of 8", uint64(wr.Remote)),
		"atomics work on 8 bytes at a multiple of 8"}
}

// tooSmall is the cause of a message without room.
func tooSmall(q *queuePair, r *posted) cause {
	why := fmt.Sprintf("the receive has less room than the message; this request has %d bytes", r.bytes())
	if q.Type == "UD" {
		return cause{"grh-room", why + ", and of a receive of datagrams the first 40 are for the GRH",
			"post receives with 40 bytes more than the datagram"}
	}
	return cause{"receive-too-small", why, "post receives as large as the largest message"}
}

// unanswered judges why the other end has not answered.
func (j *judge) unanswered(q, peer *queuePair) cause {
	if q.DestQP == nil {
		return cause{"path-lost", "the other end does not answer", "goverbs ping tries the path"}
	}
	to := fmt.Sprintf("QP %#x, where the requests went,", *q.DestQP)
	different := func(a, b *uint32) bool { return a != nil && b != nil && *a != *b }
	switch {
	case peer == nil:
		return cause{"peer-unknown", to + " is in no trace: the number is wrong, or of a program that was not traced",
			"exchange the number of the queue pair; trace the other end as well"}
	case peer.gone != 0:
		return cause{"peer-destroyed", to + " was destroyed", "end connections at both ends together"}
	case j.elsewhere(q, peer):
		return cause{"wrong-gid", "no port of the other end's device has GID " + q.DGID,
			"goverbs gids lists them; exchange the GID"}
	case peer.Type != q.Type:
		return cause{"type-mismatch", fmt.Sprintf("%s is of type %s, and this one of %s", to, peer.Type, q.Type),
			"create both of the same type"}
	case peer.State == "ERR" || peer.State == "SQE":
		return cause{"peer-in-error", to + " is in state " + peer.State, "look for what failed there first"}
	case peer.State != "RTR" && peer.State != "RTS" && peer.State != "SQD":
		return cause{"peer-not-ready", fmt.Sprintf("%s is in state %s", to, cmp.Or(peer.State, "RESET")),
			"move it to RTR before this end sends"}
	case different(peer.DestQP, &q.num):
		return cause{"peer-connected-elsewhere", fmt.Sprintf("%s is connected to QP %#x", to, *peer.DestQP),
			"exchange numbers in pairs"}
	case different(q.SQPSN, peer.RQPSN):
		return cause{"psn-mismatch", fmt.Sprintf("this end's sq_psn is %d, and the other end's rq_psn %d", *q.SQPSN,
			*peer.RQPSN), "give each end the other one's sq_psn as rq_psn"}
	case q.MTU != nil && peer.MTU != nil && *q.MTU > *peer.MTU:
		return cause{"mtu-mismatch", fmt.Sprintf("path_mtu is %d here and %d there", *q.MTU, *peer.MTU),
			"use the smaller one at both ends"}
	}
	return cause{"path-lost", "both ends fit: packets or answers are lost on the way, or the link is down",
		"goverbs ping tries the path; look at the ports (goverbs devices), at UDP 4791 in firewalls, and at the " +
			"counters"}
}

// elsewhere says that a connection's GID is not one of the other end's device, as far as that is known.
func (j *judge) elsewhere(q, peer *queuePair) bool {
	known := j.gids[peer.Device]
	return q.DGID != "" && len(known) > 0 && !slices.Contains(known, q.DGID)
}

// nobodys says that no device whose GIDs are known has one.
func (j *judge) nobodys(gid string) bool {
	for _, known := range j.gids {
		if slices.Contains(known, gid) {
			return false
		}
	}
	return len(j.gids) > 0
}

var withoutDevices = cause{"no-devices", "the kernel has no RDMA, and the program has opened no other device",
	"goverbs doctor says what is missing; GOVERBS_DEVICE=soft0 is a device in software"}

// refused judges a call or a post that failed.
func (j *judge) refused(t *Trace, e *Event) {
	var q *queuePair
	if e.QP != nil {
		q = j.find(t, *e.QP)
	}
	what := fmt.Sprintf("%s: %s", e.Verb, cmp.Or(e.Error, fmt.Sprintf("errno %d", e.Errno)))
	const (
		ebusy  = 16
		enomem = 12
		efault = 14
		enosys = 38
	)
	if e.Verb == "ibv_get_device_list" && e.Errno == enosys {
		if j.lacking[t] == nil { // programs ask again and again
			j.lacking[t] = j.add(e, nil, what, withoutDevices)
		}
		return
	}
	c := cause{"call-failed", e.Error, "the error of the call says more"}
	switch {
	case e.Object != "": // a check of the library, which says what was wrong
		what, c = e.Verb+" of "+e.Object+" was refused", checked(e)
	case strings.HasPrefix(e.Verb, "ibv_post_"), strings.HasPrefix(e.Verb, "ibv_wr_"),
		e.Verb == "ibv_bind_mw" && e.N == 0:
		c = refusedPost(q, e, e.Errno == enomem)
	case strings.HasPrefix(e.Verb, "ibv_reg_mr"):
		switch remote := has(e.Access, "REMOTE_WRITE") || has(e.Access, "REMOTE_ATOMIC"); {
		case remote && !has(e.Access, "LOCAL_WRITE"):
			c = cause{"remote-without-local-write", "what others may write, the device must be allowed to write",
				"add LOCAL_WRITE"}
		case e.Errno == efault:
			c = cause{"memory-not-mapped", fmt.Sprintf("%d bytes at 0x%x are not all mapped, or may not be written",
				e.Bytes, uint64(e.At)), "register memory that is mapped, with rights that fit"}
		case e.Errno == enomem:
			c = cause{"memlock-limit", "the process may not pin so much memory", "raise ulimit -l"}
		}
	case e.Verb == "ibv_modify_qp" && q != nil:
		if c = refusedChange(q, e); c.name == "attribute-value" && e.DGID != "" && j.nobodys(e.DGID) {
			c = cause{"wrong-gid", "no device of the trace has GID " + e.DGID,
				"goverbs gids lists them; exchange the GID"}
		}
	case strings.HasPrefix(e.Verb, "rdma_"):
		c = refusedID(e)
	case e.Errno == ebusy:
		c = cause{"still-in-use", "other objects need it", "close its children first"}
	case strings.Contains(e.Verb, "_create_"):
		c = cause{"capacity", "the device does not have so much", "goverbs query tells the device's limits"}
	}
	j.add(e, q, what, c)
}

// checked sorts the reasons of checks, which say all that a person needs, for programs.
func checked(e *Event) cause {
	for _, sort := range []struct{ verb, says, name, fix string }{
		{"ibv_modify_qp", "is not a valid state transition", "transition-invalid", "go RESET, INIT, RTR, RTS"},
		{"ibv_modify_qp", " needs ", "attributes-missing", "set them, and their bits of the mask"},
		{"ibv_modify_qp", " does not take ", "attributes-too-many", "leave them out of the mask"},
		{"ibv_reg_", "LOCAL_WRITE", "remote-without-local-write", "add LOCAL_WRITE"},
	} {
		if strings.HasPrefix(e.Verb, sort.verb) && strings.Contains(e.Error, sort.says) {
			return cause{sort.name, e.Error, sort.fix}
		}
	}
	return cause{"call-refused", e.Error, "the reason says what would be valid"}
}

// refusedPost judges a post that was not taken.
func refusedPost(q *queuePair, e *Event, full bool) cause {
	state := ""
	if q != nil {
		state = cmp.Or(q.State, "RESET")
	}
	recv := strings.Contains(e.Verb, "recv")
	// A check tells what it minds; a device only that it does.
	said := e.WRs == nil && e.Error != "" && !strings.Contains(e.Error, "takes no work in")
	const eopnotsupp = 95
	switch {
	case said && e.Errno == eopnotsupp:
		return cause{"not-supported", e.Error, "goverbs query tells what the device has"}
	case said && !full:
	case recv && state == "RESET", !recv && (state == "RESET" || state == "INIT" || state == "RTR"):
		return cause{"wrong-state", "the queue pair is in state " + state,
			"sends need RTS, receives INIT: change the state first"}
	case full:
		return cause{"queue-full", "the queue has as many requests as it takes; " + e.Error,
			"poll completions, which free places, or create it deeper; some of the sends must be signalled"}
	}
	for i := range e.WRs {
		if wr := &e.WRs[i]; strings.HasPrefix(wr.Op, "ATOMIC") && wr.Remote%8 != 0 {
			return misaligned(wr)
		}
	}
	return cause{"invalid-request", e.Error, "the reason says what would be valid"}
}

// refusedChange judges a change of state by the table of the man page.
func refusedChange(q *queuePair, e *Event) cause {
	var kind ibv.QPType
	var from, to ibv.QPState
	if kind.UnmarshalText([]byte("IBV_QPT_"+q.Type)) != nil || from.UnmarshalText([]byte("IBV_QPS_"+e.From)) != nil ||
		to.UnmarshalText([]byte("IBV_QPS_"+cmp.Or(e.State, e.From))) != nil {
		return cause{"call-failed", e.Error, ""}
	}
	rule := ibv.ModifyQP(kind, from, to)
	if rule.Answer == ibv.AnswerNo {
		return cause{"transition-invalid", fmt.Sprintf("a queue pair of type %s does not go from %s to %s", q.Type,
			e.From,
			e.State), "go RESET, INIT, RTR, RTS; goverbs explain " + e.From + " " + e.State}
	}
	var missing []string
	for _, a := range attributes {
		if rule.Required&a.mask != 0 && !a.has(e) {
			missing = append(missing, a.mask.String())
		}
	}
	if missing != nil {
		return cause{"attributes-missing", "the change needs " + strings.Join(missing, ", "),
			"set them, and their bits of the mask"}
	}
	return cause{"attribute-value", "all attributes are there, so one of them has a value that the device refuses",
		"goverbs query tells the device's limits, and goverbs gids its GIDs"}
}

// attributes are those that events have.
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
