package soft

import (
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// maxBacklog is how many requests wait for a listener that does not say how many.
const maxBacklog = 1024

// cmListen is rdma_listen.
func cmListen(id *cmID, a []uint64) runtime.Errno {
	if id.state == cmIdle {
		if errno := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); errno != 0 {
			return errno
		}
	}
	if id.state != cmBound {
		return einval
	}
	for _, other := range id.fabric.cm.bound[id.port] {
		if id.conflicts(id.local.Addr(), other, true) {
			return eaddrinuse
		}
	}
	id.state, id.backlog = cmListening, int(int32(a[1]))
	if id.backlog <= 0 || id.backlog > maxBacklog {
		id.backlog = maxBacklog
	}
	id.writeAddresses()
	return 0
}

// readParam reads the parameters of rdma_connect and rdma_accept, which may be none, and their private data, of which only so much may be.
func (id *cmID) readParam(address uint64, call rdmacm.Call) (p rdmacm.ConnParam, private []byte, errno runtime.Errno) {
	p = rdmacm.ConnParam{ResponderResources: rdmacm.MAX_RESP_RES, InitiatorDepth: rdmacm.MAX_INIT_DEPTH, RetryCount: 7, RNRRetryCount: 7}
	if address != 0 {
		p = *at[rdmacm.ConnParam](address)
	} else if id.record.QP == 0 && !id.datagrams() {
		return p, nil, einval
	}
	if !id.datagrams() && (p.ResponderResources != rdmacm.MAX_RESP_RES && p.ResponderResources > maxReads || p.InitiatorDepth != rdmacm.MAX_INIT_DEPTH && p.InitiatorDepth > maxReads) {
		return p, nil, einval
	}
	if private, errno = id.readPrivate(uint64(p.PrivateData), p.PrivateDataLen, call); errno != 0 {
		return p, nil, errno
	}
	p.PrivateData, p.PrivateDataLen = 0, 0
	if q := id.qp(); q != nil {
		p.QPNum, p.SRQ = q.number, 0
		if q.srq != nil {
			p.SRQ = 1
		}
	}
	return p, private, 0
}

// readPrivate copies private data.
func (id *cmID) readPrivate(address uint64, n uint8, call rdmacm.Call) ([]byte, runtime.Errno) {
	service := rdmacm.ServiceIB
	if id.datagrams() {
		service = rdmacm.ServiceUD
	}
	switch {
	case int(n) > rdmacm.PrivateDataLimit(call, service).Bytes:
		return nil, einval
	case n == 0 || address == 0:
		return nil, 0
	}
	return slices.Clone(list[byte](address, int(n))), 0
}

// cmConnect is rdma_connect.
func cmConnect(id *cmID, a []uint64) runtime.Errno {
	if id.state != cmRouteResolved {
		return einval
	}
	p, private, errno := id.readParam(a[1], rdmacm.CallConnect)
	if errno != 0 {
		return errno
	}
	p.ResponderResources, p.InitiatorDepth = reads(p.ResponderResources, maxReads), reads(p.InitiatorDepth, maxReads)
	f := id.fabric
	id.psn, id.retries = f.nextPSN(), p.RetryCount
	r := &cmRequest{from: id, source: id.local, to: id.to, space: id.space, kind: id.kind, qpn: p.QPNum, psn: id.psn, param: p, private: private, ece: id.ece}
	id.request, id.state = r, cmRequesting
	id.exchange(func() {
		to := f.owner(r.to.Addr())
		f.carry(id.device, to, func() { r.arrive(to) })
	}, id.unreachable)
	return 0
}

// reads is how many reads there may be at once: of what was asked for, or as many as can be.
func reads(n, most uint8) uint8 {
	if n == rdmacm.MAX_RESP_RES {
		return most
	}
	return n
}

// cmAccept is rdma_accept: it brings the queue pair to RTS, and then answers.
func cmAccept(id *cmID, a []uint64) runtime.Errno {
	var p rdmacm.ConnParam
	var private []byte
	errno := id.locked(func() (errno runtime.Errno) {
		if id.state != cmRequested {
			return einval
		}
		if p, private, errno = id.readParam(a[1], rdmacm.CallAccept); errno != 0 {
			return errno
		}
		id.initiator, id.responder = reads(p.InitiatorDepth, id.initiator), reads(p.ResponderResources, id.responder)
		return 0
	})
	if errno != 0 {
		return errno
	}
	if !id.datagrams() {
		if errno := id.ready(); errno != 0 {
			return errno
		}
	}
	errno = id.locked(func() runtime.Errno {
		if id.state != cmRequested { // who asked has given up
			return einval
		}
		id.qpn, id.private = p.QPNum, private
		if id.datagrams() {
			id.param.QPNum = p.QPNum
			id.answerLookup(lookupFound)
			return 0
		}
		p.ResponderResources, p.InitiatorDepth = id.responder, id.initiator
		id.param, id.state = p, cmAccepting
		id.exchange(id.reply, id.unreachable)
		return 0
	})
	if errno != 0 {
		id.toError()
		return errno
	}
	if id.datagrams() {
		if id.sync {
			id.acknowledge()
		}
		return 0
	}
	return id.complete()
}

// reply answers a request.
func (id *cmID) reply() {
	to := id.request.from
	to.answered()
	id.fabric.carry(id.device, to.device, func() { to.replied(id) })
}

// replied has an answer come in.
func (id *cmID) replied(by *cmID) {
	switch {
	case id.gone || id.request != by.request:
	case id.state == cmEstablished: // the last word was lost
		id.confirm()
	case id.state == cmAnswered:
		by.heard()
	case id.state == cmRequesting:
		id.conclude()
		id.peer, id.peerQPN, id.peerPSN, id.state = by, by.qpn, by.psn, cmAnswered
		p := by.param
		id.initiator, id.responder, id.notReadyRetries = p.ResponderResources, p.InitiatorDepth, p.RNRRetryCount
		id.peerECE = cmECE{by.peerECE.vendor, by.ece.options}
		e := &cmEvent{kind: rdmacm.CM_EVENT_CONNECT_RESPONSE, private: padded(by.private, privateReply), conn: p}
		e.conn.ResponderResources, e.conn.InitiatorDepth, e.conn.RetryCount, e.conn.QPNum = id.responder, id.initiator, 0, by.qpn
		id.push(e)
		by.heard()
	}
}

// finish connects the queue pair of who asked, as librdmacm does when it takes the answer. It is called with the fabric's lock, and gives it
// up meanwhile.
func (id *cmID) finish() runtime.Errno {
	errno := runtime.Errno(0)
	if id.peerECE.vendor != 0 { // no device here knows any
		errno = einval
	}
	id.fabric.unlock()
	if errno == 0 {
		errno = id.ready()
	}
	id.fabric.mu.Lock()
	if errno == 0 && (id.gone || id.state != cmAnswered) { // the other side has given up
		errno = einval
	}
	if errno != 0 {
		id.breakQP()
		return errno
	}
	id.state = cmEstablished
	id.confirm()
	return 0
}

// cmEstablish is rdma_establish.
func cmEstablish(id *cmID, _ []uint64) runtime.Errno {
	if id.record.QP != 0 || id.state != cmAnswered {
		return einval
	}
	id.state = cmEstablished
	id.confirm()
	return 0
}

// confirm is the last word of who asked.
func (id *cmID) confirm() {
	peer := id.peer
	peer.answered()
	id.fabric.carry(id.device, peer.device, peer.established)
}

func (id *cmID) established() {
	if id.gone || id.state != cmAccepting {
		return
	}
	id.conclude()
	id.state = cmEstablished
	id.tell(rdmacm.CM_EVENT_ESTABLISHED, 0)
}

// cmNotify is rdma_notify: a message that came in says that the other side is there, though its last word has not come.
func cmNotify(id *cmID, a []uint64) runtime.Errno {
	switch {
	case ibv.EventType(uint32(a[1])) != ibv.EVENT_COMM_EST:
		return einval
	case id.state == cmEstablished:
		return eisconn
	case id.state != cmAccepting:
		return einval
	}
	id.established()
	return 0
}

// reject is rdma_reject and rdma_reject_ece.
func (id *cmID) reject(a []uint64, reason int32) runtime.Errno {
	if id.state != cmRequested {
		return einval
	}
	private, errno := id.readPrivate(a[1], uint8(a[2]), rdmacm.CallReject)
	if errno != 0 {
		return errno
	}
	id.state = cmOver
	if id.datagrams() {
		id.fabric.refuseLookup(id.request, id.device, lookupRejected)
		return 0
	}
	id.forgetRemote()
	id.fabric.refuse(id.request, id.device, reason, private)
	return 0
}

// cmDisconnect is rdma_disconnect: it breaks the queue pair, and says so, or answers to who said so.
func cmDisconnect(id *cmID, _ []uint64) runtime.Errno {
	if id.record.Verbs == 0 {
		return einval
	}
	if errno := id.toError(); errno != 0 {
		return errno
	}
	errno := id.locked(func() runtime.Errno {
		switch {
		case id.request == nil || id.datagrams():
			return einval
		case id.state == cmEstablished:
			id.state = cmLeaving
			id.exchange(id.sayLeaving, func() { id.over(-int32(etimedout)) })
		case id.state == cmLeft:
			id.sayGone()
			id.over(0)
		}
		return 0
	})
	if errno != 0 {
		return errno
	}
	return id.complete()
}

func (id *cmID) sayLeaving() {
	peer := id.peer
	id.fabric.carry(id.device, peer.device, peer.left)
}

// left has the other side's farewell come in.
func (id *cmID) left() {
	switch {
	case id.gone:
	case id.state == cmEstablished || id.state == cmAccepting:
		id.conclude()
		id.state = cmLeft
		id.tell(rdmacm.CM_EVENT_DISCONNECTED, 0)
		id.peer.heard()
	case id.state == cmLeft:
		id.peer.heard()
	case id.state == cmLeaving: // both at once
		id.conclude()
		id.sayGone()
		id.over(0)
	case id.state == cmOver:
		id.sayGone()
	}
}

// sayGone answers the other side's farewell.
func (id *cmID) sayGone() {
	peer := id.peer
	peer.answered()
	id.fabric.carry(id.device, peer.device, func() {
		if !peer.gone && peer.state == cmLeaving {
			peer.conclude()
			peer.over(0)
		}
	})
}

// over ends a connection. Its queue pair is not to be used again at once, for packets may be under way.
func (id *cmID) over(status int32) {
	if id.state == cmLeaving {
		id.tell(rdmacm.CM_EVENT_DISCONNECTED, status)
	}
	id.state = cmOver
	id.timer = id.fabric.after(4096*time.Nanosecond<<min(id.timeout, 31), func() {
		id.forgetRemote()
		id.tell(rdmacm.CM_EVENT_TIMEWAIT_EXIT, 0)
	})
}
