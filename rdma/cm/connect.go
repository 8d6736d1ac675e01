// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"net/netip"
	goruntime "runtime"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// service returns the service whose private data limit applies to the ID.
func (id *ID) service() rdmacm.Service {
	d := id.c.Verbs.Deref()
	native := librdmacm.GetLocalAddr(id.c).SAFamily == rdmacm.AF_IB
	switch {
	case d != nil && d.Device.Deref() != nil && d.Device.Deref().TransportType == ibv.TRANSPORT_IWARP:
		return rdmacm.ServiceIWARP
	case id.c.QPType == ibv.QPT_UD && native:
		return rdmacm.ServiceUDNative
	case id.c.QPType == ibv.QPT_UD:
		return rdmacm.ServiceUD
	case native:
		return rdmacm.ServiceIBNative
	}
	return rdmacm.ServiceIB
}

// privateFits checks the length of private data.
func (id *ID) privateFits(verb string, call rdmacm.Call, data []byte) error {
	service := id.service()
	limit := rdmacm.PrivateDataLimit(call, service).Bytes
	if call == rdmacm.CallConnect {
		limit = max(limit-id.preface, 0)
	}
	if len(data) > limit {
		return verberr.Invalid(verb, id.name(), "%d bytes of private data exceed the maximum of this service (%v), %d",
			len(data), service, limit)
	}
	return nil
}

// givenPrivate returns the caller's private data: the argument, or else the private data in param.
func givenPrivate(param *rdmacm.ConnParam, private []byte) []byte {
	if private == nil && param != nil {
		return copyBytes(param.PrivateData, param.PrivateDataLen)
	}
	return private
}

// withPrivate calls do with connection parameters whose private data stays in place during the call. If param is nil
// and there is no data, it passes nil.
func withPrivate(param *rdmacm.ConnParam, data []byte, do func(*rdmacm.ConnParam) error) error {
	if param == nil && len(data) == 0 {
		return do(nil)
	}
	own := DefaultConnParam()
	if param != nil {
		own = *param
	}
	own.PrivateData, own.PrivateDataLen = 0, 0
	if len(data) > 0 {
		var pin goruntime.Pinner
		pin.Pin(unsafe.SliceData(data))
		defer pin.Unpin()
		own.PrivateData, own.PrivateDataLen = uintptr(unsafe.Pointer(unsafe.SliceData(data))), uint8(len(data))
	}
	return do(&own)
}

// DefaultConnParam returns the parameters that a nil ConnParam means: the device's maximum numbers of outstanding reads
// and atomics, 7 retries, and unlimited RNR retries. Soft-RoCE treats 7 retries as unlimited, too, and then never
// detects a dead peer.
func DefaultConnParam() rdmacm.ConnParam {
	return rdmacm.ConnParam{ResponderResources: rdmacm.MAX_RESP_RES, InitiatorDepth: rdmacm.MAX_INIT_DEPTH,
		RetryCount: 7, RNRRetryCount: 7}
}

// Listen accepts requests: they arrive as RDMA_CM_EVENT_CONNECT_REQUEST, or in GetRequest. backlog is the maximum
// number of pending requests; 0 means the kernel's maximum. An unbound ID is bound to all addresses and a free port,
// which LocalAddr returns.
//
// C: rdma_listen
//
// Man: rdma_listen(3)
func (id *ID) Listen(backlog int) error {
	const verb = "rdma_listen"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	err := id.withIDUpdatingName(func() error { return librdmacm.Listen(id.c, backlog) })
	if err == nil {
		id.listens.Store(true)
		return nil
	}
	at := id.LocalAddr()
	if a, ok := id.LocalIBAddr(); ok {
		return verberr.Explain(verb, id.name(), noIBAddress(a, err), err)
	}
	if !at.IsValid() { // rdma_listen binds it to all addresses and a free port
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	if reason := id.noAddress(at, err); reason != "" {
		return verberr.Explain(verb, id.name(), reason, err)
	}
	return id.failed(verb, err, errnoReason{syscall.EINVAL, "the ID is already listening or connecting"})
}

// Connect connects to the peer. The route must be resolved. A nil param means [DefaultConnParam]. The peer receives
// private, or the PrivateData of param if private is nil; ConnectEvent returns the peer's private data. With a queue
// pair of CreateQP, the connection is established when Connect returns (synchronous ID) or when
// RDMA_CM_EVENT_ESTABLISHED arrives (asynchronous ID). Without one, the peer's reply arrives as
// RDMA_CM_EVENT_CONNECT_RESPONSE, and Establish completes the connection.
//
// Unlike ResolveAddr, Connect has no timeout parameter. If nothing at the peer's address responds, the request is
// retransmitted for about a minute before RDMA_CM_EVENT_UNREACHABLE arrives. To time out earlier, use a context with a
// deadline.
//
// C: rdma_connect
//
// Man: rdma_connect(3)
func (id *ID) Connect(ctx context.Context, param *rdmacm.ConnParam, private []byte) error {
	_, err := id.ConnectEvent(ctx, param, private)
	return err
}

// ConnectEvent is Connect that also returns the event of a synchronous ID, which contains the peer's private data.
func (id *ID) ConnectEvent(ctx context.Context, param *rdmacm.ConnParam, private []byte) (Event, error) {
	const verb = "rdma_connect"
	e, err := id.beginEvent(ctx, verb, func() error {
		if id.c.Verbs == 0 { // C dereferences it
			return verberr.Invalid(verb, id.name(), "route not resolved: call ResolveRoute first")
		}
		private := givenPrivate(param, private)
		if err := id.privateFits(verb, rdmacm.CallConnect, private); err != nil {
			return err
		}
		return withPrivate(param, private, func(p *rdmacm.ConnParam) error {
			id.noteReads(p)
			id.attempted.Store(true)
			err := librdmacm.Connect(id.c, p)
			return verberr.Explain(verb, "", id.connReason(p, err), err)
		})
	}, rdmacm.CM_EVENT_ESTABLISHED, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	if errors.Is(err, context.DeadlineExceeded) {
		err = verberr.Explain(verb, id.name(), "the peer does not answer: "+id.NoAnswerHint(), context.DeadlineExceeded)
	}
	return e, err
}

// noteReads records whether this side's parameters disable reads.
func (id *ID) noteReads(p *rdmacm.ConnParam) {
	if p != nil && p.InitiatorDepth == 0 {
		id.noReads.Store(true)
	}
}

// updateReads updates the read limit of the queue pair's checks if C has connected it with reads disabled by either
// side. depth is the initiator depth of the event; it matters only on the requesting side.
func (id *ID) updateReads(depth uint8) {
	if !id.noReads.Load() && (id.request || depth != 0) {
		return
	}
	if qp := id.QP(); qp != nil && qp.Type() != ibv.QPT_UD {
		qp.Query(ibv.QP_MAX_QP_RD_ATOMIC) // fails only if the queue pair is gone
	}
}

const withoutQP = "no queue pair: call CreateQP first, or set QPNum to your " +
	"own queue pair"

// connReason explains why C rejected connection parameters.
func (id *ID) connReason(p *rdmacm.ConnParam, err error) string {
	if !errors.Is(err, syscall.EINVAL) {
		return ""
	}
	switch {
	case p == nil && id.c.QP == 0 && id.c.PS == rdmacm.PS_TCP:
		return withoutQP
	case p != nil && id.c.PS == rdmacm.PS_TCP:
		d, err := id.Device()
		if err != nil {
			return ""
		}
		attr, err := d.Query()
		if err != nil {
			return ""
		}
		if p.ResponderResources != rdmacm.MAX_RESP_RES && int32(p.ResponderResources) > attr.MaxQPRdAtom {
			return "responder_resources exceed the device's maximum (max_qp_rd_atom)"
		}
		if p.InitiatorDepth != rdmacm.MAX_INIT_DEPTH && int32(p.InitiatorDepth) > attr.MaxQPInitRdAtom {
			return "initiator_depth exceeds the device's maximum (max_qp_init_rd_atom)"
		}
	}
	return "wrong state: the route must be resolved, and an ID connects only once (see Retry)"
}

// Accept accepts a request. A nil param means [DefaultConnParam]. The peer receives private, or the PrivateData of
// param if private is nil. The queue pair is in RTS when Accept returns. A synchronous ID waits until the peer has
// confirmed.
//
// If ctx ends during that wait, the error is a [*rdma.VerbError] that matches ctx's error. The request stays accepted:
// the peer may already be connected or connect later, and Event returns the outcome. Close the ID to end the
// connection. Connect and other methods that wait behave likewise: their operations continue after ctx has ended.
//
// C: rdma_accept
//
// Man: rdma_accept(3)
func (id *ID) Accept(ctx context.Context, param *rdmacm.ConnParam, private []byte) error {
	const verb = "rdma_accept"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	accept := func() error {
		if id.c.Verbs == 0 { // C dereferences it
			return verberr.Invalid(verb, "", "the ID does not belong to a request")
		}
		if param == nil && id.c.QP == 0 { // C reads the number of the queue pair
			return verberr.Invalid(verb, "", withoutQP)
		}
		private := givenPrivate(param, private)
		if err := id.privateFits(verb, rdmacm.CallAccept, private); err != nil {
			return err
		}
		return withPrivate(param, private, func(p *rdmacm.ConnParam) error {
			id.noteReads(p)
			return id.failed(verb, librdmacm.Accept(id.c, p),
				errnoReason{syscall.EINVAL, "the request has ended, or the parameters exceed the device's limits"})
		})
	}
	if id.c.QPType == ibv.QPT_UD { // no event follows for a datagram service
		return id.call(verb, accept)
	}
	return id.begin(ctx, verb, accept, rdmacm.CM_EVENT_ESTABLISHED)
}

// Reject rejects a request; close the ID afterwards. The peer gets RDMA_CM_EVENT_REJECTED, or UNREACHABLE for a
// datagram service.
//
// C: rdma_reject
//
// Man: rdma_reject(3)
func (id *ID) Reject(private []byte) error {
	return id.reject("rdma_reject", private, librdmacm.Reject)
}

// RejectECE rejects a request because of the ECE options that the peer proposed.
//
// C: rdma_reject_ece
//
// Man: rdma_get_remote_ece(3)
func (id *ID) RejectECE(private []byte) error {
	return id.reject("rdma_reject_ece", private, librdmacm.RejectECE)
}

func (id *ID) reject(verb string, private []byte, do func(*rdmacm.CMID, uintptr, uint8) error) error {
	err := id.call(verb, func() error {
		if err := id.privateFits(verb, rdmacm.CallReject, private); err != nil {
			return err
		}
		return withPrivate(nil, private, func(p *rdmacm.ConnParam) error {
			if p == nil {
				return do(id.c, 0, 0)
			}
			return do(id.c, p.PrivateData, p.PrivateDataLen)
		})
	}, errnoReason{syscall.EINVAL, "there is no unanswered request to reject"})
	if err == nil {
		id.disconnected.Store(true)
	}
	return err
}

// Establish completes the connection of an ID without a queue pair. Call it after RDMA_CM_EVENT_CONNECT_RESPONSE, and
// after moving your own queue pair to RTS.
//
// C: rdma_establish
//
// Man: rdma_establish(3)
func (id *ID) Establish() error {
	return id.call("rdma_establish", func() error { return librdmacm.Establish(id.c) },
		errnoReason{syscall.EINVAL, "needs RDMA_CM_EVENT_CONNECT_RESPONSE, and an ID without a queue pair"})
}

// Notify reports an event of a queue pair that the connection manager does not manage. The only such event is
// IBV_EVENT_COMM_EST: a message arrived before the connection was established.
//
// C: rdma_notify
//
// Man: rdma_notify(3)
func (id *ID) Notify(event ibv.EventType) error {
	return id.call("rdma_notify", func() error { return librdmacm.Notify(id.c, event) },
		errnoReason{syscall.EINVAL,
			"the only valid event is IBV_EVENT_COMM_EST, for an ID that is accepted and not yet connected"},
		errnoReason{syscall.EISCONN, "the connection is already established"})
}

// Disconnect ends the connection and flushes outstanding work. A synchronous ID waits for RDMA_CM_EVENT_DISCONNECTED,
// which arrives after the peer has disconnected, too. It does not wait if no such event will come: if another method
// has already returned it, if the connection failed or was rejected, or if this side rejected the request.
//
// Call Disconnect only after the peer has received its completions. Some devices, such as Soft-RoCE, complete a receive
// before they acknowledge the message; if the queue pair is flushed in between, the peer's send is never acknowledged
// and fails with IBV_WC_RETRY_EXC_ERR after its last retry.
//
// C: rdma_disconnect
//
// Man: rdma_disconnect(3)
func (id *ID) Disconnect(ctx context.Context) error {
	if id.disconnected.Load() {
		return id.call("rdma_disconnect", id.disconnect)
	}
	return id.begin(ctx, "rdma_disconnect", id.disconnect, rdmacm.CM_EVENT_DISCONNECTED)
}

// disconnect starts disconnecting and does not wait.
func (id *ID) disconnect() error {
	return id.failed("rdma_disconnect", librdmacm.Disconnect(id.c),
		errnoReason{syscall.EINVAL, "there is no connection or attempt to connect"})
}

// WriteEvent queues RDMA_CM_EVENT_USER with an argument on the ID's channel, for a goroutine that waits there.
//
// C: rdma_write_cm_event
//
// Man: rdma_write_cm_event(3)
func (id *ID) WriteEvent(status int, arg uint64) error {
	return id.call("rdma_write_cm_event",
		func() error { return librdmacm.WriteCMEvent(id.c, rdmacm.CM_EVENT_USER, status, arg) })
}
