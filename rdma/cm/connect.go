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

// service returns the kind of service that carries the ID's private data.
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
	most := rdmacm.PrivateDataLimit(call, service).Bytes
	if call == rdmacm.CallConnect {
		most = max(most-id.preface, 0)
	}
	if len(data) > most {
		return verberr.Invalid(verb, id.name(), "%d bytes of private data exceed the maximum of this service (%v), %d",
			len(data), service, most)
	}
	return nil
}

// givenPrivate returns the user's private data: the argument, or else that in C's parameters.
func givenPrivate(param *rdmacm.ConnParam, private []byte) []byte {
	if private == nil && param != nil {
		return copyBytes(param.PrivateData, param.PrivateDataLen)
	}
	return private
}

// withPrivate calls do with connection parameters and private data, which stays in place during the call. nil
// parameters without data stay nil.
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

// DefaultConnParam returns the parameters of a nil ConnParam: the device's maximum numbers of outstanding reads and
// atomics, 7 retries, and infinite retries while the peer has no receive posted. Soft-RoCE treats 7 retries as
// infinite, too, and then never detects that a peer has died.
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
	err := id.withIDLearning(func() error { return librdmacm.Listen(id.c, backlog) })
	if err == nil {
		id.listens.Store(true)
		return nil
	}
	at := id.LocalAddr()
	if a, ok := id.LocalIBAddr(); ok {
		return verberr.Explain(verb, id.name(), noIBAddress(a, err), err)
	}
	if !at.IsValid() { // Listen has bound it: to all addresses and any port
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	if reason := id.noAddress(at, err); reason != "" {
		return verberr.Explain(verb, id.name(), reason, err)
	}
	return id.failed(verb, err, because{syscall.EINVAL, "the ID is already listening or connecting"})
}

// Connect connects to the peer, whose route must be resolved. A nil param means [DefaultConnParam]. The peer gets
// private, or if that is nil the PrivateData of param; ConnectEvent returns the peer's private data. With a queue pair
// of CreateQP, the connection is established when Connect returns if the ID is synchronous, or else when
// RDMA_CM_EVENT_ESTABLISHED arrives. Without one, the peer's reply is RDMA_CM_EVENT_CONNECT_RESPONSE, and Establish
// completes the connection.
//
// Unlike ResolveAddr, Connect has no timeout parameter: if no host or process has the address any more, the request is
// retransmitted for about a minute until RDMA_CM_EVENT_UNREACHABLE arrives. Use a context with an earlier deadline.
//
// C: rdma_connect
//
// Man: rdma_connect(3)
func (id *ID) Connect(ctx context.Context, param *rdmacm.ConnParam, private []byte) error {
	_, err := id.ConnectEvent(ctx, param, private)
	return err
}

// ConnectEvent is Connect that also returns the event of a synchronous ID: it has the peer's private data.
func (id *ID) ConnectEvent(ctx context.Context, param *rdmacm.ConnParam, private []byte) (Event, error) {
	const verb = "rdma_connect"
	e, err := id.beginEvent(ctx, verb, func() error {
		if id.c.Verbs == 0 { // C dereferences it
			return verberr.Invalid(verb, id.name(), "its route is not resolved yet")
		}
		private := givenPrivate(param, private)
		if err := id.privateFits(verb, rdmacm.CallConnect, private); err != nil {
			return err
		}
		return withPrivate(param, private, func(p *rdmacm.ConnParam) error {
			id.asks(p)
			id.begun.Store(true)
			err := librdmacm.Connect(id.c, p)
			return verberr.Explain(verb, "", id.connReason(p, err), err)
		})
	}, rdmacm.CM_EVENT_ESTABLISHED, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	if errors.Is(err, context.DeadlineExceeded) {
		err = verberr.Explain(verb, id.name(), "the peer does not answer: "+id.NoAnswerHint(), context.DeadlineExceeded)
	}
	return e, err
}

// asks records whether this end has announced that it will not read.
func (id *ID) asks(p *rdmacm.ConnParam) {
	if p != nil && p.InitiatorDepth == 0 {
		id.noReads.Store(true)
	}
}

// learnReads updates the read limit of the queue pair's checks if C has connected it without reads, because an end
// disabled them. depth is that of the event on the requesting side.
func (id *ID) learnReads(depth uint8) {
	if !id.noReads.Load() && (id.request || depth != 0) {
		return
	}
	if qp := id.QP(); qp != nil && qp.Type() != ibv.QPT_UD {
		qp.Query(ibv.QP_MAX_QP_RD_ATOMIC) // an error means that it is gone
	}
}

const withoutQP = "it has no queue pair: call CreateQP first, or set QPNum to your " +
	"own queue pair"

// connReason returns why C may have rejected parameters.
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

// Accept accepts a request. A nil param means [DefaultConnParam]. The peer gets private, or if that is nil the
// PrivateData of param. The queue pair is in RTS when Accept returns. A synchronous ID waits until the peer has
// confirmed.
//
// If ctx ends during that wait, the error is a [*rdma.VerbError] that matches the error of ctx. The request stays
// accepted: the peer may be connected already or later, and Event returns the outcome. Close the ID to end the
// connection. Likewise, operations of Connect and of other methods that wait continue after their context has ended.
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
			return verberr.Invalid(verb, "", "the ID is not that of a request")
		}
		if param == nil && id.c.QP == 0 { // C reads its number
			return verberr.Invalid(verb, "", withoutQP)
		}
		private := givenPrivate(param, private)
		if err := id.privateFits(verb, rdmacm.CallAccept, private); err != nil {
			return err
		}
		return withPrivate(param, private, func(p *rdmacm.ConnParam) error {
			id.asks(p)
			return id.failed(verb, librdmacm.Accept(id.c, p),
				because{syscall.EINVAL, "the request has ended, or the parameters exceed the device's limits"})
		})
	}
	if id.c.QPType == ibv.QPT_UD { // a datagram service has no event for it
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

// RejectECE rejects a request because of the options that the peer proposed.
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
	}, because{syscall.EINVAL, "there is no unanswered request to reject"})
	if err == nil {
		id.parted.Store(true)
	}
	return err
}

// Establish completes the connection of an ID without a queue pair, after RDMA_CM_EVENT_CONNECT_RESPONSE and after the
// user has brought a queue pair to RTS.
//
// C: rdma_establish
//
// Man: rdma_establish(3)
func (id *ID) Establish() error {
	return id.call("rdma_establish", func() error { return librdmacm.Establish(id.c) },
		because{syscall.EINVAL, "the ID must not have a queue pair, after RDMA_CM_EVENT_CONNECT_RESPONSE"})
}

// Notify informs the connection manager of an event of a queue pair that it does not manage: IBV_EVENT_COMM_EST, a
// message that arrived before the connection was established.
//
// C: rdma_notify
//
// Man: rdma_notify(3)
func (id *ID) Notify(event ibv.EventType) error {
	return id.call("rdma_notify", func() error { return librdmacm.Notify(id.c, event) },
		because{syscall.EINVAL,
			"the only valid event is IBV_EVENT_COMM_EST, for an ID that is accepted and not yet connected"},
		because{syscall.EISCONN, "the connection is already established"})
}

// Disconnect ends the connection and flushes outstanding work. A synchronous ID waits for the event, which arrives
// after the peer has disconnected, too. It does not wait if there will be no event: if another method has already
// returned it, or an event about a rejected or failed connection, or if this side has rejected the request.
//
// Disconnect only when the peer has its completions: some devices, such as Soft-RoCE, complete a receive before they
// acknowledge the message, and a queue pair that is flushed in between never acknowledges it. The peer's send then
// completes with IBV_WC_RETRY_EXC_ERR after its last retry.
//
// C: rdma_disconnect
//
// Man: rdma_disconnect(3)
func (id *ID) Disconnect(ctx context.Context) error {
	if id.parted.Load() {
		return id.call("rdma_disconnect", id.disconnect)
	}
	return id.begin(ctx, "rdma_disconnect", id.disconnect, rdmacm.CM_EVENT_DISCONNECTED)
}

// disconnect starts disconnecting and does not wait.
func (id *ID) disconnect() error {
	return id.failed("rdma_disconnect", librdmacm.Disconnect(id.c),
		because{syscall.EINVAL, "there is no connection or attempt to connect"})
}

// WriteEvent writes RDMA_CM_EVENT_USER with an argument to the ID's channel, for a goroutine that waits there.
//
// C: rdma_write_cm_event
//
// Man: rdma_write_cm_event(3)
func (id *ID) WriteEvent(status int, arg uint64) error {
	return id.call("rdma_write_cm_event",
		func() error { return librdmacm.WriteCMEvent(id.c, rdmacm.CM_EVENT_USER, status, arg) })
}
