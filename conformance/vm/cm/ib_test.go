// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

func gid(text string) (g ibv.GID) {
	*g.Raw() = netip.MustParseAddr(text).As16()
	return g
}

// TestIBOnRoCE checks how the kernel handles native InfiniBand addresses on an Ethernet link layer.
func TestIBOnRoCE(t *testing.T) {
	devices := keep(t, first(getDevices()), nil)
	gids, err := devices.Devices[0].GIDs()
	require.NoError(t, err)
	id := func(ps rdmacm.PortSpace) *cm.ID { return keep(t, first(createID(ps)), nil) }
	for _, ps := range []rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP, rdmacm.PS_IB} {
		localAddr := cm.NewIBAddr(gids[0].GID, ps, 7480)
		assert.ErrorIs(t, id(ps).BindIB(localAddr), syscall.ENODEV, "%v", ps)
		resolves := id(ps)
		err := resolves.ResolveIBAddr(withTimeout(t), nil, localAddr, time.Second)
		if testbed.Kernel(t) == testbed.Soft {
			assert.ErrorIs(t, err, syscall.ENODEV, "%v", ps)
		} else if assert.NoError(t, err, "%v: of the port that has the prefix", ps) {
			at, ok := resolves.LocalIBAddr()
			assert.True(t, ok)
			assert.Equal(t, localAddr.GID, at.GID)
			to, ok := resolves.PeerIBAddr()
			assert.True(t, ok)
			assert.Equal(t, localAddr, to)
			err := resolves.ResolveRoute(withTimeout(t), time.Second)
			assert.ErrorIs(t, err, syscall.ENODEV, "%v", ps)
			assert.ErrorContains(t, err, "need ports with link layer InfiniBand")
		}
		assert.ErrorIs(t, id(ps).ResolveIBAddr(withTimeout(t), &localAddr, localAddr, time.Second), syscall.ENODEV, "%v", ps)
	}
	_, err = dialer(on(stream.Config{})).DialIB(withTimeout(t), cm.NewIBAddr(gids[0].GID, rdmacm.PS_TCP, 7480))
	assert.ErrorIs(t, err, syscall.ENODEV)

	all := cm.NewIBAddr(ibv.GID{}, rdmacm.PS_TCP, 0)
	everywhere := id(rdmacm.PS_TCP)
	err = everywhere.BindIB(all)
	if testbed.Kernel(t) == testbed.Soft {
		assert.ErrorIs(t, err, syscall.ENODEV)
		return
	}
	require.NoError(t, err, "all ports of InfiniBand, which are none")
	at, ok := everywhere.LocalIBAddr()
	require.True(t, ok)
	assert.NotZero(t, at.Port(), "of the port space of TCP, where one was free")
	assert.EqualValues(t, 0x0106, at.ServiceID>>16)
	assert.Equal(t, ^uint64(0), at.ServiceMask)
	assert.False(t, everywhere.LocalAddr().IsValid())
	assert.NoError(t, everywhere.Listen(1))
	_, err = everywhere.Device()
	assert.Error(t, err, "the ID has no device")

	err = id(rdmacm.PS_TCP).BindIB(at)
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "the service ID is in use")
	err = id(rdmacm.PS_UDP).BindIB(all)
	assert.ErrorIs(t, err, syscall.EPROTONOSUPPORT)
	assert.ErrorContains(t, err, "not in a port space that the ID accepts")
	err = everywhere.BindIB(all)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "already bound")
	l, err := listenConfig(on(stream.Config{})).ListenIB(all)
	keep(t, l, err)
	assert.NotZero(t, l.Addr().(cm.IBAddr).Port())
}

func first[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// resolver stands in for ibacm(8): it responds to every request of librdmacm with one path, and records the requests.
type resolver struct {
	path rdmacm.IBVPathData

	mu     sync.Mutex
	asked  []endpointInfo
	failed error
}

// endpointInfo is struct acm_ep_addr_data.
type endpointInfo struct {
	flags uint32
	kind  uint16
	info  [64]byte
}

const (
	acmSocket = "/run/ibacm.sock"
	acmHeader = 16
	acmPath   = 0x10
)

func (r *resolver) serve(c net.Conn) {
	defer c.Close()
	for {
		header := make([]byte, acmHeader)
		if _, err := io.ReadFull(c, header); err != nil {
			return
		}
		body := make([]byte, int(binary.NativeEndian.Uint16(header[6:]))-acmHeader)
		_, err := io.ReadFull(c, body)
		r.mu.Lock()
		r.failed = err
		for ; len(body) >= 72; body = body[72:] {
			r.asked = append(r.asked,
				endpointInfo{binary.NativeEndian.Uint32(body), binary.NativeEndian.Uint16(body[4:]),
					[64]byte(body[8:])})
		}
		r.mu.Unlock()
		answer := binary.NativeEndian.AppendUint32(append([]byte(nil), header...), uint32(r.path.Flags))
		answer = binary.NativeEndian.AppendUint16(answer, acmPath)
		answer = append(answer, 0, 0)
		answer = append(answer, unsafe.Slice((*byte)(unsafe.Pointer(&r.path.Path)), unsafe.Sizeof(r.path.Path))...)
		answer[2] = 0
		binary.NativeEndian.PutUint16(answer[6:], uint16(len(answer)))
		c.Write(answer)
	}
}

// TestRouteOfHints checks that the route in the hints reaches the service that resolves routes for librdmacm, and that
// the reply is parsed: native addresses, the path, and the header before private data.
func TestRouteOfHints(t *testing.T) {
	inGuest(t, "librdmacm queries routes from the ibacm socket")
	if testbed.Native() {
		t.Skip("package native does not query routes")
	}
	if !alone(t) { // librdmacm looks for the socket only once
		return
	}
	require.NoError(t, os.MkdirAll("/run", 0o755))
	l, err := net.Listen("unix", acmSocket)
	keep(t, l, err)
	r := &resolver{path: rdmacm.IBVPathData{Flags: rdmacm.IBV_PATH_FLAG_GMP | rdmacm.IBV_PATH_FLAG_PRIMARY |
		rdmacm.IBV_PATH_FLAG_BIDIRECTIONAL}}
	r.path.Path.SGID, r.path.Path.DGID, r.path.Path.PKey = gid("fe80::a"), gid("fe80::b"), ibv.ToBE16(0xFFFF)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()

	wanted := rdmacm.IBVPathData{Flags: rdmacm.IBV_PATH_FLAG_GMP}
	wanted.Path.PKey, wanted.Path.SGID, wanted.Path.MTU = ibv.ToBE16(0x8001), gid("fe80::c"), 4
	at := address(t, 7481)
	from := netip.AddrPortFrom(at.Addr(), 0)
	info, err := getAddrInfo(withTimeout(t), at.Addr().String(), "7481",
		cm.Hints{Source: from, Route: []rdmacm.IBVPathData{wanted}})
	require.NoError(t, err)
	defer info.Close()
	r.mu.Lock()
	require.NoError(t, r.failed)
	require.Len(t, r.asked, 3, "from, to and by which path")
	asked := r.asked[2]
	r.mu.Unlock()
	assert.EqualValues(t, acmPath, asked.kind)
	assert.Equal(t, wanted.Path, *(*rdmacm.IBVPathRecord)(unsafe.Pointer(&asked.info)), "the hints' path")

	assert.EqualValues(t, rdmacm.AF_IB, info.C.AiFamily)
	assert.Equal(t, []rdmacm.IBVPathData{r.path}, info.Route())
	source, ok := info.SourceIB()
	assert.True(t, ok)
	assert.Equal(t, cm.NewIBAddr(gid("fe80::a"), rdmacm.PS_TCP, 0), source)
	to, ok := info.DestinationIB()
	assert.True(t, ok)
	assert.Equal(t, cm.NewIBAddr(gid("fe80::b"), rdmacm.PS_TCP, 7481), to)
	connect := info.Connect()
	require.Len(t, connect, 36)
	ip := at.Addr().As4()
	assert.Equal(t, ip[:], connect[16:20], "IPv4 address of the connecting side")
	assert.Equal(t, ip[:], connect[32:36])
	_, err = cm.CreateEP(withTimeout(t), info, nil, nil, rdma.QueueOptions{})
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorContains(t, err, "no InfiniBand device has a route to the address")

	byIP := info.Next()
	require.NotNil(t, byIP)
	assert.Equal(t, at, byIP.Destination())
	assert.Equal(t, info.Route(), byIP.Route())
	assert.Nil(t, byIP.Connect())
	assert.Nil(t, byIP.Next())

	r.mu.Lock()
	r.asked = nil
	r.mu.Unlock()
	local, peer := cm.NewIBAddr(gid("fe80::1"), rdmacm.PS_IB, 0), cm.NewIBAddr(gid("fe80::2"), rdmacm.PS_IB, 9)
	native, err := getAddrInfo(withTimeout(t), "", "", cm.Hints{PortSpace: rdmacm.PS_IB, SourceIB: &local, DestinationIB: &peer})
	require.NoError(t, err)
	defer native.Close()
	r.mu.Lock()
	require.Len(t, r.asked, 1)
	asked = r.asked[0]
	r.mu.Unlock()
	path := (*rdmacm.IBVPathRecord)(unsafe.Pointer(&asked.info))
	assert.Equal(t, []ibv.GID{local.GID, peer.GID}, []ibv.GID{path.SGID, path.DGID}, "the hints' addresses")
	again, ok := native.Next().DestinationIB()
	assert.True(t, ok)
	assert.Equal(t, peer, again)
}

// TestGIDOfHints checks that a GID as a name resolves to a native InfiniBand address.
func TestGIDOfHints(t *testing.T) {
	const native = rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST
	for flags, want := range map[rdmacm.AddrInfoFlags]cm.IBAddr{
		native:                      cm.NewIBAddr(gid("fe80::2"), rdmacm.PS_TCP, 7482),
		native | rdmacm.RAI_PASSIVE: cm.NewIBAddr(gid("fe80::2"), rdmacm.PS_TCP, 7482),
	} {
		info, err := getAddrInfo(withTimeout(t), "fe80::2", "7482",
			cm.Hints{Flags: flags, Family: rdmacm.AF_IB, Connect: []byte("unread")})
		require.NoError(t, err)
		get := info.DestinationIB
		if flags&rdmacm.RAI_PASSIVE != 0 {
			get = info.SourceIB
		}
		got, ok := get()
		assert.True(t, ok)
		assert.Equal(t, want, got)
		assert.Nil(t, info.Connect())
		_, err = cm.CreateEP(withTimeout(t), info, nil, nil, rdma.QueueOptions{})
		assert.ErrorIs(t, err, syscall.ENODEV)
		info.Close()
	}
}
