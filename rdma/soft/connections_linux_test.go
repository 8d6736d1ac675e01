// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"io"
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
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// twoFabrics is two fabrics, each with a device with a wire and an event channel. The first connects, the second
// listens.
type twoFabrics struct {
	t                             *testing.T
	fabrics                       [2]*soft.Fabric
	activeChannel, passiveChannel *cm.EventChannel
	at                            netip.AddrPort // address of the listener
	listener                      *cm.ID
}

func newTwoFabrics(t *testing.T, space rdmacm.PortSpace, response time.Duration) *twoFabrics {
	t.Helper()
	a := &twoFabrics{t: t, at: netip.MustParseAddrPort("127.0.1.2:7471")}
	for i, address := range []string{"127.0.1.1", "127.0.1.2"} {
		f, err := soft.New(soft.Options{CMResponse: response,
			Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(address), Wire: true}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		ch, err := cm.CreateEventChannelOn(f)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, ch.Close()) })
		a.fabrics[i] = f
		a.activeChannel, a.passiveChannel = a.passiveChannel, ch
	}
	l, err := a.passiveChannel.CreateID(space)
	require.NoError(t, err)
	a.listener = a.keep(l)
	require.NoError(t, l.Bind(a.at))
	require.NoError(t, l.Listen(1))
	return a
}

func (a *twoFabrics) timeout() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	a.t.Cleanup(cancel)
	return ctx
}

func (a *twoFabrics) keep(id *cm.ID) *cm.ID {
	a.t.Cleanup(func() {
		if q := id.QP(); q != nil {
			assert.NoError(a.t, q.Close())
		}
		assert.NoError(a.t, id.Close())
	})
	return id
}

// expect waits for an event.
func (a *twoFabrics) expect(ch *cm.EventChannel, want rdmacm.CMEventType) cm.Event {
	a.t.Helper()
	e, err := ch.Event(a.timeout())
	require.NoError(a.t, err)
	require.Equal(a.t, want, e.Type, "%v", e)
	return e
}

// connect sends a connection request to the listener.
func (a *twoFabrics) connect(space rdmacm.PortSpace, to netip.AddrPort, private string) *cm.ID {
	a.t.Helper()
	id, err := a.activeChannel.CreateID(space)
	require.NoError(a.t, err)
	a.keep(id)
	require.NoError(a.t, id.ResolveAddr(a.timeout(), netip.AddrPort{}, to, time.Second))
	a.expect(a.activeChannel, rdmacm.CM_EVENT_ADDR_RESOLVED)
	assert.Equal(a.t, "127.0.1.1", id.LocalAddr().Addr().String())
	require.NoError(a.t, id.ResolveRoute(a.timeout(), time.Second))
	a.expect(a.activeChannel, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	a.withQP(id)
	require.NoError(a.t, id.Connect(a.timeout(), nil, []byte(private)))
	return id
}

func (a *twoFabrics) withQP(id *cm.ID) *cm.ID {
	a.t.Helper()
	kind := ibv.QPT_RC
	if id.PortSpace() == rdmacm.PS_UDP {
		kind = ibv.QPT_UD
	}
	attr := ibv.QPInitAttr{QPType: kind, SQSigAll: 1,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(a.t, err)
	return id
}

// TestConnectionBetweenFabrics: private data and messages arrive in both directions, and both ends get an event when
// the connection ends.
func TestConnectionBetweenFabrics(t *testing.T) {
	connectionBetween(t, newTwoFabrics(t, rdmacm.PS_TCP, 0))
}

func connectionBetween(t *testing.T, a *twoFabrics) {
	id := a.connect(rdmacm.PS_TCP, a.at, "may I")
	request := a.expect(a.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, "may I", string(request.PrivateData[:5]))
	other := a.withQP(a.keep(request.ID))
	assert.Equal(t, id.LocalAddr(), other.PeerAddr())
	mr, err := other.RegMsgs(make([]byte, 16))
	require.NoError(t, err)
	defer mr.Close()
	require.NoError(t, other.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, other.Accept(a.timeout(), nil, []byte("you may")))
	answer := a.expect(a.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, "you may", string(answer.PrivateData[:7]))
	a.expect(a.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, id.PostSend(2, []byte("message"), nil, ibv.SEND_INLINE))
	wc, err := other.GetRecvComp(a.timeout())
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "message", string(mr.Bytes()[:wc.ByteLen]))
	require.NoError(t, id.Disconnect(a.timeout()))
	a.expect(a.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, other.Disconnect(a.timeout()))
	a.expect(a.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
	a.expect(a.activeChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
}

// TestRejectedBetweenFabrics: a rejection carries its private data. Without a listener, the request is rejected with
// that reason.
func TestRejectedBetweenFabrics(t *testing.T) { rejectedBetween(t, newTwoFabrics(t, rdmacm.PS_TCP, 0)) }

func rejectedBetween(t *testing.T, a *twoFabrics) {
	a.connect(rdmacm.PS_TCP, a.at, "may I")
	request := a.expect(a.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, a.keep(request.ID).Reject([]byte("you may not")))
	e := a.expect(a.activeChannel, rdmacm.CM_EVENT_REJECTED)
	assert.Equal(t, 28, e.Status, "the program's own reason")
	assert.Equal(t, "you may not", string(e.PrivateData[:11]))
	a.connect(rdmacm.PS_TCP, netip.AddrPortFrom(a.at.Addr(), 7), "")
	assert.Equal(t, 8, a.expect(a.activeChannel, rdmacm.CM_EVENT_REJECTED).Status, "no listener")
}

// TestSilentFabric: a peer that does not answer is unreachable.
func TestSilentFabric(t *testing.T) {
	a := newTwoFabrics(t, rdmacm.PS_TCP, 10*time.Millisecond)
	require.True(t, a.fabrics[1].SetLink("soft0", false))
	a.connect(rdmacm.PS_TCP, a.at, "")
	a.expect(a.activeChannel, rdmacm.CM_EVENT_UNREACHABLE)
}

// TestBacklogBetweenFabrics: a request that finds the backlog full is retransmitted.
func TestBacklogBetweenFabrics(t *testing.T) {
	a := newTwoFabrics(t, rdmacm.PS_TCP, 3*time.Second)
	const places = 12 // for one host, out of 16
	var waiting []*cm.ID
	for range places + 1 {
		waiting = append(waiting, a.connect(rdmacm.PS_TCP, a.at, ""))
	}
	a.connect(rdmacm.PS_TCP, netip.AddrPortFrom(a.at.Addr(), 7), "")
	a.expect(a.activeChannel, rdmacm.CM_EVENT_REJECTED) // beyond the backlog
	assert.EqualValues(t, 1, a.fabrics[1].HWCounters("soft0")["rx_cm_backlog"])
	accept := func() {
		request := a.expect(a.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST)
		require.NoError(t, a.withQP(a.keep(request.ID)).Accept(a.timeout(), nil, nil))
	}
	established := func(ids ...*cm.ID) {
		for _, id := range ids {
			assert.Same(t, id, a.expect(a.activeChannel, rdmacm.CM_EVENT_ESTABLISHED).ID)
		}
		for range ids {
			a.expect(a.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
		}
	}
	for range places {
		accept()
	}
	established(waiting[:places]...)
	accept()
	established(waiting[places])
}

// TestDatagramsBetweenFabrics: a lookup returns the queue pair, which answers a datagram.
func TestDatagramsBetweenFabrics(t *testing.T) {
	datagramsBetween(t, newTwoFabrics(t, rdmacm.PS_UDP, 0))
}

func datagramsBetween(t *testing.T, a *twoFabrics) {
	id := a.connect(rdmacm.PS_UDP, a.at, "where are you")
	request := a.expect(a.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, "where are you", string(request.PrivateData[:13]))
	other := a.withQP(a.keep(request.ID))
	const grh = 40
	received := func(id *cm.ID) *rdma.MR {
		mr, err := id.RegMsgs(make([]byte, 64))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, mr.Close()) })
		require.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
		return mr
	}
	passiveChannel, activeChannel := received(other), received(id)
	require.NoError(t, other.Accept(a.timeout(), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
	found := a.expect(a.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, other.QP().Num(), found.UD.QPNum)
	assert.EqualValues(t, rdmacm.UDP_QKEY, found.UD.QKey)
	assert.Equal(t, "here", string(found.PrivateData[:4]))
	pd, err := id.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&found.UD.AHAttr)
	require.NoError(t, err)
	defer ah.Close()
	require.NoError(t, id.PostUDSend(2, []byte("datagram"), nil, ibv.SEND_INLINE, ah, found.UD.QPNum))
	wc, err := other.GetRecvComp(a.timeout())
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "datagram", string(passiveChannel.Bytes()[grh:wc.ByteLen]))
	assert.Equal(t, id.QP().Num(), wc.SrcQP)
	pd, err = other.PD()
	require.NoError(t, err)
	back, err := pd.CreateAHFromWC(&wc, (*ibv.GRH)(unsafe.Pointer(&passiveChannel.Bytes()[0])), 1)
	require.NoError(t, err)
	defer back.Close()
	require.NoError(t, other.PostUDSend(3, []byte("echo"), nil, ibv.SEND_INLINE, back, wc.SrcQP))
	wc, err = id.GetRecvComp(a.timeout())
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "echo", string(activeChannel.Bytes()[grh:wc.ByteLen]))
}

// TestKilledFabric: a stream fails when its peer disappears without a message.
func TestKilledFabric(t *testing.T) {
	a, b := fabricAt(t, "127.0.1.3"), fabricAt(t, "127.0.1.4")
	config := func(f *soft.Fabric) stream.Config {
		return stream.Config{Backend: f, AckTimeout: 12, Linger: time.Second}
	}
	l, err := listening(config(b)).Listen(t.Context(), "127.0.1.4:7001")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan struct{})
	defer func() { <-served }()
	go func() {
		defer close(served)
		if c, err := l.Accept(); err == nil {
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	c, err := dialer(config(a)).Dial(t.Context(), "127.0.1.4:7001")
	require.NoError(t, err)
	_, err = c.Write([]byte("first words"))
	require.NoError(t, err)
	require.True(t, b.RemoveDevice("soft0"), "its socket is closed, and nothing is said")
	for err == nil {
		_, err = c.Write(make([]byte, 1<<20))
	}
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	c.Close()
}

// TestRouteToPeer: an ID without a source address takes the one that the kernel uses for the peer, not the first.
func TestRouteToPeer(t *testing.T) {
	f := fabricAt(t, "127.0.1.5")
	ch, err := cm.CreateEventChannelOn(f)
	require.NoError(t, err)
	defer ch.Close()
	from := func(to string) string {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		require.NoError(t, err)
		defer id.Close()
		require.NoError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(to), time.Second))
		e, err := ch.Event(t.Context())
		require.NoError(t, err)
		require.Equal(t, rdmacm.CM_EVENT_ADDR_RESOLVED, e.Type)
		return id.LocalAddr().Addr().String()
	}
	assert.Equal(t, "127.0.1.5", from("127.0.1.6:1"), "there is no other one")
	require.NoError(t, f.AddDevice(soft.DeviceOptions{Address: netip.MustParseAddr("127.0.1.7"), Wire: true}))
	assert.Equal(t, "127.0.1.5", from("127.0.1.6:1"), "the kernel's is none of the devices'")
	require.NoError(t, f.AddDevice(soft.DeviceOptions{Address: netip.MustParseAddr("127.0.0.1"), Wire: true}))
	assert.Equal(t, "127.0.0.1", from("127.0.1.6:1"))
}

// TestBindLoopback: on a machine whose devices have other addresses, loopback addresses stand for all devices, as on
// Linux. If a device has a loopback address, other loopback addresses belong to other processes.
func TestBindLoopback(t *testing.T) {
	unwired, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr("192.0.2.1")}}})
	require.NoError(t, err)
	for _, c := range []struct {
		f    *soft.Fabric
		want string
	}{{unwired, "0.0.0.0"}, {fabricAt(t, "127.0.1.8"), ""}} {
		ch, err := cm.CreateEventChannelOn(c.f)
		require.NoError(t, err)
		defer ch.Close()
		id, err := ch.CreateID(rdmacm.PS_TCP)
		require.NoError(t, err)
		defer id.Close()
		err = id.Bind(netip.MustParseAddrPort("127.0.1.9:0"))
		if c.want == "" {
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, c.want, id.LocalAddr().Addr().String())
	}
}
