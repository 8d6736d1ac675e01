// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// rejected ends a connection that is not yet established, or only on this side.
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

// establish handles the peer's RTU or its equivalent.
func (id *identifier) establish() {
	id.conclude()
	id.state = established
	id.tell(rdmacm.CM_EVENT_ESTABLISHED, 0)
}

// leave sends a DREQ for an established connection.
func (id *identifier) leave() {
	if id.state == established {
		id.state = leaving
		id.exchange(id.disconnectRequest(), func() { id.over(-int32(syscall.ETIMEDOUT)) })
	}
}

// replyDisconnect answers the peer's DREQ.
func (id *identifier) replyDisconnect() {
	id.answer(&message.MAD{Attribute: message.DREP, TID: id.processingTID})
}

// over ends a connection. Its queue pair enters TIME_WAIT, because packets may be in flight.
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

// unreachable handles the timeout of a request. The caller holds Core.Mu.
func (id *identifier) unreachable() {
	id.state = over
	id.forgetRemote()
	id.tell(rdmacm.CM_EVENT_UNREACHABLE, -int32(syscall.ETIMEDOUT))
}

// unconfirmed ends an accepted request that the peer never confirmed. If the request is retransmitted, it is rejected.
// The caller holds Core.Mu.
func (id *identifier) unconfirmed() {
	id.refusal = id.rejection(message.OfREQ, message.RejectConsumer, nil)
	id.unreachable()
}

// confirm sends an RTU.
func (id *identifier) confirm() { id.answer(&message.MAD{Attribute: message.RTU, TID: id.tid}) }
