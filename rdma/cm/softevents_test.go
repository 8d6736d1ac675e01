// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
)

func TestSoftUnreachable(t *testing.T) {
	for _, ps := range []rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP} {
		s := newTestbed(t, ps)
		s.listen(1)
		id := s.withQP(s.resolved())
		s.f.SetLink("soft1", false)
		start := s.f.Now()
		require.NoError(t, id.Connect(timeout(t), nil, nil))
		e := s.event(s.activeChannel, rdmacm.CM_EVENT_UNREACHABLE)
		assert.Equal(t, -int(syscall.ETIMEDOUT), e.Status)
		assert.Equal(t, requestTimeout, s.elapsed(start))
		assert.ErrorIs(t, id.Connect(timeout(t), nil, nil), syscall.EINVAL, "an ID connects only once")
	}
}

// TestSoftLostAnswer: the passive side times out like the active side.
func TestSoftLostAnswer(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.requested()
	other := s.request()
	s.f.SetLink("soft0", false)
	start := s.f.Now()
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_UNREACHABLE)
	assert.Equal(t, requestTimeout, s.elapsed(start))
	s.event(s.activeChannel, rdmacm.CM_EVENT_UNREACHABLE)
}

// TestSoftLinkRestored: messages are retransmitted.
func TestSoftLinkRestored(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.withQP(s.resolved())
	s.f.SetLink("soft1", false)
	require.NoError(t, id.Connect(timeout(t), nil, nil))
	s.f.Advance(10 * time.Second)
	s.f.SetLink("soft1", true)
	other := s.request()
	s.f.SetLink("soft1", false)
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	s.f.Advance(time.Minute)
	s.f.SetLink("soft1", true)
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
}

// TestSoftSlowPrograms: a virtual clock does not advance while a program processes a request or a reply.
func TestSoftSlowPrograms(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.requested()
	other := s.request()
	start := s.f.Now()
	s.f.Advance(time.Hour)
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	s.f.Advance(time.Hour)
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, id.Disconnect(timeout(t)))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
	s.f.Advance(time.Hour)
	require.NoError(t, other.Disconnect(timeout(t)))
	s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Equal(t, 3*time.Hour, s.elapsed(start))
}

func TestSoftTimeWait(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.connect()
	require.NoError(t, s.client.Disconnect(timeout(t)))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
	start := s.f.Now()
	require.NoError(t, s.peer.Disconnect(timeout(t)))
	s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
	s.event(s.activeChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
	assert.Equal(t, 4096<<17*time.Nanosecond, s.elapsed(start), "one ACK timeout")
}

func TestSoftUnansweredDisconnect(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.connect()
	s.f.SetLink("soft1", false)
	start := s.f.Now()
	require.NoError(t, s.client.Disconnect(timeout(t)))
	e := s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Equal(t, -int(syscall.ETIMEDOUT), e.Status)
	assert.Equal(t, requestTimeout, s.elapsed(start))
}

func TestSoftBothDisconnect(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.connect()
	s.f.SetFaults(soft.Faults{Delay: 1, Late: time.Millisecond})
	require.NoError(t, s.client.Disconnect(timeout(t)))
	require.NoError(t, s.peer.Disconnect(timeout(t)))
	s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
	s.event(s.activeChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
}

func TestSoftAddressAndRouteErrors(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	id, err := s.activeChannel.CreateID(s.space)
	keep(t, id, err)
	start := s.f.Now()
	require.NoError(t, id.ResolveAddr(timeout(t), s.local, netip.MustParseAddrPort("10.0.0.1:1"), 3*time.Second))
	assert.Equal(t, -int(syscall.EHOSTUNREACH), s.event(s.activeChannel, rdmacm.CM_EVENT_ADDR_ERROR).Status)
	assert.Zero(t, s.elapsed(start), "the address cannot exist, so the error comes at once")
	s.f.SetLink("soft1", false)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, s.remote, 3*time.Second))
	assert.Equal(t, -int(syscall.ETIMEDOUT), s.event(s.activeChannel, rdmacm.CM_EVENT_ADDR_ERROR).Status)
	assert.Equal(t, 3*time.Second, s.elapsed(start))
	s.f.SetLink("soft1", true)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, s.remote, time.Second), "again")
	s.event(s.activeChannel, rdmacm.CM_EVENT_ADDR_RESOLVED)
	s.f.SetFaults(soft.Faults{NoRoute: true})
	require.NoError(t, id.ResolveRoute(timeout(t), 2*time.Second))
	assert.Equal(t, -int(syscall.ETIMEDOUT), s.event(s.activeChannel, rdmacm.CM_EVENT_ROUTE_ERROR).Status)
	assert.Equal(t, 5*time.Second, s.elapsed(start))
	s.f.SetFaults(soft.Faults{})
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second), "again")
	s.event(s.activeChannel, rdmacm.CM_EVENT_ROUTE_RESOLVED)
}

func TestSoftAddressChange(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.connect()
	require.NoError(t, s.f.MoveAddress(s.remote.Addr(), "soft0"))
	ids := map[*ID]bool{s.event(s.passiveChannel, rdmacm.CM_EVENT_ADDR_CHANGE).ID: true,
		s.event(s.passiveChannel, rdmacm.CM_EVENT_ADDR_CHANGE).ID: true}
	assert.Equal(t, map[*ID]bool{s.listener: true, s.peer: true}, ids)
	assert.ErrorContains(t, s.f.MoveAddress(netip.MustParseAddr("10.0.0.1"), "soft0"),
		"no device has the address 10.0.0.1")
	assert.ErrorContains(t, s.f.MoveAddress(s.remote.Addr(), "soft7"), "no device")
}

func TestSoftDeviceRemoval(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(2)
	s.connect()
	s.requested() // an undelivered request
	require.True(t, s.f.RemoveDevice("soft1"))
	ids := map[*ID]bool{s.event(s.passiveChannel, rdmacm.CM_EVENT_DEVICE_REMOVAL).ID: true,
		s.event(s.passiveChannel, rdmacm.CM_EVENT_DEVICE_REMOVAL).ID: true}
	assert.Equal(t, map[*ID]bool{s.listener: true, s.peer: true}, ids)
	require.NoError(t, s.peer.Close())
	require.NoError(t, s.listener.Close())
	s.event(s.activeChannel, rdmacm.CM_EVENT_UNREACHABLE)
	require.NoError(t, s.client.Disconnect(timeout(t)))
	s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED) // the DREQ is lost
	assert.ErrorIs(t, s.client.Disconnect(timeout(t)), nil)
}

// TestSoftRejections checks each reason of a rejection.
func TestSoftRejections(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.requested()
	assert.Equal(t, 8, s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Status, "no listener")
	s.listen(4)
	s.requested()
	require.NoError(t, s.request().RejectECE(nil))
	assert.Equal(t, 35, s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Status)
	id := s.requested()
	require.NoError(t, id.Close())
	request := s.requested()
	other := s.request()
	assert.Equal(t, request.LocalAddr(), other.PeerAddr(), "no event for a request that was withdrawn at once")
	require.NoError(t, request.Close())
	assert.ErrorIs(t, other.Accept(timeout(t), nil, nil), syscall.EINVAL, "the requester has disconnected")
	param := DefaultConnParam()
	param.QPNum = 78
	request = s.resolved() // without a queue pair: draining one would advance the clock
	require.NoError(t, request.Connect(timeout(t), &param, nil))
	other = s.request()
	s.f.SetFaults(soft.Faults{Drop: 1})
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	s.f.SetFaults(soft.Faults{})
	require.NoError(t, request.Close())
	assert.Equal(t, 4, s.event(s.passiveChannel, rdmacm.CM_EVENT_REJECTED).Status,
		"the requester disconnected before the answer arrived")
	s.requested()
	other = s.request()
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	require.NoError(t, other.Close())
	e := s.event(s.activeChannel, rdmacm.CM_EVENT_CONNECT_ERROR)
	assert.Negative(t, e.Status, "accepted, then abandoned")

	param.QPNum = 77
	a := s.resolved()
	require.NoError(t, a.Connect(timeout(t), &param, nil))
	s.request()
	b := s.resolved()
	require.NoError(t, b.Connect(timeout(t), &param, nil))
	assert.Equal(t, 10, s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Status, "the queue pair is already connected")

	require.NoError(t, s.listener.Close())
	assert.Equal(t, 8, func() int { s.requested(); return s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Status }(),
		"the listener is closed")
}

// TestSoftBacklog: a listener with a full backlog does not answer requests, which are retransmitted.
func TestSoftBacklog(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	const least = 16
	var waiting []*ID
	for range least {
		waiting = append(waiting, s.requested())
	}
	last := s.requested()
	for _, id := range waiting {
		assert.Equal(t, id.LocalAddr(), s.request().PeerAddr())
	}
	start := s.f.Now()
	assert.Equal(t, last.LocalAddr(), s.request().PeerAddr())
	assert.Equal(t, requestTimeout/16, s.elapsed(start))
	require.NoError(t, s.requested().Close(), "makes room in the backlog")
	start = s.f.Now()
	for range least {
		s.requested()
	}
	for range least {
		s.request()
	}
	assert.Zero(t, s.elapsed(start))
	third := s.requested()
	for range least - 1 {
		s.requested()
	}
	fourth := s.requested()
	require.NoError(t, s.listener.Close(), "rejects the waiting requests")
	for i := range least + 1 {
		e := s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED)
		switch i {
		case 0:
			assert.Same(t, third, e.ID)
			assert.Equal(t, 28, e.Status)
		case least:
			assert.Same(t, fourth, e.ID)
			assert.Equal(t, 8, e.Status)
		}
	}
}

// TestSoftOneChannel: the failure of a request is reported on the channel that delivered it.
func TestSoftOneChannel(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.activeChannel = s.passiveChannel
	s.listen(1)
	id := s.withQP(s.resolved())
	require.NoError(t, id.Connect(timeout(t), nil, nil))
	require.NoError(t, s.listener.Close())
	assert.Equal(t, 28, s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Status)
}

// TestSoftECE: ECE options are carried by the request and the reply.
func TestSoftECE(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.resolved()
	require.NoError(t, id.SetLocalECE(&ibv.ECE{VendorID: 7, Options: 5}))
	param := DefaultConnParam()
	param.QPNum = 99
	require.NoError(t, id.Connect(timeout(t), &param, nil))
	other := keep(t, s.event(s.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil)
	ece, err := other.RemoteECE()
	require.NoError(t, err)
	assert.EqualValues(t, 7, ece.VendorID)
	assert.EqualValues(t, 5, ece.Options)
	require.NoError(t, other.SetLocalECE(&ibv.ECE{VendorID: 7, Options: 1}))
	require.NoError(t, other.Accept(timeout(t), &param, nil))
	s.event(s.activeChannel, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	ece, err = id.RemoteECE()
	require.NoError(t, err)
	assert.EqualValues(t, 7, ece.VendorID)
	assert.EqualValues(t, 1, ece.Options)
	require.NoError(t, id.Establish())
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)

	id = s.resolved()
	require.NoError(t, id.SetLocalECE(&ibv.ECE{VendorID: 7, Options: 5}))
	require.NoError(t, s.withQP(id).Connect(timeout(t), nil, nil))
	ece, err = keep(t, s.event(s.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil).RemoteECE()
	require.NoError(t, err)
	assert.Zero(t, ece.VendorID, "the options of a queue pair are its device's, which has none")
}

// TestSoftMigrateWithEvents: unread events move to the new channel.
func TestSoftMigrateWithEvents(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(2)
	id, err := s.activeChannel.CreateID(s.space)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(timeout(t), s.local, s.remote, time.Second))
	require.NoError(t, id.Migrate(s.passiveChannel))
	assert.Same(t, id, s.event(s.passiveChannel, rdmacm.CM_EVENT_ADDR_RESOLVED).ID)
	s.requested()
	require.NoError(t, s.listener.Migrate(s.activeChannel))
	other := s.event(s.activeChannel, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Same(t, s.listener, other.Listener)
	require.NoError(t, other.ID.Close())
	s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED)
}

// TestSoftNotify: a message that arrives before the active side's RTU replaces it.
func TestSoftNotify(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.requested()
	other := s.request()
	assert.ErrorIs(t, other.Notify(ibv.EVENT_COMM_EST), syscall.EINVAL)
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	require.NoError(t, other.Notify(ibv.EVENT_COMM_EST))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
	assert.ErrorIs(t, other.Notify(ibv.EVENT_COMM_EST), syscall.EISCONN)
	assert.ErrorIs(t, other.Notify(ibv.EVENT_PATH_MIG), syscall.EINVAL)
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
}
