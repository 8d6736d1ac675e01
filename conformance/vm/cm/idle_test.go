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
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestIDWithoutDevice checks that methods of an ID without a device return explanatory errors. C would dereference a
// null pointer.
func TestIDWithoutDevice(t *testing.T) {
	group, attr := netip.MustParseAddrPort("239.1.1.1:0"), qpAttr
	for _, space := range []rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP} {
		idle, err := createID(space)
		id := keep(t, idle, err)
		for name, call := range map[string]func() error{
			"Device":         func() error { _, err := id.Device(); return err },
			"PD":             func() error { _, err := id.PD(); return err },
			"rdma_create_qp": func() error { _, err := id.CreateQP(nil, &attr, rdma.QueueOptions{}); return err },
			"rdma_create_srq": func() error {
				_, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 1, MaxSGE: 1}, rdma.QueueOptions{})
				return err
			},
			"rdma_reg_msgs":      func() error { _, err := id.RegMsgs(make([]byte, 8)); return err },
			"rdma_post_send":     func() error { return id.PostSend(1, nil, nil, 0) },
			"rdma_post_recvv":    func() error { return id.PostRecvv(1, nil) },
			"rdma_connect":       func() error { return id.Connect(withTimeout(t), &rdmacm.ConnParam{QPNum: 1}, nil) },
			"rdma_accept":        func() error { return id.Accept(withTimeout(t), &rdmacm.ConnParam{QPNum: 1}, []byte("x")) },
			"rdma_reject":        func() error { return id.Reject([]byte("x")) },
			"rdma_reject_ece":    func() error { return id.RejectECE(nil) },
			"rdma_disconnect":    func() error { return id.Disconnect(withTimeout(t)) },
			"rdma_establish":     func() error { return id.Establish() },
			"rdma_notify":        func() error { return id.Notify(ibv.EVENT_COMM_EST) },
			"rdma_resolve_route": func() error { return id.ResolveRoute(withTimeout(t), time.Second) },
			"rdma_init_qp_attr":  func() error { _, _, err := id.InitQPAttr(ibv.QPS_RTR); return err },
			"rdma_set_local_ece": func() error { return id.SetLocalECE(nil) },
			"rdma_join_multicast": func() error {
				_, _, err := id.Join(withTimeout(t), group)
				return err
			},
			"rdma_join_multicast_ex": func() error {
				_, _, err := id.JoinEx(withTimeout(t), group, rdmacm.MC_JOIN_FLAG_FULLMEMBER)
				return err
			},
			"rdma_leave_multicast": func() error { return id.Leave(group) },
		} {
			err := call()
			require.Error(t, err, name)
			assert.ErrorContains(t, err, name+": unbound ID: ", name)
			var local *rdma.VerbError
			if assert.ErrorAs(t, err, &local, name) {
				assert.NotEmpty(t, local.Reason, "%v", err)
				assert.NotZero(t, local.Errno, "%v", err)
			}
		}
	}
}

// TestDestinationOfHints checks that a destination address in the hints makes a name unnecessary.
func TestDestinationOfHints(t *testing.T) {
	at := address(t, 7442)
	l := listen(t, 7442)
	info, err := getAddrInfo(withTimeout(t), "", "", cm.Hints{Destination: at})
	require.NoError(t, err)
	defer info.Close()
	assert.Equal(t, at, info.Destination())
	ep, err := cm.CreateEP(context.Background(), info, nil, &qpAttr, rdma.QueueOptions{})
	id := keep(t, ep, err)
	assert.Equal(t, ibv.QPT_RC, id.QP().Type())
	assert.Equal(t, at, id.PeerAddr())
	require.NoError(t, l.Close())
	assert.ErrorIs(t, id.Connect(withTimeout(t), nil, nil), syscall.ECONNREFUSED)
}
