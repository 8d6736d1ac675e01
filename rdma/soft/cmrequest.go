package soft

import (
	"net/netip"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// cmRequest is a request to connect, or of datagrams to look a service up, as it goes over the network.
type cmRequest struct {
	from    *cmID
	source  netip.AddrPort
	to      netip.AddrPort
	space   rdmacm.PortSpace
	kind    ibv.QPType
	qpn     uint32
	psn     uint32
	param   rdmacm.ConnParam
	private []byte
	ece     cmECE
	made    *cmID // on the other side
}

// Bytes of private data that messages have room for.
const (
	privateRequest = 56
	privateLookup  = 180
	privateReply   = 196
	privateFound   = 136
	privateReject  = 148
)

// padded is private data as it arrives: with zeros behind it, for no message has its length.
func padded(b []byte, room int) []byte { return append(make([]byte, 0, room), b...)[:room] }

// Reasons of rejections, and answers to lookups.
const (
	rejectTimeout      = 4
	rejectNoListener   = 8
	rejectStale        = 10
	rejectConsumer     = 28
	rejectVendorOption = 35

	lookupFound       = 0
	lookupUnsupported = 1
	lookupRejected    = 2
)

// arrive has a request come in at a device.
func (r *cmRequest) arrive(at *device) {
	from, f := r.from, at.fabric
	if from.gone || from.request != r || from.state != cmRequesting { // it has its answer
		return
	}
	if made := r.made; made != nil && !made.gone && made.state != cmOver {
		if made.asked != nil { // the answer was lost
			made.asked.send()
		} else if made.state == cmRequested {
			from.heard()
		} else {
			made.answerLookup(lookupFound)
		}
		return
	}
	l := f.listener(r.space, r.to)
	remote := cmRemote{from.device, r.qpn}
	switch {
	case l == nil && r.kind == ibv.QPT_UD:
		f.refuseLookup(r, at, lookupUnsupported)
		return
	case l == nil:
		f.refuse(r, at, rejectNoListener, nil)
		return
	case r.kind != ibv.QPT_UD && f.cm.remote[remote] != nil:
		f.refuse(r, at, rejectStale, nil)
		return
	case l.waiting == l.backlog: // it will come again
		return
	}
	id := &cmID{
		fabric: f, space: r.space, kind: l.kind, timeout: cmTimeout, state: cmRequested, local: r.to, to: r.source, device: at, peer: from, tos: l.tos,
		listener: l, request: r, peerQPN: r.qpn, peerPSN: r.psn, psn: f.nextPSN(), peerECE: r.ece,
		initiator: r.param.ResponderResources, responder: r.param.InitiatorDepth, retries: r.param.RetryCount, notReadyRetries: r.param.RNRRetryCount,
	}
	r.made = id
	f.cm.ids = append(f.cm.ids, id)
	e := &cmEvent{kind: rdmacm.CM_EVENT_CONNECT_REQUEST, request: id}
	if r.kind == ibv.QPT_UD {
		e.private = padded(r.private, privateLookup)
	} else {
		f.cm.remote[remote] = id
		e.private, e.conn = padded(r.private, privateRequest), r.param
		e.conn.ResponderResources, e.conn.InitiatorDepth, e.conn.QPNum = id.responder, id.initiator, r.qpn
	}
	l.waiting++
	l.push(e)
	from.heard()
}

// refuse answers a request with a rejection.
func (f *Fabric) refuse(r *cmRequest, at *device, reason int32, private []byte) {
	from := r.from
	from.answered()
	f.carry(at, from.device, func() {
		if !from.gone && from.request == r {
			from.rejected(reason, private)
		}
	})
}

// rejected has a rejection come in.
func (id *cmID) rejected(reason int32, private []byte) {
	switch id.state {
	case cmRequesting, cmRequested, cmAccepting, cmAnswered:
	default:
		return
	}
	id.conclude()
	id.state = cmOver
	id.forgetRemote()
	id.push(&cmEvent{kind: rdmacm.CM_EVENT_REJECTED, status: reason, private: padded(private, privateReject)})
}

// unreachable is what becomes of who is not answered.
func (id *cmID) unreachable() {
	id.state = cmOver
	id.forgetRemote()
	id.tell(rdmacm.CM_EVENT_UNREACHABLE, -int32(etimedout))
}

// forgetRemote lets the other side's queue pair be connected again.
func (id *cmID) forgetRemote() {
	if id.peer == nil || id.request == nil {
		return
	}
	remote := cmRemote{id.request.from.device, id.request.qpn}
	if id.fabric.cm.remote[remote] == id {
		delete(id.fabric.cm.remote, remote)
	}
}

// nextPSN is where the numbers of a connection's packets start.
func (f *Fabric) nextPSN() uint32 {
	f.cm.psn = (f.cm.psn + 0x10001) & (1<<24 - 1)
	return f.cm.psn
}

// farewell tells the other side that the identifier is going.
func (id *cmID) farewell() {
	peer := id.peer
	switch id.state {
	case cmRequesting:
		if made := id.request.made; made != nil && !id.datagrams() {
			id.fabric.carry(id.device, made.device, func() { made.withdrawn() })
		}
	case cmRequested:
		if id.datagrams() {
			id.fabric.refuseLookup(id.request, id.device, lookupRejected)
		} else {
			id.fabric.refuse(id.request, id.device, rejectConsumer, nil)
		}
	case cmAccepting:
		id.fabric.refuse(id.request, id.device, rejectConsumer, nil)
	case cmAnswered:
		id.fabric.carry(id.device, peer.device, func() { peer.rejected(rejectConsumer, nil) })
	case cmEstablished:
		if !id.datagrams() {
			id.fabric.carry(id.device, peer.device, func() { peer.left() })
		}
	case cmLeft:
		id.sayGone()
	}
}

// withdrawn is what becomes of a request whose sender gave up. Nobody hears of one that no program has taken; who has it hears so from
// rdma_accept, for Linux has no events of what is not accepted yet.
func (id *cmID) withdrawn() {
	if id.gone || id.state != cmRequested && id.state != cmAccepting {
		return
	}
	switch {
	case id.record == nil:
		id.vanish()
	case id.state == cmRequested:
		id.state = cmOver
		id.forgetRemote()
	default:
		id.rejected(rejectTimeout, nil)
	}
}

// vanish takes back a request that no program has taken.
func (id *cmID) vanish() {
	id.listener.channel.events.drop(func(e *cmEvent) bool { return e.request == id })
	id.listener.waiting--
	id.state = cmOver
	id.part()
}
