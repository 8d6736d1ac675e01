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

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// TestECE checks that ECE options are sent with the request, and that a rejection because of ECE has its own status.
func TestECE(t *testing.T) {
	s := newScene(t)
	at := address(t, 7460)
	s.listen(rdmacm.PS_TCP, at)
	id := s.resolved(rdmacm.PS_TCP, at)
	proposed := ibv.ECE{VendorID: 7, Options: 9}
	require.NoError(t, id.SetLocalECE(&proposed))
	param := cm.DefaultConnParam()
	param.QPNum = 77
	require.NoError(t, id.Connect(withTimeout(t), &param, nil))
	other := keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil)
	ece, err := other.RemoteECE()
	require.NoError(t, err)
	assert.Equal(t, proposed, *ece)
	require.NoError(t, other.RejectECE([]byte("no such options")))
	e := expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 35, e.Status)
	assert.Equal(t, "no such options", string(e.PrivateData[:15]))
	err = &cm.EventError{Event: e}
	assert.ErrorContains(t, err, "does not accept the ECE options")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// TestNotify checks that the passive side can report a message that arrived before the RTU, so that the connection
// manager need not wait for the RTU.
func TestNotify(t *testing.T) {
	s := newScene(t)
	at := address(t, 7461)
	s.listen(rdmacm.PS_TCP, at)
	id := s.resolved(rdmacm.PS_TCP, at)
	param := cm.DefaultConnParam()
	param.QPNum = 77 // since the ID has no queue pair, RTU waits for Establish
	require.NoError(t, id.Connect(withTimeout(t), &param, nil))
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	assert.ErrorIs(t, other.Notify(ibv.EVENT_COMM_EST), syscall.EINVAL, "before it is accepted")
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	require.NoError(t, other.Notify(ibv.EVENT_COMM_EST))
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	assert.ErrorIs(t, other.Notify(ibv.EVENT_SQ_DRAINED), syscall.EINVAL, "irrelevant event")
}

// TestSetIBPath checks that an ID with a resolved address accepts a path in place of route resolution, and rejects an
// unusable path.
func TestSetIBPath(t *testing.T) {
	s := newScene(t)
	at := address(t, 7462)
	id, err := s.ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	path := rdmacm.IBVPathData{Flags: rdmacm.IBV_PATH_FLAG_GMP | rdmacm.IBV_PATH_FLAG_PRIMARY |
		rdmacm.IBV_PATH_FLAG_BIDIRECTIONAL}
	path.Path.ReversibleNumpath, path.Path.MTU, path.Path.Rate, path.Path.PKey = 0x81, 3, 2, ibv.ToBE16(0xffff)
	assert.ErrorIs(t, id.SetIBPath([]rdmacm.IBVPathData{path}), syscall.EINVAL, "the ID has no device")
	require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second))
	expect(t, s.ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
	assert.ErrorContains(t, id.SetIBPath(nil), "no paths")
	assert.ErrorIs(t, id.SetIBPath([]rdmacm.IBVPathData{{}}), syscall.EINVAL, "a path without flags")
	require.NoError(t, id.SetIBPath([]rdmacm.IBVPathData{path}))
	expect(t, s.ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	assert.ErrorIs(t, id.SetIBPath([]rdmacm.IBVPathData{path}), syscall.EINVAL, "the ID has a queue pair")
}

// since65 reports whether the guest has librdmacm 65 or later, or without librdmacm a kernel from 7.2 on. Otherwise it
// checks the error.
func since65(t *testing.T, err error) bool {
	t.Helper()
	if !errors.Is(err, runtime.ErrNotSupported) {
		return true
	}
	assert.NotEqual(t, "7", testbed.Kernel(t), "rdma-core 65")
	if !testbed.Native() {
		assert.ErrorContains(t, err, "librdmacm.so.1 does not export it (rdma-core has it since 65.0)")
	}
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	return false
}

// TestUserEvent checks that a user event wakes a waiting goroutine and is not taken for the result of a call.
func TestUserEvent(t *testing.T) {
	s := newScene(t)
	id, err := createID(rdmacm.PS_TCP)
	keep(t, id, err)
	if !since65(t, id.WriteEvent(-5, 77)) {
		return
	}
	require.NoError(t, id.WriteEvent(6, uint64(^uintptr(0))), "more than one")
	require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, address(t, 7463), time.Second),
		"the event is not the result of a call")
	for _, want := range []cm.Event{{Status: -5, Arg: 77}, {Status: 6, Arg: uint64(^uintptr(0))}} {
		e, err := id.Event(withTimeout(t))
		require.NoError(t, err)
		want.Type, want.ID = rdmacm.CM_EVENT_USER, id
		assert.Equal(t, want, e)
	}
	other, err := s.ch.CreateID(rdmacm.PS_UDP)
	keep(t, other, err)
	require.NoError(t, other.WriteEvent(0, 3))
	assert.EqualValues(t, 3, expect(t, s.ch, rdmacm.CM_EVENT_USER).Arg)
}

// TestEventOfAddrInfo resolves names on an ID, one at a time.
func TestEventOfAddrInfo(t *testing.T) {
	s := newScene(t)
	at := address(t, 7464)
	id, err := createID(rdmacm.PS_TCP)
	keep(t, id, err)
	hints := cm.Hints{Flags: rdmacm.RAI_NUMERICHOST, Source: address(t, 0)}
	err = id.ResolveAddrInfo(withTimeout(t), at.Addr().String(), "7464", hints)
	if !since65(t, err) {
		if _, err = id.QueryAddrInfo(); testbed.Native() {
			assert.ErrorIs(t, err, syscall.ENOENT)
		} else {
			assert.False(t, since65(t, err))
		}
		return
	}
	require.NoError(t, err)
	assert.ErrorIs(t, id.ResolveAddrInfo(withTimeout(t), at.Addr().String(), "7464", hints), syscall.EBUSY,
		"the first result was not read")
	info, err := id.QueryAddrInfo()
	require.NoError(t, err)
	assert.Equal(t, at, info.Destination())
	assert.Equal(t, at.Addr(), info.Source().Addr(), "of the hints")
	info.Close()
	_, err = id.QueryAddrInfo()
	assert.ErrorIs(t, err, syscall.ENOENT, "the result was read")
	err = id.ResolveAddrInfo(withTimeout(t), "300.1.1.1", "7464", hints)
	assert.ErrorContains(t, err, `unknown node "300.1.1.1" or service "7464"`)
	require.NoError(t, id.Bind(address(t, 0)))
	err = id.ResolveAddrInfo(withTimeout(t), "", "7464", cm.Hints{Flags: rdmacm.RAI_SA})
	assert.ErrorContains(t, err, "InfiniBand's subnet administration", "RoCE has none")
	other, err := s.ch.CreateID(rdmacm.PS_TCP)
	keep(t, other, err)
	require.NoError(t, other.ResolveAddrInfo(withTimeout(t), at.Addr().String(), "7464", hints))
	expect(t, s.ch, rdmacm.CM_EVENT_ADDRINFO_RESOLVED)
	info, err = other.QueryAddrInfo()
	require.NoError(t, err)
	info.Close()
}

// TestJoinToSendOnly checks that a send-only member is not attached and receives nothing.
func TestJoinToSendOnly(t *testing.T) {
	s := newScene(t)
	group := netip.MustParseAddrPort("239.7.7.8:0")
	join := func(flags rdmacm.CMMCJoinFlags) (*cm.ID, cm.Event) {
		id, err := s.ch.CreateID(rdmacm.PS_UDP)
		keep(t, id, err)
		require.NoError(t, id.Bind(address(t, 0)))
		withQP(t, id)
		_, _, err = id.JoinEx(withTimeout(t), group, flags)
		require.NoError(t, err)
		return id, expect(t, s.ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	}
	from, e := join(rdmacm.MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
	to, _ := join(rdmacm.MC_JOIN_FLAG_FULLMEMBER)
	mrs := map[*cm.ID]*rdma.MR{}
	for _, id := range []*cm.ID{from, to} {
		mr, err := id.RegMsgs(make([]byte, 128))
		require.NoError(t, err)
		require.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
		mrs[id] = mr
	}
	pd, err := from.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	keep(t, ah, err)
	require.NoError(t, from.PostUDSend(2, []byte("to all"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	wc, err := to.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	assert.Equal(t, "to all", string(mrs[to].Bytes()[40:wc.ByteLen]))
	n, err := from.QP().RecvCQ().Poll(make([]ibv.WC, 1))
	require.NoError(t, err)
	assert.Zero(t, n, "a member that only sends receives nothing")
	require.NoError(t, from.QP().Close(), "the queue pair is not attached")
	require.NoError(t, to.Leave(group))
	require.NoError(t, to.QP().Close())
	for _, mr := range mrs {
		require.NoError(t, mr.Close())
	}
}

// TestAddressesOfInfiniBand resolves names to native InfiniBand addresses, which no device here has.
func TestAddressesOfInfiniBand(t *testing.T) {
	inGuest(t, "the software device has IP addresses only")
	for _, flags := range []rdmacm.AddrInfoFlags{rdmacm.RAI_PASSIVE, 0} {
		info, err := getAddrInfo(withTimeout(t), "::ffff:10.77.0.1", "7465",
			cm.Hints{Flags: flags | rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST, Family: 27})
		require.NoError(t, err)
		assert.EqualValues(t, 27, info.C.AiFamily)
		assert.False(t, info.Source().IsValid(), "none of IP")
		assert.False(t, info.Destination().IsValid())
		_, err = cm.CreateEP(withTimeout(t), info, nil, nil, rdma.QueueOptions{})
		assert.ErrorIs(t, err, syscall.ENODEV)
		assert.ErrorContains(t, err, "no InfiniBand device")
		info.Close()
	}
}

// removeDevice removes a device, which waits until librdmacm has closed the device, too.
func removeDevice(t *testing.T, remove func() error) {
	removed := make(chan error, 1)
	go func() { removed <- remove() }()
	for {
		select {
		case err := <-removed:
			assert.NoError(t, err)
			return
		case <-time.After(20 * time.Millisecond):
			if list, err := getDevices(); assert.NoError(t, err) { // makes librdmacm close removed devices
				assert.NoError(t, list.Close())
			}
		}
	}
}

// TestEventAddressChange changes the Ethernet address of the network device that an ID uses, by a failover of its bond.
func TestEventAddressChange(t *testing.T) {
	if !alone(t) {
		return
	}
	s := newScene(t)
	if testbed.Kernel(t) == testbed.Soft {
		addressChangeOnSoft(t, s)
		return
	}
	bond := testbed.NewBond(t)
	defer removeDevice(t, bond.Remove)
	l := s.listen(rdmacm.PS_TCP, netip.AddrPortFrom(bond.Address, 7466))
	defer l.Close() // the removal waits for it
	bond.FailOver()
	e := expect(t, s.server, rdmacm.CM_EVENT_ADDR_CHANGE)
	assert.Same(t, l, e.ID)
}

// addressChangeOnSoft moves the address to another device, and back.
func addressChangeOnSoft(t *testing.T, s *scene) {
	f, err := soft.Default()
	require.NoError(t, err)
	at := address(t, 7466)
	l := s.listen(rdmacm.PS_TCP, at)
	defer l.Close()
	require.NoError(t, f.MoveAddress(at.Addr(), "soft1"))
	defer func() { assert.NoError(t, f.MoveAddress(at.Addr(), "soft0")) }()
	assert.Same(t, l, expect(t, s.server, rdmacm.CM_EVENT_ADDR_CHANGE).ID)
}
