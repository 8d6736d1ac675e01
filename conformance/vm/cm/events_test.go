package cm

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// scene is an event channel for each side.
type scene struct {
	t      *testing.T
	ch     *cm.EventChannel // of who connects
	server *cm.EventChannel
}

func newScene(t *testing.T) *scene {
	t.Helper()
	rig.Kernel(t)
	a, err := cm.CreateEventChannel()
	keep(t, a, err)
	b, err := cm.CreateEventChannel()
	keep(t, b, err)
	return &scene{t, a, b}
}

func (s *scene) listen(ps rdmacm.PortSpace, at netip.AddrPort) *cm.ID {
	s.t.Helper()
	l, err := s.server.CreateID(ps)
	keep(s.t, l, err)
	require.NoError(s.t, l.Bind(at))
	require.NoError(s.t, l.Listen(8))
	return l
}

// resolved gives an ID whose route is known.
func (s *scene) resolved(ps rdmacm.PortSpace, to netip.AddrPort) *cm.ID {
	s.t.Helper()
	id, err := s.ch.CreateID(ps)
	keep(s.t, id, err)
	require.NoError(s.t, id.ResolveAddr(soon(s.t), netip.AddrPort{}, to, time.Second))
	e := expect(s.t, s.ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
	assert.Same(s.t, id, e.ID)
	require.NoError(s.t, id.ResolveRoute(soon(s.t), time.Second))
	expect(s.t, s.ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	return id
}

func withQP(t *testing.T, id *cm.ID) *cm.ID {
	t.Helper()
	attr := qpAttr
	if id.PortSpace() == rdmacm.PS_UDP {
		attr.QPType = ibv.QPT_UD
	}
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	return id
}

func TestEventsOfAConnection(t *testing.T) {
	s := newScene(t)
	at := address(t, 7480)
	l := s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	assert.Equal(t, at, id.PeerAddr())
	assert.Equal(t, at.Addr(), id.LocalAddr().Addr())
	param := cm.DefaultConnParam()
	param.RetryCount, param.ResponderResources, param.InitiatorDepth, param.FlowControl = 5, 3, 2, 1
	require.NoError(t, id.Connect(soon(t), &param, []byte("question")))
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
	assert.ErrorContains(t, err, "takes no work in INIT", "the state is what is wrong")
	mr, err := other.RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, other.PostRecv(1, mr.Bytes(), mr), "receives may be posted in INIT")
	require.NoError(t, other.Accept(soon(t), nil, []byte("answer")))
	assert.Equal(t, ibv.QPS_RTS, other.QP().State(), "before the event has come")
	require.NoError(t, other.PostSend(2, []byte("hi"), nil, ibv.SEND_INLINE))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, append([]byte("answer"), make([]byte, 190)...), e.PrivateData)
	assert.Equal(t, other.QP().Num(), e.Conn.QPNum)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, id.Disconnect(soon(t)))
	expect(t, s.server, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, other.Disconnect(soon(t)))
	expect(t, s.ch, rdmacm.CM_EVENT_DISCONNECTED)
	expect(t, s.ch, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
	require.NoError(t, other.QP().Close())
	require.NoError(t, mr.Close())
}

func TestEventsOfARejection(t *testing.T) {
	s := newScene(t)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7481)))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	e := expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 8, e.Status, "nobody listens")
	s.listen(rdmacm.PS_TCP, address(t, 7482))
	id = withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7482)))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	e = expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, e.ID.Reject([]byte("no")))
	require.NoError(t, e.ID.Close())
	e = expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 28, e.Status)
	assert.Equal(t, append([]byte("no"), make([]byte, 146)...), e.PrivateData)
	id = withQP(t, s.resolved(rdmacm.PS_TCP, address(t, 7482)))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	e = expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, e.ID.Close(), "which rejects it")
	expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
}

// TestEventsWithoutAQueuePair connects a queue pair that the ID does not know.
func TestEventsWithoutAQueuePair(t *testing.T) {
	s := newScene(t)
	at := address(t, 7483)
	s.listen(rdmacm.PS_TCP, at)
	id := s.resolved(rdmacm.PS_TCP, at)
	assert.ErrorContains(t, id.Connect(soon(t), nil, nil), "number of one")
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
	require.NoError(t, id.Connect(soon(t), &param, nil))
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(soon(t), nil, nil))
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

func TestEventOfAQueuePairThatIsBroken(t *testing.T) {
	s := newScene(t)
	at := address(t, 7484)
	s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.QP().Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(soon(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_CONNECT_ERROR)
}

// TestEventUnreachable: nobody has an address of the network; the request is given up when its neighbour's Ethernet address changes.
func TestEventUnreachable(t *testing.T) {
	s := newScene(t)
	nobody := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.99"), 1)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, nobody))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	link, err := netlink.LinkByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	neighbour := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: nobody.Addr().AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	require.NoError(t, netlink.NeighSet(neighbour))
	defer netlink.NeighDel(neighbour)
	e := expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE)
	assert.Negative(t, e.Status)
}

func TestEventsOfDatagrams(t *testing.T) {
	s := newScene(t)
	at := address(t, 7485)
	id := withQP(t, s.resolved(rdmacm.PS_UDP, at))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE) // nobody listens
	s.listen(rdmacm.PS_UDP, at)
	id = withQP(t, s.resolved(rdmacm.PS_UDP, at))
	require.NoError(t, id.Connect(soon(t), nil, []byte("where are you")))
	e := expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, append([]byte("where are you"), make([]byte, 167)...), e.PrivateData)
	other := withQP(t, keep(t, e.ID, nil))
	mr, err := other.RegMsgs(make([]byte, 128))
	require.NoError(t, err)
	require.NoError(t, other.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, other.Accept(soon(t), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, other.QP().Num(), e.UD.QPNum)
	assert.EqualValues(t, rdmacm.UDP_QKEY, e.UD.QKey)
	pd, err := id.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	keep(t, ah, err)
	require.NoError(t, id.PostUDSend(2, []byte("datagram"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	wc, err := other.GetRecvComp(soon(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	const grh = 40
	assert.Equal(t, "datagram", string(mr.Bytes()[grh:wc.ByteLen]))
	require.NoError(t, other.QP().Close())
	require.NoError(t, mr.Close())
}

func TestEventsOfMulticast(t *testing.T) {
	s := newScene(t)
	group := netip.MustParseAddrPort("239.7.7.7:0")
	join := func() (*cm.ID, cm.Event) {
		id, err := s.ch.CreateID(rdmacm.PS_UDP)
		keep(t, id, err)
		require.NoError(t, id.Bind(address(t, 0)))
		withQP(t, id)
		number, _, err := id.Join(soon(t), group)
		require.NoError(t, err)
		e, err := s.ch.Event(soon(t))
		require.NoError(t, err)
		assert.Same(t, id, e.ID)
		assert.Equal(t, number, e.Group)
		return id, e
	}
	a, e := join()
	require.Equal(t, rdmacm.CM_EVENT_MULTICAST_JOIN, e.Type)
	b, _ := join()
	mr, err := b.RegMsgs(make([]byte, 128))
	require.NoError(t, err)
	require.NoError(t, b.PostRecv(1, mr.Bytes(), mr))
	pd, err := a.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	keep(t, ah, err)
	require.NoError(t, a.PostUDSend(2, []byte("to all"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	wc, err := b.GetRecvComp(soon(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "to all", string(mr.Bytes()[40:wc.ByteLen]))
	require.NoError(t, b.Leave(group))
	assert.ErrorIs(t, b.Leave(group), syscall.EADDRNOTAVAIL)
	_, _, err = b.JoinEx(soon(t), group, rdmacm.MC_JOIN_FLAG_FULLMEMBER)
	require.NoError(t, err)
	expect(t, s.ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	d, err := a.Device()
	require.NoError(t, err)
	attr, err := d.Query()
	require.NoError(t, err)
	for range attr.MaxMcastQPAttach {
		if _, e = join(); e.Type != rdmacm.CM_EVENT_MULTICAST_JOIN {
			break
		}
	}
	assert.Equal(t, rdmacm.CM_EVENT_MULTICAST_ERROR, e.Type, "more queue pairs than the device attaches to a group")
	assert.ErrorContains(t, b.QP().Close(), "a multicast group has it")
	require.NoError(t, b.Leave(group))
	require.NoError(t, b.QP().Close())
	require.NoError(t, mr.Close())
}

func TestEventAddressError(t *testing.T) {
	s := newScene(t)
	rig.Open(t).Spare()
	link, err := netlink.LinkByName("rdma1") // the spare device's
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetARPOn(link)) // so that somebody would have to answer
	id, err := s.ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(soon(t), netip.AddrPort{}, netip.MustParseAddrPort("10.78.0.99:1"), 300*time.Millisecond))
	e := expect(t, s.ch, rdmacm.CM_EVENT_ADDR_ERROR)
	assert.Negative(t, e.Status)
	sync, err := cm.CreateID(rdmacm.PS_TCP)
	keep(t, sync, err)
	err = sync.ResolveAddr(soon(t), netip.AddrPort{}, netip.MustParseAddrPort("10.78.0.99:1"), 300*time.Millisecond)
	var failed *cm.EventError
	require.ErrorAs(t, err, &failed)
	t.Log(err)
}

func TestEventDeviceRemoval(t *testing.T) {
	s := newScene(t)
	spare := rig.Open(t).Spare()
	ip, _ := netip.AddrFromSlice(spare.Address)
	at := netip.AddrPortFrom(ip.Unmap(), 7486)
	l := s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	other := withQP(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID)
	require.NoError(t, other.Accept(soon(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	var removed sync.WaitGroup
	removed.Go(func() { assert.NoError(t, spare.Remove()) }) // waits until all is closed
	left := map[*cm.ID]bool{l: true, id: true, other: true}
	for len(left) > 0 {
		ch := s.server
		if left[id] {
			ch = s.ch
		}
		e, err := ch.Event(soon(t))
		require.NoError(t, err)
		if e.Type == rdmacm.CM_EVENT_DISCONNECTED || e.Type == rdmacm.CM_EVENT_TIMEWAIT_EXIT {
			continue // its peer was closed first
		}
		require.Equal(t, rdmacm.CM_EVENT_DEVICE_REMOVAL, e.Type)
		delete(left, e.ID)
		assert.NoError(t, e.ID.Close())
	}
	list, err := cm.GetDevices() // has librdmacm look, and close what is gone
	require.NoError(t, err)
	require.NoError(t, list.Close())
	removed.Wait()
}

// TestOptions: each option is taken, and means what it says where that can be seen here.
func TestOptions(t *testing.T) {
	at := address(t, 7487)
	for _, reuse := range []bool{false, true} {
		a, err := cm.CreateID(rdmacm.PS_TCP)
		keep(t, a, err)
		b, err := cm.CreateID(rdmacm.PS_TCP)
		keep(t, b, err)
		require.NoError(t, a.SetReuseAddr(reuse))
		require.NoError(t, b.SetReuseAddr(reuse))
		require.NoError(t, a.Bind(at))
		if err := b.Bind(at); reuse {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, syscall.EADDRINUSE)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	id, err := cm.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	assert.NoError(t, id.SetToS(0x20))
	assert.NoError(t, id.SetAFOnly(true))
	assert.NoError(t, id.SetAckTimeout(16))
	assert.Error(t, id.SetAckTimeout(32))
	assert.ErrorContains(t, id.Bind(netip.MustParseAddrPort("10.99.0.1:1")), "no address of this machine")
	require.NoError(t, id.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 7488)))
	_, err = id.Device()
	assert.ErrorContains(t, err, "no device yet", "an ID of all devices")
	v4, err := cm.CreateID(rdmacm.PS_TCP)
	keep(t, v4, err)
	assert.NoError(t, v4.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 7488)), "IPv6 alone leaves IPv4 free")
	assert.ErrorContains(t, v4.Connect(soon(t), nil, make([]byte, 8)), "not resolved")
	assert.ErrorContains(t, resolve(t, at).Connect(soon(t), nil, make([]byte, 57)), "56 at most")
}

// TestMigrate: a connection's events arrive where its ID was moved to.
func TestMigrate(t *testing.T) {
	s := newScene(t)
	at := address(t, 7489)
	s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.Migrate(nil))
	assert.True(t, id.Synchronous())
	connected := make(chan error, 1)
	go func() { connected <- id.Connect(soon(t), nil, nil) }()
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(soon(t), nil, nil))
	require.NoError(t, <-connected)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	third, err := cm.CreateEventChannel()
	keep(t, third, err)
	require.NoError(t, id.Migrate(third))
	require.NoError(t, other.Disconnect(soon(t)))
	expect(t, third, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, id.Migrate(s.ch))
}

// TestSharedReceiveQueue: an ID's shared receive queue is that of its queue pair.
func TestSharedReceiveQueue(t *testing.T) {
	l := listen(t, 7490)
	served := make(chan bool)
	go func() {
		defer close(served)
		id, _, err := l.GetRequest(soon(t))
		if !assert.NoError(t, err) {
			return
		}
		defer id.Close()
		_, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
		assert.NoError(t, err)
		assert.NoError(t, id.Accept(soon(t), nil, nil))
		assert.NoError(t, id.PostSend(1, []byte("shared"), nil, ibv.SEND_INLINE))
		_, err = id.GetSendComp(soon(t))
		assert.NoError(t, err)
		_, err = id.Event(soon(t))
		assert.NoError(t, err)
	}()
	id, err := cm.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(soon(t), netip.AddrPort{}, address(t, 7490), time.Second))
	require.NoError(t, id.ResolveRoute(soon(t), time.Second))
	srq, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	qp, err := id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, srq, qp.SRQ())
	mr, err := id.RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, id.PostRecv(9, mr.Bytes(), mr))
	require.NoError(t, id.Connect(soon(t), nil, nil))
	wc, err := id.GetRecvComp(soon(t))
	require.NoError(t, err)
	assert.EqualValues(t, 9, wc.WRID)
	assert.Equal(t, "shared", string(mr.Bytes()[:wc.ByteLen]))
	require.NoError(t, mr.Close())
	require.NoError(t, id.Close())
	<-served
}

// TestTheLastIDKeepsItsDevice: what was made from the device of IDs has to be closed before the last of them.
func TestTheLastIDKeepsItsDevice(t *testing.T) {
	var ids [2]*cm.ID
	at := address(t, 0)
	for i := range ids {
		id, err := cm.CreateID(rdmacm.PS_TCP)
		ids[i] = keep(t, id, err)
		require.NoError(t, id.Bind(at))
		_, err = id.PD()
		require.NoError(t, err)
	}
	mr, err := ids[0].RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, ids[0].Close())
	err = ids[1].Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "MR ")
	require.NoError(t, mr.Close())
	require.NoError(t, ids[1].Close())
}

func TestDevices(t *testing.T) {
	rig.Kernel(t)
	l, err := cm.GetDevices()
	require.NoError(t, err)
	require.Len(t, l.Devices, 1)
	assert.Equal(t, os.Getenv(wire.EnvDevice), l.Devices[0].Name())
	_, err = l.Devices[0].Query()
	assert.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}
