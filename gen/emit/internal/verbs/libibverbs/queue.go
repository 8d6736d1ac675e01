// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libibverbs

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// CreateQPEx calls ibv_create_qp if the attributes specify a protection domain and no newer member, and otherwise the
// operation create_qp_ex. After NULL the error is errno.
//
//verbs:c struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_init_attr_ex)
func CreateQPEx(context *ibv.Context, qpInitAttrEx *ibv.QPInitAttrEx) (*ibv.QP, error) {
	switch {
	case context == nil:
		return nil, fnCreateQPEx.Nil("context")
	case qpInitAttrEx == nil:
		return nil, fnCreateQPEx.Nil("qp_init_attr_ex")
	case qpInitAttrEx.CompMask == ibv.QP_INIT_ATTR_PD:
		return CreateQP(qpInitAttrEx.PD.Deref(), (*ibv.QPInitAttr)(unsafe.Pointer(qpInitAttrEx)))
	}
	slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.CreateQPEx))
	return asObject[ibv.QP](fnCreateQPEx.Slot(slot).Null(uintptr(unsafe.Pointer(context)),
		uintptr(unsafe.Pointer(qpInitAttrEx))))
}

// CreateSRQEx calls ibv_create_srq if the attributes specify a protection domain and at most the basic type, and
// otherwise the operation create_srq_ex. After NULL the error is errno.
//
//verbs:c struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *srq_init_attr_ex)
func CreateSRQEx(context *ibv.Context, srqInitAttrEx *ibv.SRQInitAttrEx) (*ibv.SRQ, error) {
	if context == nil {
		return nil, fnCreateSRQEx.Nil("context")
	}
	if srqInitAttrEx == nil {
		return nil, fnCreateSRQEx.Nil("srq_init_attr_ex")
	}
	mask := srqInitAttrEx.CompMask
	basic := mask&ibv.SRQ_INIT_ATTR_TYPE == 0 || srqInitAttrEx.SRQType == ibv.SRQT_BASIC
	if mask&^ibv.SRQ_INIT_ATTR_TYPE == ibv.SRQ_INIT_ATTR_PD && basic {
		return CreateSRQ(srqInitAttrEx.PD.Deref(), (*ibv.SRQInitAttr)(unsafe.Pointer(srqInitAttrEx)))
	}
	slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.CreateSRQEx))
	return asObject[ibv.SRQ](fnCreateSRQEx.Slot(slot).Null(uintptr(unsafe.Pointer(context)),
		uintptr(unsafe.Pointer(srqInitAttrEx))))
}

// CreateWQ calls the operation create_wq, and initializes the work queue's context and event counters. After NULL the
// error is errno.
//
//verbs:c struct ibv_wq *ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr)
func CreateWQ(context *ibv.Context, wqInitAttr *ibv.WQInitAttr) (*ibv.WQ, error) {
	switch {
	case context == nil:
		return nil, fnCreateWQ.Nil("context")
	case wqInitAttr == nil:
		return nil, fnCreateWQ.Nil("wq_init_attr")
	}
	slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.CreateWQ))
	wq, err := asObject[ibv.WQ](fnCreateWQ.Slot(slot).Null(uintptr(unsafe.Pointer(context)),
		uintptr(unsafe.Pointer(wqInitAttr))))
	if err != nil {
		return nil, err
	}
	wq.WQContext = wqInitAttr.WQContext
	wq.EventsCompleted = 0
	// A mutex and a condition variable with default attributes are zero in the GNU C library and in musl, like
	// PTHREAD_MUTEX_INITIALIZER and PTHREAD_COND_INITIALIZER. POSIX defines these as equivalent to initialization.
	wq.Mutex = ibv.PthreadMutex{}
	wq.Cond = ibv.PthreadCond{}
	return wq, nil
}

// CloseXRCD calls the operation close_xrcd. The error is the errno that C returns.
//
//verbs:c int ibv_close_xrcd(struct ibv_xrcd *xrcd)
func CloseXRCD(xrcd *ibv.XRCD) error {
	if xrcd == nil {
		return fnCloseXRCD.Nil("xrcd")
	}
	context := xrcd.Context.Deref()
	if context == nil {
		return fnCloseXRCD.Nil("xrcd.context")
	}
	return fnCloseXRCD.Slot(extended(context,
		unsafe.Offsetof(ibv.VerbsContext{}.CloseXRCD))).Errno(uintptr(unsafe.Pointer(xrcd)))
}

// PostSRQOps calls the operation post_srq_ops. The error is the errno that C returns; badOp is then the failed request.
//
//verbs:c int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
func PostSRQOps(srq *ibv.SRQ, op *ibv.OpsWR, badOp *ibv.Ptr[ibv.OpsWR]) error {
	switch {
	case srq == nil:
		return fnPostSRQOps.Nil("srq")
	case badOp == nil:
		return fnPostSRQOps.Nil("bad_op")
	}
	context := srq.Context.Deref()
	if context == nil {
		return fnPostSRQOps.Nil("srq.context")
	}
	slot := extended(context, unsafe.Offsetof(ibv.VerbsContext{}.PostSRQOps))
	if slot == 0 {
		*badOp = ibv.PtrTo(op)
	}
	return fnPostSRQOps.Slot(slot).Errno(uintptr(unsafe.Pointer(srq)), uintptr(unsafe.Pointer(op)),
		uintptr(unsafe.Pointer(badOp)))
}

// PollCQ calls ibv_poll_cq, a slot of cq.context. It writes up to numEntries completions to wc and the following
// records, and returns their number. An error has no errno if the provider returns none.
//
//verbs:c int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
func PollCQ(cq *ibv.CQ, numEntries int, wc *ibv.WC) (int, error) {
	if cq == nil {
		return 0, fnPollCQ.Nil("cq")
	}
	context := cq.Context.Deref()
	if context == nil {
		return 0, fnPollCQ.Nil("cq.context")
	}
	result, errno, err := fnPollCQ.Slot(uintptr(context.Ops.PollCQ)).Raw(uintptr(unsafe.Pointer(cq)),
		uintptr(numEntries), uintptr(unsafe.Pointer(wc)))
	switch n := int(int32(result)); {
	case err != nil:
		return 0, err
	case n < 0: // not an errno: providers define their own numbers
		return 0, &runtime.CallError{Function: fnPollCQ.Name, Errno: errno}
	case n > numEntries: // the library's stub for a missing slot returns an errno
		return 0, &runtime.CallError{Function: fnPollCQ.Name, Errno: runtime.Errno(n)}
	default:
		return n, nil
	}
}

// StartPoll calls ibv_start_poll, a slot of cq. The members and the reading functions then describe the first
// completion. ENOENT means that the queue is empty. An error has no errno if the provider returns none.
//
// Providers hold a lock from here to [EndPoll], which must be called only after a nil error. A goroutine that is
// preempted in between blocks every thread that waits for the lock, including Go's own: call the functions of a batch
// through a program.Program, which does not return to the scheduler between its calls.
//
//verbs:c int ibv_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
func StartPoll(cq *ibv.CQEx, attr *ibv.PollCQAttr) error {
	if cq == nil {
		return fnStartPoll.Nil("cq")
	}
	result, _, err := fnStartPoll.Slot(uintptr(cq.StartPoll)).Raw(uintptr(unsafe.Pointer(cq)),
		uintptr(unsafe.Pointer(attr)))
	return polled(fnStartPoll, result, err)
}

// NextPoll calls ibv_next_poll, a slot of cq. The members and the reading functions then describe the next completion.
// ENOENT means that there is none. [EndPoll] must be called even if NextPoll fails. An error has no errno if the
// provider returns none.
//
//verbs:c int ibv_next_poll(struct ibv_cq_ex *cq)
func NextPoll(cq *ibv.CQEx) error {
	if cq == nil {
		return fnNextPoll.Nil("cq")
	}
	result, _, err := fnNextPoll.Slot(uintptr(cq.NextPoll)).Raw(uintptr(unsafe.Pointer(cq)))
	return polled(fnNextPoll, result, err)
}

// polled converts the result of a polling step to an error. A positive result is an errno, a negative one a number that
// the provider defines.
func polled(f *runtime.Function, result uint64, err error) error {
	r := int32(result)
	if err != nil || r == 0 {
		return err
	}
	return &runtime.CallError{Function: f.Name, Errno: runtime.Errno(max(r, 0))}
}

// CQExToCQ converts a completion queue to the type that other functions take. It does not call C.
//
//verbs:c struct ibv_cq *ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
func CQExToCQ(cq *ibv.CQEx) *ibv.CQ { return (*ibv.CQ)(unsafe.Pointer(cq)) }
