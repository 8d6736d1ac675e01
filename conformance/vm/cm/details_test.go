// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestDetails tests details of librdmacm that the software device implements.
func TestDetails(t *testing.T) {
	s := newScene(t)
	at := address(t, 7440)
	l := s.listen(rdmacm.PS_UDP, at)

	// a SIDR request is rejected, or its ID is destroyed
	for _, refuse := range []func(*cm.ID) error{func(id *cm.ID) error {
		return errors.Join(id.Reject([]byte("no")),
			id.Close())
	}, (*cm.ID).Close} {
		id := withQP(t, s.resolved(rdmacm.PS_UDP, at))
		require.NoError(t, id.Connect(withTimeout(t), nil, nil))
		require.NoError(t, refuse(expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID))
		assert.Equal(t, 2, expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE).Status, "IB_SIDR_REJECT")
	}

	// private data of a SIDR request and of its reply
	id := withQP(t, s.resolved(rdmacm.PS_UDP, at))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e := expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Len(t, e.PrivateData, 180)
	other := withQP(t, keep(t, e.ID, nil))
	require.NoError(t, other.Accept(withTimeout(t), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Len(t, e.PrivateData, 136)
	assert.EqualValues(t, 1, e.UD.AHAttr.IsGlobal)
	assert.EqualValues(t, 1, e.UD.AHAttr.PortNum)
	assert.Equal(t, at.Addr().As16(), *e.UD.AHAttr.GRH.DGID.Raw())
	require.NoError(t, l.Close())

	// calls in the wrong state
	fresh, err := s.ch.CreateID(rdmacm.PS_TCP)
	keep(t, fresh, err)
	assert.ErrorIs(t, fresh.Establish(), syscall.EINVAL)
	assert.ErrorIs(t, fresh.Reject(nil), syscall.EINVAL)
	_, _, err = fresh.InitQPAttr(ibv.QPS_INIT)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.NoError(t, fresh.Listen(1), "Listen selects a port for an unbound ID")
	assert.NotZero(t, fresh.LocalAddr().Port())
	assert.True(t, fresh.LocalAddr().Addr().IsUnspecified())
	assert.ErrorIs(t, fresh.Listen(1), syscall.EINVAL, "again")
	assert.ErrorIs(t, fresh.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second), syscall.EINVAL, "the ID is listening")
	known := s.resolved(rdmacm.PS_TCP, at)
	assert.ErrorIs(t, known.ResolveRoute(withTimeout(t), time.Second), syscall.EINVAL, "again")
	assert.ErrorIs(t, known.Bind(at), syscall.EINVAL, "the ID is bound")
	assert.ErrorIs(t, known.Listen(1), syscall.EINVAL, "the ID is connecting")

	// A port is in use for all addresses if one address uses it. Linux reports that the address is not available; the
	// software device names the owner.
	all, err := createID(rdmacm.PS_TCP)
	keep(t, all, err)
	one, err := createID(rdmacm.PS_TCP)
	keep(t, one, err)
	require.NoError(t, one.Bind(address(t, 7441)))
	err = all.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 7441))
	if testbed.Kernel(t) == testbed.Soft {
		assert.ErrorIs(t, err, syscall.EADDRINUSE)
	} else {
		assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	}

	// fields of a connection's events
	s.listen(rdmacm.PS_TCP, at)
	id = withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e = expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.EqualValues(t, 7, e.Conn.RetryCount)
	assert.EqualValues(t, 7, e.Conn.RNRRetryCount)
	assert.Zero(t, e.Conn.SRQ)
	other = withQP(t, keep(t, e.ID, nil))
	rtr, mask, err := other.InitQPAttr(ibv.QPS_RTR)
	require.NoError(t, err)
	assert.Equal(t,
		ibv.QP_STATE|ibv.QP_AV|ibv.QP_PATH_MTU|ibv.QP_DEST_QPN|ibv.QP_RQ_PSN|ibv.QP_MAX_DEST_RD_ATOMIC|
			ibv.QP_MIN_RNR_TIMER, mask)
	assert.Equal(t, id.QP().Num(), rtr.DestQPNum)
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Zero(t, e.Conn.RetryCount, "replies have no retry count")
	e = expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, rdmacm.ConnParam{}, e.Conn)
	assert.Empty(t, e.PrivateData)
	assert.ErrorIs(t, other.Notify(ibv.EVENT_COMM_EST), syscall.EISCONN)
	assert.ErrorIs(t, other.Accept(withTimeout(t), nil, nil), syscall.EINVAL, "again")
	rts, mask, err := id.InitQPAttr(ibv.QPS_RTS)
	require.NoError(t, err)
	assert.Equal(t, ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC,
		mask)
	assert.EqualValues(t, 64, rtr.AHAttr.GRH.HopLimit)
	assert.GreaterOrEqual(t, rts.Timeout, uint8(17), "19 on Linux 6.1")
	require.NoError(t, other.Close(), "without a DREQ")
	e = expect(t, s.ch, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Zero(t, e.Status)
	require.NoError(t, id.Disconnect(withTimeout(t)))
	expect(t, s.ch, rdmacm.CM_EVENT_TIMEWAIT_EXIT)

	// the requesting side closes after the reply has arrived, and before
	for _, accept := range []bool{true, false} {
		id = withQP(t, s.resolved(rdmacm.PS_TCP, at))
		require.NoError(t, id.Connect(withTimeout(t), nil, nil))
		other = withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
		if accept {
			require.NoError(t, other.Accept(withTimeout(t), nil, nil))
			waiting := []unix.PollFd{{Fd: s.ch.C().FD, Events: unix.POLLIN}}
			require.Eventually(t, func() bool {
				f, err := soft.Default()
				require.NoError(t, err)
				f.Advance(10 * time.Second) // polling does not advance a virtual clock
				n, err := unix.Poll(waiting, 10)
				return n > 0 && err == nil
			}, 20*time.Second, time.Millisecond, "the reply has arrived, unread")
		}
		require.NoError(t, id.Close())
		if accept {
			assert.Equal(t, 28, expect(t, s.server, rdmacm.CM_EVENT_REJECTED).Status)
			continue
		}
		assert.Eventually(t, func() bool { return errors.Is(other.Accept(withTimeout(t), nil, nil), syscall.EINVAL) },
			5*time.Second, time.Second, "no event is raised")
	}
}
