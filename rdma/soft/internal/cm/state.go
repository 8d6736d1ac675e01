// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// rejected ends what was not established yet.
func (id *cmID) rejected(reason int32, private []byte) {
	switch id.state {
	case cmRequesting, cmAccepting, cmAnswered:
	default:
		return
	}
	id.conclude()
	id.state = cmOver
	id.forgetRemote()
	id.push(&cmEvent{kind: rdmacm.CM_EVENT_REJECTED, status: reason, private: padded(private, message.REJ)})
}

// establish has the other side ready.
func (id *cmID) establish() {
	id.conclude()
	id.state = cmEstablished
	id.tell(rdmacm.CM_EVENT_ESTABLISHED, 0)
}

// sayGone answers the other side's farewell.
func (id *cmID) sayGone() { id.answer(&message.MAD{Attribute: message.DREP, TID: id.inHand}) }

// over ends a connection. Its queue pair is not to be used again at once, for packets may be under way.
func (id *cmID) over(status int32) {
	if id.state == cmLeaving {
		id.tell(rdmacm.CM_EVENT_DISCONNECTED, status)
	}
	id.state = cmOver
	id.timer = id.cm.After(cmTick<<min(id.timeout, 31), func() {
		id.forgetRemote()
		id.tell(rdmacm.CM_EVENT_TIMEWAIT_EXIT, 0)
	})
}

// unreachable is what becomes of an identifier that is not answered. The caller holds Fabric.mu.
func (id *cmID) unreachable() {
	id.state = cmOver
	id.forgetRemote()
	id.tell(rdmacm.CM_EVENT_UNREACHABLE, -int32(errnos.ETIMEDOUT))
}

// confirm is the last word of the side that asked.
func (id *cmID) confirm() { id.answer(&message.MAD{Attribute: message.RTU, TID: id.tid}) }
