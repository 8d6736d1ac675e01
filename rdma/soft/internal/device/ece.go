package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Enhanced connection establishment lets two devices of a vendor agree on options. This one has no vendor and no
// options.

// setECE is ibv_set_ece. Of what another vendor's device offers, nothing is taken.
func setECE(a []uint64) runtime.Errno {
	if findQP(a[0]) == nil || a[1] == 0 {
		return einval
	}
	ece := at[ibv.ECE](a[1])
	switch {
	case ece.VendorID == 0: // the library refuses it for every device
		return eopnotsupp
	case ece.CompMask != 0:
		return einval
	}
	ece.Options = 0
	return 0
}

// queryECE is ibv_query_ece.
func queryECE(a []uint64) runtime.Errno {
	if findQP(a[0]) == nil || a[1] == 0 {
		return einval
	}
	*at[ibv.ECE](a[1]) = ibv.ECE{}
	return 0
}
