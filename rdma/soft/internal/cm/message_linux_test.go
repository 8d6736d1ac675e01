// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// tap records the messages of the connection manager on a wire.
type tap struct {
	wire.Wire
	seen []*message.MAD
	lost func(*message.MAD) bool // selects messages to drop; nil drops none
}

func (t *tap) SendMAD(m *message.MAD) {
	t.seen = append(t.seen, m.Clone())
	if t.lost == nil || !t.lost(m) {
		t.Wire.SendMAD(m)
	}
}

// last returns the last message of an attribute.
func (t *tap) last(a message.Attribute) (last *message.MAD) {
	for _, m := range t.seen {
		if m.Attribute == a {
			last = m.Clone()
		}
	}
	return last
}

// testListener is a fabric with a listener at 127.0.0.2, port 7471, and a tap.
type testListener struct {
	*testbed
	*tap
	here, there *rdmacm.EventChannel
	listener    *rdmacm.CMID
	param       *rdmacm.ConnParam
}

func newTestListener(t *testing.T) *testListener {
	r := newTestbed(t, device.Options{Virtual: true})
	e := &testListener{testbed: r, tap: &tap{}, here: r.eventChannel(), there: r.eventChannel(),
		param: &offHeap[rdmacm.ConnParam](r, 1)[0]}
	r.fabric.Tap(func(w wire.Wire) wire.Wire {
		e.tap.Wire = w
		return e.tap
	})
	for _, ch := range []*rdmacm.EventChannel{e.here, e.there} {
		require.NoError(t, unix.SetNonblock(int(ch.FD), true))
	}
	*e.param = rdmacm.ConnParam{QPNum: 99, RetryCount: 7, RNRRetryCount: 7, ResponderResources: 1, InitiatorDepth: 1}
	e.listener = e.identifier(e.there, rdmacm.PS_TCP)
	t.Cleanup(func() { require.NoError(t, rdma.DestroyID(e.listener)) })
	require.NoError(t, rdma.BindAddr(e.listener, r.sockaddr([4]byte{127, 0, 0, 2}, 7471)))
	require.NoError(t, rdma.Listen(e.listener, 4))
	return e
}

// expectEvent receives the next event, checks its type, and returns its identifier, or the new one of a request.
func (e *testListener) expectEvent(ch *rdmacm.EventChannel, want rdmacm.CMEventType) *rdmacm.CMID {
	e.t.Helper()
	event := e.event(ch, want)
	id := event.ID.Deref()
	require.NoError(e.t, rdma.AckCMEvent(event))
	return id
}

// expectNoEvent checks that no event is queued. It does not advance a virtual clock.
func (e *testListener) expectNoEvent(ch *rdmacm.EventChannel) {
	e.t.Helper()
	var descriptors = []unix.PollFd{{Fd: ch.FD, Events: unix.POLLIN}}
	n, err := unix.Poll(descriptors, 0)
	for err == unix.EINTR {
		n, err = unix.Poll(descriptors, 0)
	}
	require.NoError(e.t, err)
	require.Zero(e.t, n, "an event is queued")
}

// sendRequest makes an identifier send a connection request.
func (e *testListener) sendRequest() *rdmacm.CMID {
	e.t.Helper()
	id := e.identifier(e.here, rdmacm.PS_TCP)
	require.NoError(e.t, rdma.ResolveAddr(id, e.sockaddr([4]byte{127, 0, 0, 1}, 0),
		e.sockaddr([4]byte{127, 0, 0, 2}, 7471), 1))
	e.expectEvent(e.here, rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(e.t, rdma.ResolveRoute(id, 1))
	e.expectEvent(e.here, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	require.NoError(e.t, rdma.Connect(id, e.param))
	return id
}

// deliver delivers a message to the device that it is addressed to.
func (e *testListener) deliver(m *message.MAD) {
	f := e.fabric
	f.Lock()
	defer f.Unlock()
	for _, d := range f.Present() {
		if d.Address().Link == m.To.Link {
			d.MAD(m)
		}
	}
}

// TestLateRequests: a late duplicate of a request is ignored after its sender has stopped waiting, but not one from
// another sender.
func TestLateRequests(t *testing.T) {
	e := newTestListener(t)
	gone := e.sendRequest()
	request := e.last(message.REQ)
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	e.deliver(request.Clone())
	e.expectNoEvent(e.there)
	require.NoError(t, rdma.DestroyID(gone))
	require.NoError(t, rdma.DestroyID(other))
	e.deliver(request.Clone())
	e.expectNoEvent(e.there)

	refused := e.sendRequest()
	request = e.last(message.REQ)
	other = e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Reject(other, 0, 0))
	e.expectEvent(e.here, rdmacm.CM_EVENT_REJECTED)
	e.deliver(request.Clone())
	e.expectNoEvent(e.there)
	require.NoError(t, rdma.DestroyID(refused))
	require.NoError(t, rdma.DestroyID(other))

	request.From.Link, request.Source, request.Private = 0x0123, netip.MustParseAddrPort("10.1.2.3:4"), []byte("from elsewhere")
	e.deliver(request)
	event := e.event(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, "from elsewhere", string(mem.List[byte](uint64(event.Param.Conn().PrivateData), 14)))
	other = event.ID.Deref()
	require.NoError(t, rdma.AckCMEvent(event))
	assert.Equal(t, "10.1.2.3:4", readAddress(other.Route.Addr.DstAddr()).String())
	require.NoError(t, rdma.DestroyID(other))
}

// TestMessagesOfOthers: a connection accepts messages only from its peer.
func TestMessagesOfOthers(t *testing.T) {
	e := newTestListener(t)
	id := e.sendRequest()
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	rep := e.last(message.REP)
	for _, a := range []message.Attribute{message.RTU, message.REJ, message.DREQ} { // before the RTU
		m := &message.MAD{Attribute: a, From: rep.To, To: rep.From, TID: rep.TID, LocalID: rep.RemoteID + 1,
			RemoteID: rep.LocalID, Of: message.OfREP}
		e.deliver(m)
		m.LocalID, m.From.Link = rep.RemoteID, 0x0123
		e.deliver(m)
	}
	e.expectNoEvent(e.there)
	require.NoError(t, rdma.Establish(id))
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	e.deliver(rep) // a duplicate is only answered
	assert.Equal(t, message.RTU, e.seen[len(e.seen)-1].Attribute)
	e.deliver(&message.MAD{Attribute: message.DREQ, From: rep.From, To: rep.To, LocalID: rep.LocalID + 1,
		RemoteID: rep.RemoteID})
	e.expectNoEvent(e.here)
	require.NoError(t, rdma.DestroyID(other))
	e.expectEvent(e.here, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, rdma.DestroyID(id))
	assert.Empty(t, e.manager.numbered, "a destroyed identifier has no communication ID")
	assert.Empty(t, e.manager.requests)
	assert.Empty(t, e.manager.connected)
}

// TestParametersTruncated: parameters of a connection that exceed their fields are truncated as on Linux.
func TestParametersTruncated(t *testing.T) {
	e := newTestListener(t)
	*e.param = rdmacm.ConnParam{QPNum: 0xff00_0063, RetryCount: 200, RNRRetryCount: 201, FlowControl: 2, SRQ: 3}
	id := e.sendRequest()
	m := e.last(message.REQ)
	_, err := m.Encode()
	require.NoError(t, err)
	event := e.event(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, rdmacm.ConnParam{QPNum: 0x63, RetryCount: 7, RNRRetryCount: 7, FlowControl: 1, SRQ: 1},
		func() rdmacm.ConnParam {
			p := *event.Param.Conn()
			p.PrivateData, p.PrivateDataLen = 0, 0
			return p
		}())
	assert.Equal(t, ibv.MTU_4096, m.Path.MTU)
	assert.EqualValues(t, 0x01061d2f, m.ServiceID)
	assert.Equal(t, "127.0.0.2", m.Dest.String())
	other := event.ID.Deref()
	require.NoError(t, rdma.AckCMEvent(event))
	require.NoError(t, rdma.DestroyID(id))
	require.NoError(t, rdma.DestroyID(other))
}

// TestForgedAnswers: only the port that a request was sent to answers it, and only the peer ends a connection. Messages
// from another sender, for another identifier or queue pair, or of another exchange are ignored, even with guessed
// numbers.
func TestForgedAnswers(t *testing.T) {
	e := newTestListener(t)
	otherLink := uint64(0x0123)
	id := e.sendRequest()
	req := e.last(message.REQ)
	forged := func(a message.Attribute, of *message.MAD, change func(*message.MAD)) {
		t.Helper()
		m := &message.MAD{Attribute: a, From: of.To, To: of.From, TID: of.TID, LocalID: 77, RemoteID: of.LocalID,
			QPN: 5}
		change(m)
		e.deliver(m)
	}
	peerAddr := func(m *message.MAD) { m.From.Link = otherLink }
	for _, a := range []message.Attribute{message.REP, message.REJ, message.SIDRRep} {
		forged(a, req, peerAddr)
	}
	forged(message.MRA, req, peerAddr) // would restart the timeout
	e.expectNoEvent(e.here)
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	e.deliver(&message.MAD{Attribute: message.REJ, From: req.From, To: req.To, TID: req.TID + 1, LocalID: req.LocalID})
	require.NoError(t, rdma.Accept(other, e.param), "a REJ with another transaction ID withdraws no request")
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	rep := e.last(message.REP)
	forged(message.RTU, rep, func(m *message.MAD) { m.LocalID, m.TID = rep.RemoteID, rep.TID+1 })
	e.expectNoEvent(e.there)
	require.NoError(t, rdma.Establish(id))
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	forged(message.DREQ, rep, func(m *message.MAD) { m.LocalID = rep.RemoteID }) // QPN 5 is not its queue pair
	e.expectNoEvent(e.there)
	// the message arrives at another device of the same fabric
	e.fabric.Lock()
	wrong := e.fabric.Present()[0]
	e.manager.Receive(wrong, &message.MAD{Attribute: message.DREQ, From: rep.To, To: rep.From, LocalID: rep.RemoteID,
		RemoteID: rep.LocalID, QPN: 99})
	e.fabric.Unlock()
	e.expectNoEvent(e.there)
	e.tap.lost = func(m *message.MAD) bool { return m.Attribute == message.DREQ }
	require.NoError(t, rdma.Disconnect(id))
	dreq := e.last(message.DREQ)
	forged(message.DREP, dreq, func(m *message.MAD) { m.LocalID, m.TID = dreq.RemoteID, dreq.TID+1 })
	e.expectNoEvent(e.here)
	forged(message.DREP, dreq, func(m *message.MAD) { m.LocalID = dreq.RemoteID })
	e.expectEvent(e.here, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, rdma.DestroyID(id))
	require.NoError(t, rdma.DestroyID(other))
}

// TestHintsNeedLink: MRAs do not arrive while a link is down, so an exchange that waits for a program retransmits until
// the link is back.
func TestHintsNeedLink(t *testing.T) {
	for _, removed := range []bool{false, true} {
		e := newTestListener(t)
		id := e.sendRequest()
		other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.fabric.Advance(time.Hour) // processing by a program does not time out
		e.expectNoEvent(e.here)
		if removed {
			require.True(t, e.fabric.RemoveDevice("soft1"))
		} else {
			require.True(t, e.fabric.SetLink("soft1", false))
		}
		seen := len(e.seen)
		assert.Equal(t, removed, rdma.Reject(other, 0, 0) != nil, "removed: %v", removed)
		assert.Len(t, e.seen, seen, "no message is sent")
		e.fabric.Advance(time.Hour)
		e.expectEvent(e.here, rdmacm.CM_EVENT_UNREACHABLE)
		require.NoError(t, rdma.DestroyID(id))
		require.NoError(t, rdma.DestroyID(other))
	}
}
