// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
)

// CompletionError says that a work request failed, what the status means, and which causes are likely. errors.As finds
// it. In JSON it has the members of a failed [ibv.WC].
//
// Man: ibv_poll_cq(3)
type CompletionError struct {
	WRID      uint64       `json:"wr_id"`
	QPNum     uint32       `json:"qp_num"`
	Status    ibv.WCStatus `json:"status"`
	VendorErr uint32       `json:"vendor_err"` // a further code of the provider; its documents explain it
}

// CompletionErr returns nil for a successful completion, and a [*CompletionError] for any other.
func CompletionErr(wc *ibv.WC) error {
	if wc.Status == ibv.WC_SUCCESS {
		return nil
	}
	return &CompletionError{wc.WRID, wc.QPNum, wc.Status, wc.VendorErr}
}

// Error returns the status by name and number, its meaning and the likely causes.
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
