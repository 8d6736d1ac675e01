package soft

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// answerLookup answers who looks a service up.
func (id *cmID) answerLookup(status int32) {
	id.state = cmEstablished
	to, f := id.request.from, id.fabric
	to.answered()
	f.carry(id.device, to.device, func() { to.found(id.request, status, id.param.QPNum, id.private) })
}

// refuseLookup answers a lookup that comes to nothing.
func (f *Fabric) refuseLookup(r *cmRequest, at *device, status int32) {
	r.from.answered()
	f.carry(at, r.from.device, func() { r.from.found(r, status, 0, nil) })
}

// found has the answer to a lookup come in.
func (id *cmID) found(r *cmRequest, status int32, qpn uint32, private []byte) {
	if id.gone || id.request != r || id.state != cmRequesting {
		return
	}
	id.conclude()
	if status != lookupFound {
		id.state = cmOver
		id.tell(rdmacm.CM_EVENT_UNREACHABLE, status)
		return
	}
	id.state = cmEstablished
	id.push(&cmEvent{
		kind: rdmacm.CM_EVENT_ESTABLISHED, private: padded(private, privateFound),
		ud: rdmacm.UDParam{AHAttr: id.av(id.gidOfPeer()), QPNum: qpn, QKey: rdmacm.UDP_QKEY},
	})
}

// av is the way to a GID.
func (id *cmID) av(to [16]byte) ibv.AHAttr {
	a := ibv.AHAttr{PortNum: portNum, IsGlobal: 1, GRH: ibv.GlobalRoute{SGIDIndex: id.device.gidOf(id.local.Addr()), HopLimit: cmHops, TrafficClass: id.tos}}
	*a.GRH.DGID.Raw() = to
	return a
}
