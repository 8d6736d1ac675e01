// SPDX-License-Identifier: BSD-2-Clause

package native_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/stream"
)

// manager returns an event channel of the kernel's connection manager, a context for all operations, and an address of
// the guest's device.
func manager(t *testing.T, port uint16) (*cm.EventChannel, context.Context, netip.AddrPort) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("this is no guest: go run ./conformance/vm/cmd/vmtest -- ./rdma/native")
	}
	b, err := native.Open()
	require.NoError(t, err)
	ch, err := cm.CreateEventChannelOn(b)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ch.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ch, ctx, netip.AddrPortFrom(netip.MustParseAddr(os.Getenv("GOVERBS_ADDRESS")), port)
}

func event(t *testing.T, ctx context.Context, ch *cm.EventChannel, want rdmacm.CMEventType) cm.Event {
	t.Helper()
	e, err := ch.Event(ctx)
	require.NoError(t, err)
	require.Equal(t, want, e.Type, "status %d", e.Status)
	return e
}

func closed(t *testing.T, id *cm.ID) *cm.ID {
	t.Cleanup(func() { assert.NoError(t, id.Close()) })
	return id
}

// asking returns an identifier with a route, and a listener, both on the channel.
func asking(t *testing.T, ctx context.Context, ch *cm.EventChannel, ps rdmacm.PortSpace, to netip.AddrPort) (id,
	listener *cm.ID) {
	listener = closed(t, must(ch.CreateID(ps)))
	require.NoError(t, listener.Bind(to))
	require.NoError(t, listener.Listen(4))
	id = closed(t, must(ch.CreateID(ps)))
	require.NoError(t, id.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second))
	event(t, ctx, ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(t, id.ResolveRoute(ctx, time.Second))
	event(t, ctx, ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	assert.Equal(t, to, id.PeerAddr())
	assert.Equal(t, to.Addr(), id.LocalAddr().Addr())
	return id, listener
}

func TestGuestConnection(t *testing.T) {
	ch, ctx, to := manager(t, 7461)
	id, listener := asking(t, ctx, ch, rdmacm.PS_TCP, to)
	attr := &ibv.QPInitAttr{Cap: rdma.DefaultCap(ibv.QPT_RC, false)}
	attr.Cap.MaxInlineData = 16
	_, err := id.CreateQP(nil, attr, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, id.Connect(ctx, nil, []byte("hello")))
	e := event(t, ctx, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Same(t, listener, e.Listener)
	assert.Equal(t, "hello", string(e.PrivateData[:5]))
	peer := closed(t, e.ID)
	_, err = peer.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	mr := must(peer.RegMsgs(make([]byte, 64)))
	require.NoError(t, peer.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, peer.Accept(ctx, nil, []byte("welcome")))
	for range 2 { // in any order
		if e = event(t, ctx, ch, rdmacm.CM_EVENT_ESTABLISHED); e.ID == id {
			assert.Equal(t, "welcome", string(e.PrivateData[:7]))
		}
	}
	require.NoError(t, id.PostSend(2, []byte("one"), nil, ibv.SEND_INLINE))
	wc := must(peer.GetRecvComp(ctx))
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "one", string(mr.Bytes()[:wc.ByteLen]))

	source := must(id.RegMsgs(make([]byte, 64)))
	remote := must(peer.RegRead([]byte("two")))
	require.NoError(t, id.PostRead(3, source.Bytes()[:3], source, ibv.SEND_SIGNALED, remote.Address(), remote.RKey()))
	for wc.WRID != 3 {
		wc = must(id.GetSendComp(ctx))
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	assert.Equal(t, "two", string(source.Bytes()[:3]))

	require.NoError(t, id.Disconnect(ctx))
	gone := []*cm.ID{event(t, ctx, ch, rdmacm.CM_EVENT_DISCONNECTED).ID}
	if isIWARP() { // both ends end at once, in any order
		gone = append(gone, event(t, ctx, ch, rdmacm.CM_EVENT_DISCONNECTED).ID)
		require.NoError(t, peer.Disconnect(ctx))
		assert.True(t, gone[0] == id && gone[1] == peer || gone[0] == peer && gone[1] == id)
	} else {
		require.NoError(t, peer.Disconnect(ctx))
		gone = append(gone, event(t, ctx, ch, rdmacm.CM_EVENT_DISCONNECTED).ID)
		assert.True(t, gone[0] == peer && gone[1] == id)
	}
	require.NoError(t, rdma.CloseAll(nil, mr, source, remote))
}

func TestGuestRejection(t *testing.T) {
	ch, ctx, to := manager(t, 7462)
	id, _ := asking(t, ctx, ch, rdmacm.PS_TCP, to)
	_, err := id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, id.Connect(ctx, nil, nil))
	e := event(t, ctx, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, e.ID.Reject([]byte("no")))
	closed(t, e.ID)
	e = event(t, ctx, ch, rdmacm.CM_EVENT_REJECTED)
	if isIWARP() {
		assert.Equal(t, -int(syscall.ECONNRESET), e.Status)
	} else {
		assert.Equal(t, 28, e.Status, "IB_CM_REJ_CONSUMER_DEFINED")
	}
	assert.Equal(t, "no", string(e.PrivateData[:2]))
}

func TestGuestLookup(t *testing.T) {
	notIWARP(t, "no datagrams")
	ch, ctx, to := manager(t, 7463)
	id, _ := asking(t, ctx, ch, rdmacm.PS_UDP, to)
	require.NoError(t, id.Connect(ctx, nil, nil))
	e := event(t, ctx, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	peer := closed(t, e.ID)
	qp := must(peer.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{}))
	require.NoError(t, peer.Accept(ctx, &rdmacm.ConnParam{QPNum: qp.Num()}, nil))
	e = event(t, ctx, ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, qp.Num(), e.UD.QPNum)
	assert.EqualValues(t, rdmacm.UDP_QKEY, e.UD.QKey)
}

func TestGuestMulticast(t *testing.T) {
	notIWARP(t, "no datagrams")
	ch, ctx, to := manager(t, 0)
	group := netip.MustParseAddrPort("239.7.7.9:0")
	id := closed(t, must(ch.CreateID(rdmacm.PS_UDP)))
	require.NoError(t, id.Bind(to))
	_, err := id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	_, _, err = id.Join(ctx, group)
	require.NoError(t, err)
	e := event(t, ctx, ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	assert.EqualValues(t, 0xffffff, e.UD.QPNum)
	require.NoError(t, id.Leave(group))
}

func TestGuestStream(t *testing.T) {
	_, ctx, to := manager(t, 7464)
	b := must(native.Open())
	config := stream.Config{Backend: b}
	l, err := (&stream.ListenConfig{Config: config}).Listen(ctx, to.String())
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := (&stream.Dialer{Config: config}).Dial(ctx, to.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("echo"))
	if isIWARP() {
		assert.ErrorIs(t, err, syscall.EINVAL, "Soft-iWARP has no immediate data")
		return
	}
	require.NoError(t, err)
	answer := make([]byte, 4)
	_, err = io.ReadFull(c, answer)
	require.NoError(t, err)
	assert.Equal(t, "echo", string(answer))
}

// TestGuestXRC: identifiers of a device without XRC exist, but have no queues, and the error names rdma-core.
func TestGuestXRC(t *testing.T) {
	_, ctx, at := manager(t, 7480)
	b, err := native.Open()
	require.NoError(t, err)
	info, err := cm.GetAddrInfoOn(ctx, b, at.Addr().String(), "7480", cm.Hints{QPType: ibv.QPT_XRC_RECV,
		Flags: rdmacm.RAI_PASSIVE | rdmacm.RAI_NUMERICHOST, PortSpace: rdmacm.PS_IB})
	require.NoError(t, err)
	defer info.Close()
	id, err := cm.CreateEP(ctx, info, nil, nil, rdma.QueueOptions{})
	require.NoError(t, err)
	closed(t, id)
	_, err = id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	t.Log(err)
	assert.ErrorIs(t, err, rdma.ErrNotSupported)
	assert.ErrorContains(t, err, "rdma-core")
	_, err = id.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_RECV}, rdma.QueueOptions{})
	t.Log(err)
	assert.ErrorIs(t, err, rdma.ErrNotSupported)
	assert.ErrorContains(t, err, "rdma-core")
}
