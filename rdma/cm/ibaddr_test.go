// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"net"
	"net/netip"
	goruntime "runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// gid parses a GID in the notation of IPv6 addresses.
func gid(text string) (g ibv.GID) {
	*g.Raw() = netip.MustParseAddr(text).As16()
	return g
}

func drawIBAddr(t *rapid.T) IBAddr {
	a := IBAddr{
		PKey: rapid.Uint16().Draw(t, "pkey"), FlowInfo: rapid.Uint32().Draw(t, "flowinfo"),
		ServiceID:   rapid.Uint64().Draw(t, "service"),
		ServiceMask: rapid.Uint64().Draw(t, "mask"), ScopeID: rapid.Uint64().Draw(t, "scope"),
	}
	copy(a.GID.Raw()[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
	return a
}

// TestIBAddrSurvivesC: an AF_IB address has the layout of ib.h in C's memory, and is read back unchanged.
func TestIBAddrSurvivesC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawIBAddr(t)
		s := want.sockaddr()
		got, ok := ibAddr(header(s))
		assert.True(t, ok)
		assert.Equal(t, want, got)
		assert.False(t, addrPort(header(s)).IsValid(), "it is not an IP address")
		c := unsafe.Slice((*byte)(unsafe.Pointer(s)), sockaddrLen(s))
		assert.EqualValues(t, 27, binary.NativeEndian.Uint16(c))
		assert.Equal(t, want.PKey, binary.BigEndian.Uint16(c[2:]))
		assert.Equal(t, want.FlowInfo, binary.BigEndian.Uint32(c[4:]))
		assert.Equal(t, want.GID.Raw()[:], c[8:24])
		assert.Equal(t, want.ServiceID, binary.BigEndian.Uint64(c[24:]))
		assert.Equal(t, want.ServiceMask, binary.BigEndian.Uint64(c[32:]))
		assert.Equal(t, want.ScopeID, binary.NativeEndian.Uint64(c[40:]))
		assert.EqualValues(t, 48, sockaddrLen(s))
	})
	for _, s := range []*rdmacm.Sockaddr{nil, header(sockaddr(netip.MustParseAddrPort("127.0.0.1:1")))} {
		_, ok := ibAddr(s)
		assert.False(t, ok)
	}
}

// TestNewIBAddr compares service IDs with those of rdma_getaddrinfo.
func TestNewIBAddr(t *testing.T) {
	a := NewIBAddr(gid("fe80::1"), rdmacm.PS_TCP, 7471)
	assert.Equal(t, IBAddr{GID: gid("fe80::1"), PKey: 0xFFFF, ServiceID: 0x01061D2F, ServiceMask: 0xFFFFFFFFFFFFFFFF},
		a)
	assert.EqualValues(t, 7471, a.Port())
	assert.Equal(t, "ib[fe80::1]:0x1061d2f pkey 0xffff", net.Addr(a).String())
	assert.Equal(t, IBAddr{PKey: 0xFFFF, ServiceID: 0x013F0000, ServiceMask: 0xFFFFFFFFFFFF0000},
		NewIBAddr(ibv.GID{}, rdmacm.PS_IB, 0))
}

// TestSoftHasNoIB: the software devices are RoCE and reject AF_IB addresses. A rejection leaves the ID unchanged.
func TestSoftHasNoIB(t *testing.T) {
	f := newFabric(t, soft.Options{})
	local, peer := NewIBAddr(gid("fe80::1"), rdmacm.PS_TCP, 7471), NewIBAddr(gid("fe80::2"), rdmacm.PS_TCP, 7471)
	zeros := NewIBAddr(ibv.GID{}, rdmacm.PS_TCP, 0)
	id := newSoftID(t, f, rdmacm.PS_TCP)
	for name, err := range map[string]error{
		"rdma_bind_addr: ID ib[fe80::1]:0x1061d2f pkey 0xffff: no port with link layer InfiniBand": id.BindIB(local),
		"rdma_bind_addr: ID ib[::]:0x1060000 pkey 0xffff: no port with link layer InfiniBand":      id.BindIB(zeros),
		"no active port in the partition and subnet of ib[fe80::2]": id.ResolveIBAddr(timeout(t), &local, peer,
			time.Second),
	} {
		assert.ErrorIs(t, err, syscall.ENODEV)
		assert.ErrorContains(t, err, name)
	}
	_, passiveChannel := id.LocalIBAddr()
	assert.False(t, passiveChannel)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	assert.ErrorContains(t, id.BindIB(local), "already bound")
	assert.ErrorIs(t, id.ResolveIBAddr(timeout(t), nil, peer, time.Second), syscall.EINVAL)
	_, passiveChannel = id.PeerIBAddr()
	assert.False(t, passiveChannel)

	datagrams, err := bound(t, f, rdmacm.PS_UDP, "127.0.0.1:0")
	require.NoError(t, err)
	group := NewIBAddr(gid("ff12:401b::1"), rdmacm.PS_UDP, 0)
	_, _, err = datagrams.JoinIB(timeout(t), group)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, _, err = datagrams.JoinIBEx(timeout(t), group, rdmacm.MC_JOIN_FLAG_FULLMEMBER)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.Error(t, datagrams.LeaveIB(group))
}

// TestHintsStayValid: memory that hints point to stays valid after a garbage collection and after the caller changes
// its own.
func TestHintsStayValid(t *testing.T) {
	from, to := NewIBAddr(gid("fe80::1"), rdmacm.PS_IB, 5), NewIBAddr(gid("fe80::2"), rdmacm.PS_IB, 6)
	route := []rdmacm.IBVPathData{{Flags: rdmacm.IBV_PATH_FLAG_GMP}, {Flags: rdmacm.IBV_PATH_FLAG_PRIMARY}}
	route[0].Path.DGID, route[1].Path.PKey = gid("fe80::3"), 7
	h := Hints{
		Flags: rdmacm.RAI_NOROUTE, Family: rdmacm.AF_IB, QPType: ibv.QPT_UD, PortSpace: rdmacm.PS_IB, SourceIB: &from,
		DestinationIB: &to, Route: route,
		Connect: []byte("private data"),
	}
	hints := h.c()
	copies := []IBAddr{from, to}
	wanted := append([]rdmacm.IBVPathData(nil), route...)
	from, to, route[0], route[1] = IBAddr{}, IBAddr{}, rdmacm.IBVPathData{}, rdmacm.IBVPathData{}
	copy(h.Connect, "something!")
	for range 3 {
		goruntime.GC()
	}
	c := &hints.AddrInfo
	assert.Equal(t, []int32{int32(rdmacm.RAI_NOROUTE), rdmacm.AF_IB, int32(ibv.QPT_UD), int32(rdmacm.PS_IB)},
		[]int32{int32(c.AiFlags), c.AiFamily, int32(c.AiQPType), int32(c.AiPortSpace)})
	for i, at := range []ibv.Ptr[rdmacm.Sockaddr]{c.AiSrcAddr, c.AiDstAddr} {
		got, ok := ibAddr(at.Deref())
		assert.True(t, ok)
		assert.Equal(t, copies[i], got)
	}
	assert.Equal(t, []uint32{48, 48}, []uint32{c.AiSrcLen, c.AiDstLen})
	assert.EqualValues(t, 2*72, c.AiRouteLen)
	assert.Equal(t, wanted, unsafe.Slice(ibv.Ptr[rdmacm.IBVPathData](c.AiRoute).Deref(), 2))
	assert.Equal(t, "private data", string(copyBytes(c.AiConnect, uint8(c.AiConnectLen))))
	goruntime.KeepAlive(hints)
}

// TestSoftHintsOfIB: AF_IB addresses in hints are returned but unreachable. Routes in hints are accepted and ignored.
func TestSoftHintsOfIB(t *testing.T) {
	f := newFabric(t, soft.Options{})
	const native = rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST
	local, peer := NewIBAddr(gid("fe80::1"), rdmacm.PS_TCP, 7), NewIBAddr(gid("fe80::2"), rdmacm.PS_TCP, 7471)
	for name, c := range map[string]struct {
		node, service string
		hints         Hints
		source, to    *IBAddr
	}{
		"a GID": {"fe80::2", "7471",
			Hints{Flags: native, Family: rdmacm.AF_IB, Route: make([]rdmacm.IBVPathData, 1), Connect: []byte("hello")},
			nil, &peer},
		"a GID to listen at": {"fe80::1", "7", Hints{Flags: native | rdmacm.RAI_PASSIVE, Family: rdmacm.AF_IB}, &local,
			nil},
		"addresses only": {"", "", Hints{SourceIB: &local, DestinationIB: &peer}, &local, &peer},
		"a source and a GID": {"fe80::2", "7471", Hints{Flags: native, Family: rdmacm.AF_IB, SourceIB: &local}, &local,
			&peer},
		"a source to start at": {"", "", Hints{Flags: rdmacm.RAI_PASSIVE, Family: rdmacm.AF_IB, SourceIB: &local}, &local,
			nil},
	} {
		info, err := GetAddrInfoOn(timeout(t), f, c.node, c.service, c.hints)
		require.NoError(t, err, name)
		for _, end := range []struct {
			want *IBAddr
			got  func() (IBAddr, bool)
		}{{c.source, info.SourceIB}, {c.to, info.DestinationIB}} {
			got, ok := end.got()
			assert.Equal(t, end.want != nil, ok, name)
			if ok {
				assert.Equal(t, *end.want, got, name)
			}
		}
		assert.EqualValues(t, rdmacm.AF_IB, info.C.AiFamily, name)
		assert.False(t, info.Source().IsValid() || info.Destination().IsValid(), name)
		assert.Nil(t, info.Route(), name)
		assert.Nil(t, info.Connect(), name)
		_, err = CreateEP(timeout(t), info, nil, nil, rdma.QueueOptions{})
		assert.ErrorIs(t, err, syscall.ENODEV, name)
		assert.ErrorContains(t, err, "no InfiniBand device has a route to the address", name)
		info.Close()
		_, ok := info.SourceIB()
		assert.False(t, ok, "the list is closed")
		_, ok = info.DestinationIB()
		assert.False(t, ok)
		assert.Nil(t, info.Route())
		assert.Nil(t, info.Connect())
	}
	info, err := GetAddrInfoOn(timeout(t), f, "127.0.0.1", "1", Hints{Family: rdmacm.AF_IB})
	require.NoError(t, err, "without the flags, the family does not apply to names")
	assert.Equal(t, "127.0.0.1:1", info.Destination().String())
	info.Close()
	ip := netip.MustParseAddrPort("127.0.0.1:1")
	for expected, c := range map[string]struct {
		node  string
		hints Hints
	}{
		`the node must be a GID, written like an IPv6 address, not "127.0.0.1"`: {"127.0.0.1",
			Hints{Flags: native, Family: rdmacm.AF_IB}},
		`not ""`:                           {"", Hints{Flags: native, Family: rdmacm.AF_IB}},
		"not both":                         {"", Hints{Source: ip, SourceIB: &local}},
		"or an AF_IB address":              {"", Hints{Destination: ip, DestinationIB: &local}},
		`there is no network interface "x`: {"", Hints{Destination: netip.MustParseAddrPort("[fe80::1%xyz0]:1")}},
	} {
		_, err := GetAddrInfoOn(timeout(t), f, c.node, "7", c.hints)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, expected)
		assert.ErrorContains(t, newSoftID(t, f, rdmacm.PS_TCP).ResolveAddrInfo(timeout(t), c.node, "7", c.hints), expected)
	}
}

// TestResultOfC: the memory that a result points to is copied from C.
func TestResultOfC(t *testing.T) {
	route := []rdmacm.IBVPathData{{Flags: 1}, {Flags: 2}}
	connect, name := []byte("prefix"), []byte("here.example\x00")
	c := &rdmacm.AddrInfo{
		AiRoute: uintptr(unsafe.Pointer(&route[0])), AiRouteLen: 2 * 72,
		AiConnect: uintptr(unsafe.Pointer(&connect[0])), AiConnectLen: uint64(len(connect)),
		AiDstCanonname: ibv.PtrTo(&name[0]),
	}
	info := &AddrInfo{C: c, list: &addrList{c: c}}
	got, sent := info.Route(), info.Connect()
	assert.Equal(t, route, got)
	assert.Equal(t, connect, sent)
	got[0].Flags, sent[0] = 9, 'x'
	assert.EqualValues(t, 1, route[0].Flags)
	assert.Equal(t, "prefix", string(connect))
	source, destination := info.CanonicalNames()
	assert.Empty(t, source)
	assert.Equal(t, "here.example", destination)
	info.list.closed = true
	source, destination = info.CanonicalNames()
	assert.Empty(t, source+destination)
	goruntime.KeepAlive(name)
}

// TestSoftPreface: data that C puts before private data reduces its maximum size.
func TestSoftPreface(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	id := s.resolved()
	id.preface = 36
	err := id.Connect(timeout(t), nil, make([]byte, 21))
	assert.ErrorContains(t, err, "21 bytes of private data exceed the maximum of this service (connected), 20")
	assert.ErrorIs(t, err, syscall.EINVAL)
}
