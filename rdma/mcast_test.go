// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func groupGID(address string) (g ibv.GID) {
	*g.Raw() = netip.MustParseAddr(address).As16()
	return g
}

func TestCloseLeavesMulticastGroups(t *testing.T) {
	pd := softPD(t)
	one, other := groupGID("ff0e::ffff:e001:203"), groupGID("ff0e::7")
	e := newSoftPeer(t, pd, ibv.QPT_UD)
	require.NoError(t, e.qp.AttachMcast(one, 0))
	require.NoError(t, e.qp.AttachMcast(one, 0), "again")
	require.NoError(t, e.qp.AttachMcast(other, 0))
	require.NoError(t, e.qp.DetachMcast(other, 0))
	assert.ErrorIs(t, e.qp.DetachMcast(other, 0), syscall.EINVAL)
	assert.Len(t, e.qp.groups, 1)
	require.NoError(t, e.qp.Close(), "C does not destroy an attached queue pair")
	assert.ErrorIs(t, e.qp.AttachMcast(one, 0), ErrClosed)

	rc := newSoftPeer(t, pd, ibv.QPT_RC)
	err := rc.qp.AttachMcast(one, 0)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "type RC cannot receive multicasts; only UD can")
}
