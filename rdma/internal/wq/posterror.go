// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// PostError says why a list was not posted, or only a part of it. errors.Is finds Errno in it.
type PostError struct {
	Verb   string     // "ibv_post_send"
	QPNum  uint32     // number of the queue pair or work queue; handle of a shared receive queue
	QPType ibv.QPType // 0 for a shared receive queue and a work queue
	// Index is the work request that failed, counted from the start of the batch. The requests before it were posted;
	// it and those after it were not. -1 means that the call failed without an index: all may have been posted, or
	// none.
	Index  int
	WRID   uint64        // of that work request
	Errno  runtime.Errno // C's errno, or that of a check: EINVAL, or ENOMEM if slots are missing
	Reason string        // the broken rule and what would be valid; "" if C failed
}

// Error returns the verb, the queue, the request and the reason.
func (e *PostError) Error() string {
	s := fmt.Sprintf("%s: SRQ %#x", e.Verb, e.QPNum)
	switch {
	case e.Verb == "ibv_post_wq_recv":
		s = fmt.Sprintf("%s: WQ %#x", e.Verb, e.QPNum)
	case e.QPType != 0:
		s = fmt.Sprintf("%s: QP %#x (%s)", e.Verb, e.QPNum, ShortName(e.QPType))
	}
	switch {
	case e.Index >= 0:
		s += fmt.Sprintf(": WR %d (id %#x)", e.Index, e.WRID)
	case e.Reason == "":
		s += ": the failed WR is unknown, and all may have been posted"
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s + ": " + verberr.Text(e.Errno)
}

// Is reports runtime.ErrNotSupported for errnos that say so, as the error of a call does.
func (e *PostError) Is(target error) bool { return (&runtime.CallError{Errno: e.Errno}).Is(target) }

// Unwrap returns Errno.
func (e *PostError) Unwrap() error { return e.Errno }
