// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// peerAddr is the address of another host.
var peerAddr = netip.MustParseAddr("192.0.2.9")

// requestFromPeer delivers another host's request to the listener.
func (e *testListener) requestFromPeer(change func(*message.MAD)) *message.MAD {
	gid := peerAddr.As16()
	to := netip.MustParseAddr("127.0.0.2")
	here := e.fabric.Present()[1].AddressOf(to)
	m := &message.MAD{
		Attribute: message.REQ, From: message.Remote(gid), To: here, TID: 5, LocalID: 7, QPN: 9, CAGUID: 3,
		ServiceID: serviceID(rdmacm.PS_TCP, 7471), Source: netip.AddrPortFrom(peerAddr, 99), Dest: to,
		Path: message.Path{Local: gid, Remote: here.GID, MTU: ibv.MTU_1024, AckTimeout: 11},
	}
	change(m)
	e.deliver(m)
	return e.seen[len(e.seen)-1]
}

// TestRequestOfAnotherHost: a repeated request gets an MRA, as from Linux, and its path is used. A request whose
// addresses differ from its packet's is rejected.
func TestRequestOfAnotherHost(t *testing.T) {
	e := newTestListener(t)
	e.seen = []*message.MAD{nil}
	assert.Nil(t, e.requestFromPeer(func(*message.MAD) {}), "no message is sent before the program answers")
	again := e.requestFromPeer(func(*message.MAD) {})
	assert.Equal(t, message.MRA, again.Attribute)
	assert.Equal(t, message.OfREQ, again.Of)
	id := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(id, e.param))
	rep := e.seen[len(e.seen)-1]
	assert.Equal(t, message.REP, rep.Attribute, "no MRA follows an answer")
	for _, m := range e.seen[1:] {
		_, err := m.Encode()
		require.NoError(t, err)
	}
	attr, mask := &offHeap[ibv.QPAttr](e.testbed, 1)[0], &offHeap[int32](e.testbed, 1)[0]
	attr.QPState = ibv.QPS_RTS
	require.NoError(t, rdma.InitQPAttr(id, attr, mask))
	assert.EqualValues(t, 11, attr.Timeout)
	attr.QPState = ibv.QPS_RTR
	require.NoError(t, rdma.InitQPAttr(id, attr, mask))
	assert.Equal(t, ibv.MTU_1024, attr.PathMTU)
	assert.Equal(t, rep.PSN, attr.RQPSN, "the peer uses the communication ID of the REP")

	for name, change := range map[string]func(*message.MAD){
		"source":      func(m *message.MAD) { m.Source = netip.MustParseAddrPort("192.0.2.8:1") },
		"destination": func(m *message.MAD) { m.Dest = netip.MustParseAddr("127.0.0.1") },
		"path from":   func(m *message.MAD) { m.Path.Local = [16]byte{} },
		"path to":     func(m *message.MAD) { m.Path.Remote = [16]byte{} },
	} {
		rej := e.requestFromPeer(func(m *message.MAD) {
			m.LocalID, m.QPN = 8, 10
			change(m)
		})
		assert.Equal(t, message.REJ, rej.Attribute, name)
		assert.EqualValues(t, message.RejectInvalidGID, rej.Reason, name)
	}
	for port, reason := range map[uint16]uint16{7471: message.RejectConsumer, 7472: message.RejectNoListener} {
		rej := e.requestFromPeer(func(m *message.MAD) { // not an IP service
			m.LocalID, m.QPN, m.Source, m.Dest = 8, 10, netip.AddrPort{}, netip.Addr{}
			m.ServiceID = serviceID(rdmacm.PS_TCP, port)
		})
		assert.Equal(t, message.REJ, rej.Attribute)
		assert.Equal(t, reason, rej.Reason)
	}
	rej := e.requestFromPeer(func(m *message.MAD) { m.LocalID, m.TID = 8, 6 })
	assert.EqualValues(t, message.RejectStale, rej.Reason, "the queue pair is already connected")
	e.requestFromPeer(func(m *message.MAD) { m.LocalID, m.TID, m.CAGUID = 8, 6, 4 }) // from a restarted process
	require.NoError(t, rdma.DestroyID(e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)))
	require.NoError(t, rdma.DestroyID(id))
}

// TestDisconnectUnknown: the DREQ of an unknown connection is answered with a DREP.
func TestDisconnectUnknown(t *testing.T) {
	e := newTestListener(t)
	drep := e.requestFromPeer(func(m *message.MAD) { m.Attribute, m.RemoteID = message.DREQ, 4711 })
	assert.Equal(t, message.DREP, drep.Attribute)
	assert.EqualValues(t, 5, drep.TID)
	assert.EqualValues(t, 4711, drep.LocalID)
	assert.EqualValues(t, 7, drep.RemoteID)
	assert.Equal(t, peerAddr.As16(), drep.To.GID)
}

// TestTimeoutNamesDevice: a REJ that withdraws a request contains the GUID of its device, by which Linux finds the
// request.
func TestTimeoutNamesDevice(t *testing.T) {
	e := newTestListener(t)
	e.tap.lost = func(m *message.MAD) bool { return m.Attribute == message.REQ }
	id := e.sendRequest()
	assert.EqualValues(t, message.NoLID, e.last(message.REQ).Path.LocalLID)
	require.NoError(t, rdma.DestroyID(id))
	rej := e.last(message.REJ)
	assert.EqualValues(t, message.RejectTimeout, rej.Reason)
	assert.Len(t, rej.ARI, 8)
}

// connected connects the other host to the listener. The REP contains the IDs.
func (e *testListener) connected() (id *rdmacm.CMID, rep *message.MAD) {
	e.t.Helper()
	e.forget()
	e.requestFromPeer(func(*message.MAD) {})
	id = e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(e.t, rdma.Accept(id, e.param))
	rep = e.last(message.REP)
	e.deliver(&message.MAD{Attribute: message.RTU, From: rep.To, To: rep.From, TID: rep.TID, LocalID: 7,
		RemoteID: rep.LocalID})
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	return id, rep
}

// forget drops the recorded messages.
func (t *tap) forget() { t.seen = []*message.MAD{{}} }

// answered makes the other host answer a DREQ.
func (e *testListener) answered(dreq *message.MAD) {
	e.deliver(&message.MAD{Attribute: message.DREP, From: dreq.To, To: dreq.From, TID: dreq.TID,
		LocalID: dreq.RemoteID, RemoteID: dreq.LocalID})
}

// TestStaleConnection: a request with the queue pair of an existing connection is rejected, and a DREQ is sent for the
// old connection. When the host confirms it, the program gets an event.
func TestStaleConnection(t *testing.T) {
	e := newTestListener(t)
	id, rep := e.connected()
	e.forget()
	e.requestFromPeer(func(m *message.MAD) { m.LocalID, m.TID = 8, 6 })
	assert.EqualValues(t, message.RejectStale, e.last(message.REJ).Reason)
	dreq := e.last(message.DREQ)
	require.NotNil(t, dreq)
	assert.Equal(t, [2]uint32{rep.LocalID, 7}, [2]uint32{dreq.LocalID, dreq.RemoteID})
	assert.EqualValues(t, 9, dreq.QPN)
	e.expectNoEvent(e.there)
	e.answered(dreq)
	e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, rdma.DestroyID(id))
	e.requestFromPeer(func(m *message.MAD) { m.LocalID, m.TID = 9, 7 })
	require.NoError(t, rdma.DestroyID(e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)))
}

// TestStaleAnswer: a REP with the queue pair of an existing connection is handled in the same way.
func TestStaleAnswer(t *testing.T) {
	e := newTestListener(t)
	old := e.sendRequest()
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	require.NoError(t, rdma.Establish(old))
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	e.param.QPNum = 98
	id := e.sendRequest()
	another := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	e.param.QPNum = 99
	require.NoError(t, rdma.Accept(another, e.param))
	event := e.event(e.here, rdmacm.CM_EVENT_REJECTED)
	assert.EqualValues(t, message.RejectStale, event.Status)
	require.NoError(t, rdma.AckCMEvent(event))
	rej := e.last(message.REJ)
	assert.Equal(t, message.OfREP, rej.Of)
	assert.EqualValues(t, message.RejectStale, rej.Reason)
	e.expectEvent(e.there, rdmacm.CM_EVENT_REJECTED)
	e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED) // the old connection
	for _, id := range []*rdmacm.CMID{old, other, id, another} {
		require.NoError(t, rdma.DestroyID(id))
	}
}

// TestDisconnectRetry: the DREQ of a destroyed identifier, sent before or after the destruction, is retransmitted until
// the other host answers, at most two more times than other messages.
func TestDisconnectRetry(t *testing.T) {
	for _, c := range []struct{ disconnects, answers bool }{{false, true}, {true, true}, {false, false}} {
		e := newTestListener(t)
		id, _ := e.connected()
		e.forget()
		sent := 1
		if c.disconnects {
			require.NoError(t, rdma.Disconnect(id))
			sent++
		}
		require.NoError(t, rdma.DestroyID(id))
		count := func() (n int) {
			for _, m := range e.seen {
				if m.Attribute == message.DREQ {
					n++
				}
			}
			return n
		}
		assert.Equal(t, sent, count())
		e.fabric.Advance(2*defaultResponse + 1)
		n := count()
		assert.Greater(t, n, sent+2, "no answer arrived")
		if c.answers {
			dreq := e.last(message.DREQ)
			stranger := dreq.Clone()
			stranger.To = message.Remote(netip.MustParseAddr("192.0.2.10").As16())
			e.answered(stranger)
			e.fabric.Advance(defaultResponse)
			assert.Equal(t, n+1, count(), "only the peer's answer counts")
			e.answered(dreq)
			e.fabric.Advance(time.Hour)
			assert.Equal(t, n+1, count())
		} else {
			e.fabric.Advance(time.Hour)
			assert.Equal(t, retries+3, count(), "two more retransmissions at first")
		}
		assert.Empty(t, e.manager.disconnectRetries)
	}
}
