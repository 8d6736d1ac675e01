// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package librdmacm

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// IBAddrAny reports whether the address is the wildcard address, all zeros.
//
//verbs:c int ib_addr_any(const struct ib_addr *a)
func IBAddrAny(a *rdmacm.AFIBAddr) bool { return *a.IBU.UibAddr8() == [16]byte{} }

// IBAddrLoopback reports whether the address is the loopback address, ::1.
//
//verbs:c int ib_addr_loopback(const struct ib_addr *a)
func IBAddrLoopback(a *rdmacm.AFIBAddr) bool { return *a.IBU.UibAddr8() == [16]byte{15: 1} }

// IBAddrSet sets the address from four words, the most significant first.
//
//verbs:c void ib_addr_set(struct ib_addr *addr, __be32 w1, __be32 w2, __be32 w3, __be32 w4)
func IBAddrSet(addr *rdmacm.AFIBAddr, w1, w2, w3, w4 ibv.BE32) {
	*addr.IBU.UibAddr32() = [4]ibv.BE32{w1, w2, w3, w4}
}

// IBAddrCmp compares two addresses; the result is negative, 0 or positive.
//
//verbs:c int ib_addr_cmp(const struct ib_addr *a1, const struct ib_addr *a2)
func IBAddrCmp(a1, a2 *rdmacm.AFIBAddr) int {
	for i, b := range a1.IBU.UibAddr8() {
		if other := a2.IBU.UibAddr8()[i]; b != other {
			return int(b) - int(other)
		}
	}
	return 0
}
