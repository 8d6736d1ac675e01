// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libibverbs

import (
	"errors"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// VerbsGetCtx returns the structure that embeds the context, or nil for a context of a library without extended
// operations. Its field Sz determines which members exist, counted from the end of the structure.
//
//verbs:c struct verbs_context *verbs_get_ctx(struct ibv_context *ctx)
func VerbsGetCtx(ctx *ibv.Context) *ibv.VerbsContext {
	if ctx == nil || ctx.ABICompat != ibv.VERBS_ABI_IS_EXTENDED {
		return nil
	}
	var outer ibv.VerbsContext
	return (*ibv.VerbsContext)(unsafe.Add(unsafe.Pointer(ctx), -int(unsafe.Offsetof(outer.Context))))
}

// extended returns the operation at an offset of ibv.VerbsContext, or 0 if the library's structure is too short to have
// it or the provider does not implement it.
func extended(ctx *ibv.Context, offset uintptr) uintptr {
	outer := VerbsGetCtx(ctx)
	if outer == nil || outer.Sz < uint64(unsafe.Sizeof(*outer)-offset) {
		return 0
	}
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(outer), offset))
}

// QueryPort calls the operation query_port with the size of Go's record. Without this operation it calls the library's
// old ibv_query_port, which leaves newer members 0. The error is the errno that C returns.
//
//verbs:c int ___ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr)
func QueryPort(context *ibv.Context, portNum uint8, portAttr *ibv.PortAttr) error {
	if context == nil {
		return fnQueryPort.Nil("context")
	}
	if slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.QueryPort)); slot != 0 {
		return fnQueryPort.Slot(slot).Errno(uintptr(unsafe.Pointer(context)), uintptr(portNum),
			uintptr(unsafe.Pointer(portAttr)), unsafe.Sizeof(*portAttr))
	}
	if portAttr == nil {
		return fnQueryPort.Nil("port_attr")
	}
	*portAttr = ibv.PortAttr{}
	return QueryPortSymbol(context, portNum, (*ibv.CompatIBVPortAttr)(unsafe.Pointer(portAttr)))
}

// QueryDeviceEx calls the operation query_device_ex with the size of Go's record. If it is missing or not supported,
// ibv_query_device fills in OrigAttr, and the rest is 0. The error is the errno that C returns.
//
//verbs:c int ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr)
func QueryDeviceEx(context *ibv.Context, input *ibv.QueryDeviceExInput, attr *ibv.DeviceAttrEx) error {
	switch {
	case context == nil:
		return fnQueryDeviceEx.Nil("context")
	case attr == nil:
		return fnQueryDeviceEx.Nil("attr")
	case input != nil && input.CompMask != 0:
		return &runtime.CallError{Function: fnQueryDeviceEx.Name, Errno: einval}
	}
	if slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.QueryDeviceEx)); slot != 0 {
		err := fnQueryDeviceEx.Slot(slot).Errno(uintptr(unsafe.Pointer(context)), uintptr(unsafe.Pointer(input)),
			uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		if err == nil || !errors.Is(err, runtime.ErrNotSupported) {
			return err
		}
	}
	*attr = ibv.DeviceAttrEx{}
	return QueryDevice(context, &attr.OrigAttr)
}

// AckAsyncEvent calls ibv_ack_async_event for the backend of the event's object. An event of a port or a device has no
// object and needs no acknowledgement: the library is not called. The C function cannot fail.
//
//verbs:c void ibv_ack_async_event(struct ibv_async_event *event)
func AckAsyncEvent(event *ibv.AsyncEvent) error {
	if event == nil {
		return fnAckAsyncEvent.Nil("event")
	}
	var object uintptr
	switch event.EventType {
	case ibv.EVENT_CQ_ERR, ibv.EVENT_SRQ_ERR, ibv.EVENT_SRQ_LIMIT_REACHED, ibv.EVENT_WQ_FATAL, ibv.EVENT_QP_FATAL,
		ibv.EVENT_QP_REQ_ERR,
		ibv.EVENT_QP_ACCESS_ERR, ibv.EVENT_COMM_EST, ibv.EVENT_SQ_DRAINED, ibv.EVENT_PATH_MIG, ibv.EVENT_PATH_MIG_ERR,
		ibv.EVENT_QP_LAST_WQE_REACHED:
		object = uintptr(*event.Element.QP()) // all pointer members of the union share one address
	case ibv.EVENT_DEVICE_FATAL, ibv.EVENT_PORT_ACTIVE, ibv.EVENT_PORT_ERR, ibv.EVENT_LID_CHANGE,
		ibv.EVENT_PKEY_CHANGE, ibv.EVENT_SM_CHANGE,
		ibv.EVENT_CLIENT_REREGISTER, ibv.EVENT_GID_CHANGE, ibv.EVENT_DEVICE_SPEED_CHANGE:
		return nil
	}
	return fnAckAsyncEvent.From(runtime.BackendOf(object)).Void(uintptr(unsafe.Pointer(event)))
}
