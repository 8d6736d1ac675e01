// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftDatagramTooLong: posting a datagram that is too long fails with an error that names the limit.
func TestSoftDatagramTooLong(t *testing.T) {
	f := newFabric(t, soft.Options{})
	id, err := bound(t, f, rdmacm.PS_UDP, "127.0.0.1:0")
	require.NoError(t, err)
	attr := softAttr
	attr.QPType = ibv.QPT_UD
	_, err = id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	mr, err := id.RegMsgs(make([]byte, 4097))
	require.NoError(t, err)
	pd, err := id.PD()
	require.NoError(t, err)
	to := &ibv.AHAttr{IsGlobal: 1, PortNum: 1}
	*to.GRH.DGID.Raw() = id.LocalAddr().Addr().As16()
	ah, err := pd.CreateAH(to)
	require.NoError(t, err)
	err = id.PostUDSend(1, mr.Bytes(), mr, 0, ah, 1)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "4096")
	require.NoError(t, id.QP().Close())
	require.NoError(t, ah.Close())
	require.NoError(t, mr.Close())
}

// TestSoftSeparateFamilies: a listener at one family's wildcard address is not reachable through the other family.
func TestSoftSeparateFamilies(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for at, other := range map[string]string{"0.0.0.0:7471": "[::1]:7471", "[::]:7472": "127.0.0.1:7472"} {
		l, err := bound(t, f, rdmacm.PS_TCP, at, func(id *ID) error { return id.SetAFOnly(true) })
		require.NoError(t, err)
		require.NoError(t, l.Listen(1))
		id := newSoftID(t, f, rdmacm.PS_TCP)
		require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort(other), time.Second))
		require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
		_, err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
		require.NoError(t, err)
		assert.ErrorIs(t, id.Connect(timeout(t), nil, nil), syscall.ECONNREFUSED)
	}
}

// TestSoftReplyAfterDisconnect: a reply processed after the peer has disconnected does not establish a connection.
func TestSoftReplyAfterDisconnect(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.requested()
	other := s.request()
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	require.NoError(t, other.Close())
	e := s.event(s.activeChannel, rdmacm.CM_EVENT_CONNECT_ERROR)
	assert.Negative(t, e.Status)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	e, err := s.activeChannel.Event(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "%v: all other attributes are known", e)
	require.NoError(t, id.Close())
}
