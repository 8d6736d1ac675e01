// SPDX-License-Identifier: BSD-2-Clause

package gid

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestBetterGIDs: RoCE v2 is preferred over other types and IPv4 over IPv6. Link-local addresses come last.
func TestBetterGIDs(t *testing.T) {
	entry := func(address string, kind ibv.GIDType) ibv.GIDEntry {
		e := ibv.GIDEntry{GIDType: kind}
		*e.GID.Raw() = netip.MustParseAddr(address).As16()
		return e
	}
	last := -1
	for _, e := range []ibv.GIDEntry{
		entry("fe80::1", ibv.GID_TYPE_ROCE_V1), entry("2001:db8::1", ibv.GID_TYPE_ROCE_V1),
		entry("192.0.2.1", ibv.GID_TYPE_ROCE_V1), entry("fe80::1", ibv.GID_TYPE_ROCE_V2),
		entry("2001:db8::1", ibv.GID_TYPE_ROCE_V2), entry("192.0.2.1", ibv.GID_TYPE_ROCE_V2),
	} {
		c, ok := fits(Query{}, e, interfaces{})
		require.True(t, ok)
		assert.Greater(t, c.rank, last, "%s %v", e.GID, e.GIDType)
		last = c.rank
	}
}
