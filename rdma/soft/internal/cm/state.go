// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// rejected ends what was not established yet, or is so for this side alone.
func (id *identifier) rejected(reason int32, private []byte) {
	switch {
	case id.state == requesting, id.state == accepting, id.state == answered:
	case id.state == established && !id.datagrams():
	default:
		return
	}
	id.conclude()
	id.state = over
	id.forgetRemote()
	id.push(&event{kind: rdmacm.CM_EVENT_REJECTED, status: reason, private: padded(private, message.REJ)})
}

// establish has the other side ready.
func (id *identifier) establish() {
	id.conclude()
	id.state = established
	id.tell(rdmacm.CM_EVENT_ESTABLISHED, 0)
}

// leave says the end of an established connection to the other side.
func (id *identifier) leave() {
	if id.state == established {
		id.state = leaving
		id.exchange(id.disconnectRequest(), func() { id.over(-int32(syscall.ETIMEDOUT)) })
	}
}

// sayGone answers the other side's farewell.
func (id *identifier) sayGone() { id.answer(&message.MAD{Attribute: message.DREP, TID: id.inHand}) }

// over ends a connection. Its queue pair is not to be used again at once, for packets may be under way.
func (id *identifier) over(status int32) {
	if id.state == leaving {
		id.tell(rdmacm.CM_EVENT_DISCONNECTED, status)
	}
	id.state = over
	id.timer = id.cm.After(tick<<min(id.timeout, 31), func() {
		id.forgetRemote()
		id.tell(rdmacm.CM_EVENT_TIMEWAIT_EXIT, 0)
	})
}

// unreachable is what becomes of an identifier that is not answered. The caller holds Fabric.mu.
func (id *identifier) unreachable() {
	id.state = over
	id.forgetRemote()
	id.tell(rdmacm.CM_EVENT_UNREACHABLE, -int32(syscall.ETIMEDOUT))
}

// unconfirmed ends an accepted request that the other side never confirmed. If the request comes again, it is refused.
// The caller holds Fabric.mu.
func (id *identifier) unconfirmed() {
	id.refusal = id.rejection(message.OfREQ, message.RejectConsumer, nil)
	id.unreachable()
}

// confirm is the last word of the side that asked.
func (id *identifier) confirm() { id.answer(&message.MAD{Attribute: message.RTU, TID: id.tid}) }
