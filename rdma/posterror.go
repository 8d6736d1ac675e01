// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// PostError is the error of a list that was not posted, or only in part. The post also returns the number of posted
// requests. errors.Is matches Errno and Err; errors.As converts it to a [VerbError].
type PostError struct {
	Verb   string     // "ibv_post_send"
	QPNum  uint32     // number of the queue pair or work queue; handle of a shared receive queue
	QPType ibv.QPType // 0 for a shared receive queue and a work queue
	// Index is the work request that failed, counted from the start of the batch. If Reason is set, a check rejected it
	// and nothing was posted; with Errno EBUSY, however, C used the queue, and requests may have been posted. If Reason
	// is empty, the device rejected it, and the requests before it were posted. An Index of -1 with a Reason means that
	// nothing was posted; without a Reason, C failed without setting bad_wr, and any of the requests may have been
	// posted.
	Index  int
	WRID   uint64        // of the work request at Index
	Errno  runtime.Errno // C's errno, or of a check: EINVAL, ENOMEM if slots are missing, EBUSY if C used the queue
	Reason string        // the broken rule and what would be valid; "" if C failed
	Err    error         // error of the batch or program that caused the failure, or nil
}

// Error returns verb, queue, request and reason.
func (e *PostError) Error() string {
	s := e.Verb + ": " + e.queue()
	switch {
	case e.Index >= 0:
		s += fmt.Sprintf(": WR %d (id %#x)", e.Index, e.WRID)
	case e.Reason == "":
		s += ": the failed WR is unknown; any may have been posted"
	}
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s + ": " + verberr.Text(e.Errno)
}

// queue returns the name of the queue.
func (e *PostError) queue() string {
	switch {
	case e.Verb == "ibv_post_wq_recv":
		return fmt.Sprintf("WQ %#x", e.QPNum)
	case e.QPType != 0:
		return fmt.Sprintf("QP %#x (%s)", e.QPNum, refusal.ShortName(e.QPType))
	}
	return fmt.Sprintf("SRQ %#x", e.QPNum)
}

// Is matches runtime.ErrNotSupported for errnos with that meaning.
func (e *PostError) Is(target error) bool {
	return (&runtime.CallError{Errno: e.Errno}).Is(target) || errors.Is(e.Err, target)
}

// As converts the error to a [VerbError], for programs that treat all verbs alike.
func (e *PostError) As(target any) bool {
	to, ok := target.(**VerbError)
	if ok {
		*to = &VerbError{Verb: e.Verb, Object: e.queue(), Errno: e.Errno, Reason: e.Reason}
		if e.Err != nil {
			(*to).Err = errors.Unwrap(e.Err)
		}
	}
	return ok
}

// withCause sets errno and reason to those of a batch or program that cannot be posted.
func (e *PostError) withCause(err error) *PostError {
	e.Errno, e.Err = syscall.EINVAL, err
	if why, ok := err.(*VerbError); ok {
		e.Errno, e.Reason = why.Errno, cmp.Or(why.Reason, why.Object+" is closed")
	}
	return e
}

// Unwrap returns Errno.
func (e *PostError) Unwrap() error { return e.Errno }

// traceRejected records the error of a post that a check rejected in the trace, if there is one, and returns it.
func traceRejected(err error) error {
	if e, ok := err.(*PostError); ok {
		reason := e.Reason
		if reason == "" && e.Err != nil {
			reason = e.Err.Error()
		}
		trace.Refused(e.Verb, e.QPNum, e.WRID, e.Errno, reason)
	}
	return err
}

// CompletionError is the error of a failed work request. Error includes the meaning and likely causes of the status. In
// JSON it has the members of a failed [ibv.WC].
//
// Man: ibv_poll_cq(3)
type CompletionError struct {
	WRID      uint64       `json:"wr_id"`
	QPNum     uint32       `json:"qp_num"`
	Status    ibv.WCStatus `json:"status"`
	VendorErr uint32       `json:"vendor_err"` // vendor-specific code
}

// CompletionErr returns nil for a successful completion, and a [*CompletionError] for any other.
func CompletionErr(wc *ibv.WC) error {
	if wc.Status == ibv.WC_SUCCESS {
		return nil
	}
	return &CompletionError{wc.WRID, wc.QPNum, wc.Status, wc.VendorErr}
}

// Error returns the status by name and number, its meaning and likely causes.
func (e *CompletionError) Error() string {
	s := fmt.Sprintf("QP %#x: WR id %#x: %v (status %d)", e.QPNum, e.WRID, e.Status, uint32(e.Status))
	if rule := ibv.WCStatusMeaning(e.Status); rule.Meaning != "" {
		s += ": " + rule.Meaning + " (look for: " + rule.Causes + ")"
	}
	if e.VendorErr != 0 {
		s += fmt.Sprintf(", vendor error %#x", e.VendorErr)
	}
	return s
}

// Is reports whether target is a CompletionError with the same status: errors.Is(err, &CompletionError{Status:
// ibv.WC_WR_FLUSH_ERR}).
func (e *CompletionError) Is(target error) bool {
	t, ok := target.(*CompletionError)
	return ok && *t == (CompletionError{Status: e.Status})
}
