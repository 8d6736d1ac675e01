// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// A listener without a backlog limit queues maxBacklog requests. With fewer than minBacklog, a host that never
// completes its handshakes could fill the backlog.
const minBacklog, maxBacklog = 16, 1024

// listen is rdma_listen.
func listen(id *identifier, backlog int32) runtime.Errno {
	if id.state == idle {
		if errno := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 0, true); errno != 0 {
			return errno
		}
	}
	if id.state != bound {
		return syscall.EINVAL
	}
	for _, other := range id.cm.bound[id.port] {
		if id.conflicts(id.local.Addr(), other, true) {
			return syscall.EADDRINUSE
		}
	}
	if errno := id.claimPort(); errno != 0 {
		return errno
	}
	id.state, id.backlog = listening, int(backlog)
	if id.backlog <= 0 || id.backlog > maxBacklog {
		id.backlog = maxBacklog
	}
	id.backlog = max(id.backlog, minBacklog)
	id.writeAddresses()
	return 0
}

// readParam reads the parameters of rdma_connect and rdma_accept, which may be NULL, and their private data, whose size
// is limited.
func (id *identifier) readParam(from ibv.Ptr[rdmacm.ConnParam], call rdmacm.Call) (p rdmacm.ConnParam, private []byte,
	errno runtime.Errno) {
	p = rdmacm.ConnParam{ResponderResources: rdmacm.MAX_RESP_RES, InitiatorDepth: rdmacm.MAX_INIT_DEPTH, RetryCount: 7,
		RNRRetryCount: 7}
	if from != 0 {
		p = *from.Deref()
	} else if id.record.QP == 0 && !id.datagrams() {
		return p, nil, syscall.EINVAL
	}
	if !id.datagrams() && (p.ResponderResources != rdmacm.MAX_RESP_RES && p.ResponderResources > verbs.MaxReads ||
		p.InitiatorDepth != rdmacm.MAX_INIT_DEPTH && p.InitiatorDepth > verbs.MaxReads) {
		return p, nil, syscall.EINVAL
	}
	if private, errno = id.readPrivate(ibv.Ptr[byte](p.PrivateData), p.PrivateDataLen, call); errno != 0 {
		return p, nil, errno
	}
	p.PrivateData, p.PrivateDataLen = 0, 0
	p.RetryCount, p.RNRRetryCount = min(p.RetryCount, message.MaxRetryCount),
		min(p.RNRRetryCount, message.MaxRetryCount)
	if q := id.qp(); q != nil {
		p.QPNum, p.SRQ = q.Number, 0
		if q.IsShared() {
			p.SRQ = 1
		}
	}
	return p, private, 0
}

// readPrivate copies private data.
func (id *identifier) readPrivate(from ibv.Ptr[byte], n uint8, call rdmacm.Call) ([]byte, runtime.Errno) {
	service := rdmacm.ServiceIB
	if id.datagrams() {
		service = rdmacm.ServiceUD
	}
	limit := rdmacm.PrivateDataLimit(call, service).Bytes
	if from == 0 && int(n) <= limit {
		return nil, 0
	}
	private, ok := abi.List(from, uint64(n), limit)
	if !ok {
		return nil, syscall.EINVAL
	}
	return slices.Clone(private), 0
}

// connect is rdma_connect.
func connect(id *identifier, param ibv.Ptr[rdmacm.ConnParam]) runtime.Errno {
	if id.state != routeResolved {
		return syscall.EINVAL
	}
	p, private, errno := id.readParam(param, rdmacm.CallConnect)
	if errno != 0 {
		return errno
	}
	p.ResponderResources, p.InitiatorDepth = reads(p.ResponderResources, verbs.MaxReads),
		reads(p.InitiatorDepth, verbs.MaxReads)
	c := id.cm
	id.psn, id.retries, id.tid, id.state = c.nextPSN(id.device), p.RetryCount, c.nextTID(), requesting
	id.qpn = p.QPNum
	id.takeNumber()
	id.exchange(id.connectRequest(&p, private), id.unreachable)
	return 0
}

// reads returns the number of concurrent reads: the requested number or the maximum, whichever is smaller.
func reads(n, most uint8) uint8 {
	if n == rdmacm.MAX_RESP_RES {
		return most
	}
	return n
}

// accept is rdma_accept: it moves the queue pair to RTS, then answers.
func accept(id *identifier, param ibv.Ptr[rdmacm.ConnParam]) nap.Try {
	answer := once(func() runtime.Errno { return id.accept(param) })
	if !id.datagrams() {
		return inTurn(answer, id.complete)
	}
	return inTurn(answer, once(func() runtime.Errno { // without an event
		if id.sync {
			id.acknowledge()
		}
		return 0
	}))
}

func (id *identifier) accept(param ibv.Ptr[rdmacm.ConnParam]) runtime.Errno {
	var p rdmacm.ConnParam
	var private []byte
	errno := id.locked(func() (errno runtime.Errno) {
		if id.state != requested {
			return syscall.EINVAL
		}
		if p, private, errno = id.readParam(param, rdmacm.CallAccept); errno != 0 {
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
	errno = id.sent(func() runtime.Errno {
		if id.state != requested { // withdrawn by the peer
			return syscall.EINVAL
		}
		id.qpn, id.private = p.QPNum, private
		if id.datagrams() {
			id.param.QPNum, id.state = p.QPNum, established
			id.answer(id.lookupReply())
			return 0
		}
		p.ResponderResources, p.InitiatorDepth = id.responder, id.initiator
		id.param, id.state = p, accepting
		id.exchange(id.connectReply(), id.unconfirmed)
		return 0
	})
	if errno != 0 {
		id.toError()
	}
	return errno
}

// establish is rdma_establish.
func establish(id *identifier) runtime.Errno {
	if id.record.QP != 0 || id.state != answered {
		return syscall.EINVAL
	}
	id.state = established
	id.confirm()
	return 0
}

// notify is rdma_notify: a received message proves that the peer is ready, even if its RTU has not arrived.
func notify(id *identifier, event ibv.EventType) runtime.Errno {
	switch {
	case event != ibv.EVENT_COMM_EST:
		return syscall.EINVAL
	case id.state == established:
		return syscall.EISCONN
	case id.state != accepting:
		return syscall.EINVAL
	}
	id.establish()
	return 0
}

// rejecting is rdma_reject or rdma_reject_ece.
func rejecting(reason uint16) func(id *identifier, private ibv.Ptr[byte], n uint8) runtime.Errno {
	return func(id *identifier, private ibv.Ptr[byte], n uint8) runtime.Errno {
		return id.reject(private, n, reason)
	}
}

// reject rejects a request with a reason and private data.
func (id *identifier) reject(private ibv.Ptr[byte], n uint8, reason uint16) runtime.Errno {
	if id.state != requested {
		return syscall.EINVAL
	}
	said, errno := id.readPrivate(private, n, rdmacm.CallReject)
	if errno != 0 {
		return errno
	}
	id.state = over
	id.forgetRemote()
	id.refuse(id.rejection(message.OfREQ, reason, said))
	return 0
}

// disconnect is rdma_disconnect: it moves the queue pair to ERR, and sends a DREQ, or a DREP in answer to the peer's
// DREQ.
func disconnect(id *identifier) nap.Try {
	return id.completed(func() runtime.Errno { return id.disconnect() })
}

func (id *identifier) disconnect() runtime.Errno {
	if id.record.Verbs == 0 {
		return syscall.EINVAL
	}
	if errno := id.toError(); errno != 0 {
		return errno
	}
	return id.sent(func() runtime.Errno {
		switch {
		case id.number == 0 || id.datagrams():
			return syscall.EINVAL
		case id.state == established:
			id.leave()
		case id.state == left:
			id.replyDisconnect()
			id.over(0)
		}
		return 0
	})
}
