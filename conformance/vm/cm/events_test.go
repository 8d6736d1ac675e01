// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

func TestConnectionEvents(t *testing.T) {
	s := newScene(t)
	at := address(t, 7480)
	l := s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	assert.Equal(t, at, id.PeerAddr())
	assert.Equal(t, at.Addr(), id.LocalAddr().Addr())
	param := cm.DefaultConnParam()
	param.RetryCount, param.ResponderResources, param.InitiatorDepth, param.FlowControl = 5, 3, 2, 1
	require.NoError(t, id.Connect(withTimeout(t), &param, []byte("question")))
	e := expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Same(t, l, e.Listener)
	assert.Equal(t, append([]byte("question"), make([]byte, 48)...), e.PrivateData)
	assert.EqualValues(t, 5, e.Conn.RetryCount)
	assert.EqualValues(t, 2, e.Conn.ResponderResources, "the peer's initiator depth")
	assert.EqualValues(t, 3, e.Conn.InitiatorDepth)
	assert.EqualValues(t, 1, e.Conn.FlowControl)
	assert.Equal(t, id.QP().Num(), e.Conn.QPNum)
	other := withQP(t, keep(t, e.ID, nil))
	assert.Equal(t, id.LocalAddr(), other.PeerAddr())
	err := other.PostSend(1, []byte("too soon"), nil, ibv.SEND_INLINE)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "accepts no requests in INIT", "wrong state")
	mr, err := other.RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, other.PostRecv(1, mr.Bytes(), mr), "receives may be posted in INIT")
	require.NoError(t, other.Accept(withTimeout(t), nil, []byte("answer")))
	assert.Equal(t, ibv.QPS_RTS, other.QP().State(), "before the event arrives")
	require.NoError(t, other.PostSend(2, []byte("hi"), nil, ibv.SEND_INLINE))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, append([]byte("answer"), make([]byte, 190)...), e.PrivateData)
	assert.Equal(t, other.QP().Num(), e.Conn.QPNum)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, id.Disconnect(withTimeout(t)))
	expect(t, s.server, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, other.Disconnect(withTimeout(t)))
	expect(t, s.ch, rdmacm.CM_EVENT_DISCONNECTED)
	expect(t, s.ch, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
	require.NoError(t, other.QP().Close())
	require.NoError(t, mr.Close())
}

func TestRejectionEvents(t *testing.T) {
	s := newScene(t)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7481)))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e := expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 8, e.Status, "no listener")
	assert.Equal(t, ibv.QPS_ERR, id.QP().State())
	s.listen(rdmacm.PS_TCP, address(t, 7482))
	id = withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7482)))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e = expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, e.ID.Reject([]byte("no")))
	require.NoError(t, e.ID.Close())
	e = expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 28, e.Status)
	assert.Equal(t, append([]byte("no"), make([]byte, 146)...), e.PrivateData)
	id = withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7482)))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e = expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, e.ID.Close(), "which rejects it")
	expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
}

// TestEventsWithoutQueuePair connects a queue pair that the ID does not own.
func TestEventsWithoutQueuePair(t *testing.T) {
	s := newScene(t)
	at := address(t, 7483)
	s.listen(rdmacm.PS_TCP, at)
	id := s.resolved(rdmacm.PS_TCP, at)
	assert.ErrorContains(t, id.Connect(withTimeout(t), nil, nil), "no queue pair")
	d, err := id.Device()
	require.NoError(t, err)
	pd, err := id.PD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(64, nil, 0)
	keep(t, cq, err)
	attr := qpAttr
	attr.SendCQ, attr.RecvCQ = cq.Ptr(), cq.Ptr()
	qp, err := pd.CreateQP(&attr, rdma.QueueOptions{})
	keep(t, qp, err)
	param := cm.DefaultConnParam()
	param.QPNum = qp.Num()
	require.NoError(t, id.Connect(withTimeout(t), &param, nil))
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	for _, state := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		attr, mask, err := id.InitQPAttr(state)
		require.NoError(t, err)
		require.NoError(t, qp.Modify(attr, mask))
	}
	require.NoError(t, id.Establish())
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	_, err = id.RemoteECE()
	assert.NoError(t, err)
}

func TestEventOfBrokenQueuePair(t *testing.T) {
	s := newScene(t)
	at := address(t, 7484)
	s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.QP().Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_CONNECT_ERROR)
}

// TestEventUnreachable connects to an unused address. The request fails when the Ethernet address of the neighbor
// changes.
func TestEventUnreachable(t *testing.T) {
	if testbed.Kernel(t) == testbed.Soft {
		unreachableOnSoft(t)
		return
	}
	s := newScene(t)
	unused := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.99"), 1)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, unused))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	link, err := netlink.LinkByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	neighbour := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: unused.Addr().AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	require.NoError(t, netlink.NeighSet(neighbour))
	defer netlink.NeighDel(neighbour)
	e := expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE)
	assert.Negative(t, e.Status)
}

// unreachableOnSoft sets the peer's link down after its address was resolved. It checks that all retries end.
func unreachableOnSoft(t *testing.T) {
	f, err := soft.New(soft.Options{CMResponse: 5 * time.Millisecond})
	keep(t, f, err)
	s := newSceneOn(t, f)
	for _, ps := range []rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP} {
		id, err := s.ch.CreateID(ps)
		keep(t, id, err)
		at := netip.MustParseAddrPort("127.0.0.2:7484")
		require.NoError(t, id.ResolveAddr(withTimeout(t), netip.MustParseAddrPort("127.0.0.1:0"), at, time.Second))
		expect(t, s.ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
		require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
		expect(t, s.ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
		withQP(t, id)
		f.SetLink("soft1", false)
		start := f.Now()
		require.NoError(t, id.Connect(withTimeout(t), nil, nil))
		e := expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE)
		assert.Negative(t, e.Status)
		assert.GreaterOrEqual(t, f.Now()-start, 16*5*time.Millisecond, "sixteen attempts")
		f.SetLink("soft1", true)
	}
}

func TestEventAddressError(t *testing.T) {
	s := newScene(t)
	if testbed.Kernel(t) != testbed.Soft {
		testbed.Open(t).Spare()
		link, err := netlink.LinkByName("rdma1") // link of the spare device
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetARPOn(link)) // so that address resolution needs a reply
	}
	id, err := s.ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, netip.MustParseAddrPort("10.78.0.99:1"),
		300*time.Millisecond))
	e := expect(t, s.ch, rdmacm.CM_EVENT_ADDR_ERROR)
	assert.Negative(t, e.Status)
	sync, err := createID(rdmacm.PS_TCP)
	keep(t, sync, err)
	err = sync.ResolveAddr(withTimeout(t), netip.AddrPort{}, netip.MustParseAddrPort("10.78.0.99:1"), 300*time.Millisecond)
	var failed *cm.EventError
	require.ErrorAs(t, err, &failed)
	t.Log(err)
}

func TestEventDeviceRemoval(t *testing.T) {
	if !alone(t) {
		return
	}
	s := newScene(t)
	spare := testbed.Open(t).Spare()
	ip, _ := netip.AddrFromSlice(spare.Address)
	at := netip.AddrPortFrom(ip.Unmap(), 7486)
	l := s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	other := withQP(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID)
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	go spare.Remove() // Remove waits until everything is closed
	left := map[*cm.ID]bool{l: true, id: true, other: true}
	for len(left) > 0 {
		ch := s.server
		if left[id] {
			ch = s.ch
		}
		e, err := ch.Event(withTimeout(t))
		require.NoError(t, err)
		if e.Type == rdmacm.CM_EVENT_DISCONNECTED || e.Type == rdmacm.CM_EVENT_TIMEWAIT_EXIT {
			continue // its peer was closed first
		}
		require.Equal(t, rdmacm.CM_EVENT_DEVICE_REMOVAL, e.Type)
		delete(left, e.ID)
		assert.NoError(t, e.ID.Close())
	}
	removeDevice(t, spare.Remove) // once
}
