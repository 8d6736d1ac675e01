// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// blockCQ creates a queue pair unknown to package rdma, which uses the completion queue of qp's receives.
func blockCQ(t *testing.T, qp *rdma.QP, pd *rdma.PD) *ibv.QP {
	t.Helper()
	cq := qp.RecvCQ().Ptr()
	raw, err := libibverbs.CreateQP(pd.C(),
		&ibv.QPInitAttr{SendCQ: cq, RecvCQ: cq, QPType: ibv.QPT_UD,
			Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	return raw
}

// TestSoftCloseFails: if C fails to destroy one of the ID's objects, the error of Close lists the destroyed ones, and
// the ID can be used with new objects in their place.
func TestSoftCloseFails(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(2)
	id := newSoftID(t, s.f, rdmacm.PS_TCP)
	require.NoError(t, id.ResolveAddr(timeout(t), s.local, s.remote, time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	s.withQP(id)
	d, err := id.Device()
	require.NoError(t, err)
	pd, err := d.AllocPD() // CreateQP below uses it again
	require.NoError(t, err)
	lasting, err := s.activeChannel.CreateID(rdmacm.PS_TCP) // keeps the device of the domain open
	keep(t, lasting, err)
	require.NoError(t, lasting.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	_, err = lasting.Device()
	require.NoError(t, err)

	raw := blockCQ(t, id.QP(), pd)
	gone := fmt.Sprintf("closed before it: QP %#x (RC), SRQ ", id.QP().Num())
	for range 2 { // the second Close closes nothing
		err = id.Close()
		assert.ErrorIs(t, err, syscall.EBUSY)
		assert.ErrorContains(t, err, "ibv_destroy_cq: CQ")
		if gone != "" {
			assert.ErrorContains(t, err, gone)
		} else {
			assert.NotContains(t, err.Error(), "closed before it")
		}
		gone = ""
		assert.Nil(t, id.QP())
		assert.Nil(t, id.SRQ())
	}
	assert.Equal(t, "127.0.0.2:7471", id.PeerAddr().String(), "the ID is still usable")
	_, err = id.CreateQP(nil, &s.attrs, rdma.QueueOptions{})
	assert.ErrorIs(t, err, syscall.EBUSY, "the completion queues that it would replace")
	require.NoError(t, libibverbs.DestroyQP(raw))
	require.NoError(t, pd.Close())
	_, err = id.CreateQP(nil, &s.attrs, rdma.QueueOptions{})
	require.NoError(t, err)
	connected := make(chan error, 1)
	go func() { connected <- id.Connect(timeout(t), nil, nil) }()
	require.NoError(t, s.request().Accept(timeout(t), nil, nil))
	require.NoError(t, <-connected)
	require.NoError(t, id.Close())
}

// TestSoftCloseFailsAfterGroups: the error also counts the groups and requests that Close ended.
func TestSoftCloseFailsAfterGroups(t *testing.T) {
	f := newFabric(t, soft.Options{})
	id := newSoftID(t, f, rdmacm.PS_UDP)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	attr := softAttr
	attr.QPType = ibv.QPT_UD
	qp, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	group := netip.MustParseAddrPort("239.1.1.1:0")
	_, _, err = id.Join(timeout(t), group)
	require.NoError(t, err)
	pd, err := id.PD()
	require.NoError(t, err)
	raw := blockCQ(t, qp, pd)
	err = id.Close()
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, fmt.Sprintf("closed before it: QP %#x", qp.Num()))
	assert.ErrorContains(t, err, "after leaving 1 multicast groups and rejecting 0 requests")
	assert.ErrorIs(t, id.Leave(group), syscall.EADDRNOTAVAIL)
	require.NoError(t, libibverbs.DestroyQP(raw))
	require.NoError(t, id.Close())
	assert.Empty(t, f.Resources())
}
