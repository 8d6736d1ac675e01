// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

func newFabric(t *testing.T, o soft.Options) *soft.Fabric {
	t.Helper()
	f, err := soft.New(o)
	return keep(t, f, err)
}

func newSoftID(t *testing.T, f *soft.Fabric, ps rdmacm.PortSpace) *ID {
	t.Helper()
	id, err := CreateIDOn(f, ps)
	return keep(t, id, err)
}

// bound returns an ID that is bound to an address, or the error.
func bound(t *testing.T, f *soft.Fabric, ps rdmacm.PortSpace, at string, set ...func(*ID) error) (*ID, error) {
	t.Helper()
	id := newSoftID(t, f, ps)
	for _, set := range set {
		require.NoError(t, set(id))
	}
	return id, id.Bind(netip.MustParseAddrPort(at))
}

// TestSoftAddressInUse: the error of the second ID names the first.
func TestSoftAddressInUse(t *testing.T) {
	f := newFabric(t, soft.Options{})
	reuse := func(id *ID) error { return id.SetReuseAddr(true) }
	afOnly := func(id *ID) error { return id.SetAFOnly(true) }
	l, err := bound(t, f, rdmacm.PS_TCP, "127.0.0.1:7471")
	require.NoError(t, err)
	require.NoError(t, l.Listen(1))
	for _, at := range []string{"127.0.0.1:7471", "0.0.0.0:7471", "[::]:7471"} {
		_, err = bound(t, f, rdmacm.PS_TCP, at, reuse)
		assert.ErrorIs(t, err, syscall.EADDRINUSE, at)
		assert.ErrorContains(t, err, "used by an ID that listens at 127.0.0.1:7471 on soft0", at)
	}
	for _, free := range []string{"127.0.0.2:7471", "127.0.0.1:7472", "[::1]:7471"} {
		_, err = bound(t, f, rdmacm.PS_TCP, free)
		assert.NoError(t, err, free)
	}
	_, err = bound(t, f, rdmacm.PS_UDP, "127.0.0.1:7471")
	assert.NoError(t, err, "another port space")
	other := newFabric(t, soft.Options{})
	_, err = bound(t, other, rdmacm.PS_TCP, "127.0.0.1:7471")
	assert.NoError(t, err, "another fabric")

	_, err = bound(t, f, rdmacm.PS_TCP, "[::]:7480", afOnly)
	require.NoError(t, err)
	_, err = bound(t, f, rdmacm.PS_TCP, "0.0.0.0:7480")
	assert.NoError(t, err, "IPv6 only")
	_, err = bound(t, f, rdmacm.PS_TCP, "[::]:7481")
	require.NoError(t, err)
	_, err = bound(t, f, rdmacm.PS_TCP, "0.0.0.0:7481")
	assert.ErrorContains(t, err, "used by an ID that is bound to [::]:7481 on all devices")

	a, err := bound(t, f, rdmacm.PS_TCP, "127.0.0.1:7482", reuse)
	require.NoError(t, err)
	_, err = bound(t, f, rdmacm.PS_TCP, "127.0.0.1:7482", reuse)
	require.NoError(t, err)
	_, err = bound(t, f, rdmacm.PS_TCP, "127.0.0.1:7482")
	assert.ErrorIs(t, err, syscall.EADDRINUSE, "the ID does not share its address")
	err = a.Listen(1)
	assert.ErrorIs(t, err, syscall.EADDRINUSE, "an ID that shares its address cannot listen")
	assert.ErrorContains(t, err, "is bound to 127.0.0.1:7482")

	_, err = bound(t, f, rdmacm.PS_TCP, "10.0.0.1:7471")
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	require.NoError(t, f.AddAddress("soft1", netip.MustParseAddr("10.0.0.1")))
	id, err := bound(t, f, rdmacm.PS_TCP, "10.0.0.1:7471")
	require.NoError(t, err)
	d, err := id.Device()
	require.NoError(t, err)
	assert.Equal(t, "soft1", d.Name())
	assert.ErrorContains(t, f.AddAddress("soft0", netip.MustParseAddr("10.0.0.1")), "soft1 has the address 10.0.0.1")
	require.NoError(t, l.Close())
	_, err = bound(t, f, rdmacm.PS_TCP, "127.0.0.1:7471")
	assert.NoError(t, err, "the port is free again")
}

// TestSoftTwoDevices: IDs with different source addresses are on different devices.
func TestSoftTwoDevices(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	s.connect()
	for id, name := range map[*ID]string{s.client: "soft0", s.peer: "soft1"} {
		d, err := id.Device()
		require.NoError(t, err)
		assert.Equal(t, name, d.Name())
	}
	assert.Equal(t, s.local.Addr(), s.client.LocalAddr().Addr())
	assert.Equal(t, s.client.LocalAddr(), s.peer.PeerAddr())
	assert.Equal(t, s.remote, s.peer.LocalAddr())
	got, err := s.peer.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, s.peer.PostRecv(1, got.Bytes(), got))
	sent, err := s.client.RegMsgs([]byte("12345678"))
	require.NoError(t, err)
	require.NoError(t, s.client.PostSend(2, sent.Bytes(), sent, 0))
	wc, err := s.peer.GetRecvComp(timeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "12345678", string(got.Bytes()))
	for _, close := range []func() error{s.client.QP().Close, s.peer.QP().Close, got.Close, sent.Close} {
		require.NoError(t, close())
	}
}

// TestSoftAttributes: connection parameters are applied to the queue pair.
func TestSoftAttributes(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP,
		soft.Options{Virtual: true, Devices: []soft.DeviceOptions{{}, {MTU: ibv.MTU_1024}}})
	s.listen(1)
	id, err := s.activeChannel.CreateID(s.space)
	keep(t, id, err)
	require.NoError(t, id.SetToS(0x20))
	require.NoError(t, id.SetAckTimeout(9))
	require.NoError(t, id.ResolveAddr(timeout(t), s.local, s.remote, time.Second))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ADDR_RESOLVED)
	_, _, err = id.InitQPAttr(ibv.QPS_RTR)
	require.NoError(t, err, "as on Linux, even before the attributes are known")
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	path := id.C().Route.PathRec.Deref()
	assert.EqualValues(t, ibv.MTU_1024, path.MTU)
	assert.EqualValues(t, 8, path.PacketLifeTime)
	assert.EqualValues(t, 0x20, path.TrafficClass)
	s.withQP(id)
	require.NoError(t,
		id.Connect(timeout(t), &rdmacm.ConnParam{ResponderResources: 3, InitiatorDepth: 2, RetryCount: 5,
			RNRRetryCount: 6}, nil))
	_, _, err = id.InitQPAttr(ibv.QPS_RTR)
	assert.ErrorIs(t, err, syscall.EINVAL, "the peer has not answered")
	other := s.request()
	require.NoError(t,
		other.Accept(timeout(t), &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RNRRetryCount: 4}, nil))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	rtr, _, err := id.InitQPAttr(ibv.QPS_RTR)
	require.NoError(t, err)
	assert.Equal(t, ibv.MTU_1024, rtr.PathMTU)
	assert.Equal(t, other.QP().Num(), rtr.DestQPNum)
	assert.EqualValues(t, 0x20, rtr.AHAttr.GRH.TrafficClass)
	assert.EqualValues(t, 1, rtr.MaxDestRdAtomic)
	rts, mask, err := id.InitQPAttr(ibv.QPS_RTS)
	require.NoError(t, err)
	assert.Equal(t, ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC,
		mask)
	assert.EqualValues(t, 9, rts.Timeout)
	assert.EqualValues(t, 5, rts.RetryCnt)
	assert.EqualValues(t, 4, rts.RNRRetry, "the peer's value")
	theirs, _, err := other.InitQPAttr(ibv.QPS_RTR)
	require.NoError(t, err)
	assert.Equal(t, rts.SQPSN, theirs.RQPSN)
	init, _, err := other.InitQPAttr(ibv.QPS_INIT)
	require.NoError(t, err)
	assert.Equal(t, ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_ATOMIC|ibv.ACCESS_FLUSH_GLOBAL|
		ibv.ACCESS_FLUSH_PERSISTENT, init.QPAccessFlags)
}

// TestSoftNames checks the resolution of names.
func TestSoftNames(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for _, c := range []struct {
		node, service string
		hints         Hints
		source, to    string
	}{
		{"soft1", "7471", Hints{}, "", "127.0.0.2:7471"},
		{"localhost", "7471", Hints{}, "", "127.0.0.1:7471"},
		{"localhost", "7471", Hints{Family: afInet6}, "", "[::1]:7471"},
		{"", "7471", Hints{}, "", "127.0.0.1:7471"},
		{"", "7471", Hints{Flags: rdmacm.RAI_PASSIVE}, "0.0.0.0:7471", ""},
		{"", "7471", Hints{Flags: rdmacm.RAI_PASSIVE, Family: afInet6}, "[::]:7471", ""},
		{"10.0.0.1", "1", Hints{Source: netip.MustParseAddrPort("127.0.0.1:5")}, "127.0.0.1:5", "10.0.0.1:1"},
	} {
		a, err := GetAddrInfoOn(timeout(t), f, c.node, c.service, c.hints)
		require.NoError(t, err, "%+v", c)
		for name, got := range map[string]netip.AddrPort{c.source: a.Source(), c.to: a.Destination()} {
			if name == "" {
				assert.False(t, got.IsValid())
			} else {
				assert.Equal(t, name, got.String())
			}
		}
		assert.Nil(t, a.Next())
		a.Close()
	}
	for _, c := range []struct {
		node, service string
		hints         Hints
		says          string
	}{
		{"nobody.example", "1", Hints{}, "unknown name or service"},
		{"soft0", "1", Hints{Flags: rdmacm.RAI_NUMERICHOST}, "unknown name or service"},
		{"::1", "1", Hints{Family: afInet}, "unknown name or service"},
		{"soft0", "http", Hints{}, "unknown service"},
		{"soft0", "1", Hints{Family: 99}, "the address family is not supported"},
	} {
		_, err := GetAddrInfoOn(timeout(t), f, c.node, c.service, c.hints)
		assert.ErrorContains(t, err, c.says, "%+v", c)
	}
	assert.Empty(t, f.Resources())
}

// TestSoftEphemeralPorts: port 0 selects a free port, until none is left.
func TestSoftEphemeralPorts(t *testing.T) {
	f := newFabric(t, soft.Options{})
	seen := map[uint16]bool{}
	for range 300 {
		id, err := bound(t, f, rdmacm.PS_TCP, "127.0.0.1:0")
		require.NoError(t, err)
		port := id.LocalAddr().Port()
		assert.False(t, seen[port])
		seen[port] = true
		assert.True(t, port >= 32768 && port <= 60999)
	}
	if unsafe.Sizeof(uintptr(0)) == 4 {
		t.Log("a 32-bit machine lacks memory for an ID per port")
		return
	}
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	take := func() error {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		keep(t, id, err)
		return id.Bind(netip.MustParseAddrPort("127.0.0.2:0"))
	}
	const all = 60999 - 32768 + 1
	for n := len(seen); n < all; n++ {
		require.NoError(t, take(), n)
	}
	err = take()
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "no port is free")
	l := newSoftID(t, f, rdmacm.PS_TCP)
	assert.ErrorContains(t, l.Listen(1), "no port is free")
}

// TestAddressErrorReasons: Linux returns one errno for several reasons, which the error text distinguishes.
func TestAddressErrorReasons(t *testing.T) {
	id := new(ID) // of the native library
	for at, reason := range map[string]string{
		"0.0.0.0:0": "no port is free", "[::]:7471": "another ID uses the port at one of the addresses",
		"10.0.0.1:0":    "not an address of this machine, or no port is free",
		"10.0.0.1:7471": "not an address of this machine, or another ID uses the port at all addresses",
	} {
		assert.Equal(t, reason, id.noAddress(netip.MustParseAddrPort(at), syscall.EADDRNOTAVAIL), at)
	}
	assert.Contains(t, id.noAddress(netip.MustParseAddrPort("0.0.0.0:80"), syscall.EACCES), "CAP_NET_BIND_SERVICE")
}

// TestSoftNonlocalAddresses: addresses of other machines are rejected.
func TestSoftNonlocalAddresses(t *testing.T) {
	f := newFabric(t, soft.Options{})
	id := newSoftID(t, f, rdmacm.PS_UDP)
	assert.ErrorContains(t, id.Bind(netip.AddrPort{}), "the address is not valid")
	assert.ErrorContains(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.AddrPort{}, time.Second),
		"the peer's address is not valid")
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	assert.ErrorContains(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort("[fe80::1%nowhere]:1"),
		time.Second), `there is no network interface "nowhere"`)
	_, _, err := id.Join(timeout(t), netip.AddrPort{})
	assert.ErrorContains(t, err, "the group's address is not valid")
	assert.ErrorIs(t, err, syscall.EINVAL)
}

// TestSoftSourceInUse: an error about the source port names the port and its owner, as for Bind.
func TestSoftSourceInUse(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := bound(t, f, rdmacm.PS_TCP, "127.0.0.2:7471")
	require.NoError(t, err)
	require.NoError(t, l.Listen(1))
	source := netip.MustParseAddrPort("127.0.0.1:7000")
	owner := newIDOn(t, f)
	require.NoError(t, owner.Bind(source))
	const names = "source 127.0.0.1:7000: used by an ID that is bound to 127.0.0.1:7000 on soft0"
	id := newIDOn(t, f)
	err = id.ResolveAddr(timeout(t), source, netip.MustParseAddrPort("127.0.0.2:7471"), time.Second)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, names)
	err = newIDOn(t, f).ResolveAddr(timeout(t), netip.MustParseAddrPort("192.0.2.1:0"), l.LocalAddr(), time.Second)
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "source 192.0.2.1:0: not an address of this machine")

	list, err := GetAddrInfoOn(timeout(t), f, "127.0.0.2", "7471", Hints{Source: source})
	require.NoError(t, err)
	defer list.Close()
	_, err = CreateEP(timeout(t), list, nil, nil, rdma.QueueOptions{})
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "127.0.0.1:7000 is in use")
}
