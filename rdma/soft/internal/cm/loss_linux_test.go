// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// dropMessages drops the next n messages of an attribute.
func (e *testListener) dropMessages(a message.Attribute, n int) {
	e.tap.lost = func(m *message.MAD) bool {
		if m.Attribute != a || n == 0 {
			return false
		}
		n--
		return true
	}
}

// count returns the number of messages of an attribute sent.
func (e *testListener) count(a message.Attribute) (n int) {
	for _, m := range e.seen {
		if m.Attribute == a {
			n++
		}
	}
	return n
}

// TestLostRejections: a lost rejection is sent again with its private data, whether or not its identifier still exists.
// It causes no second request.
func TestLostRejections(t *testing.T) {
	for _, closes := range []bool{false, true} {
		e := newTestListener(t)
		id := e.sendRequest()
		other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.dropMessages(message.REJ, 3)
		sent := offHeap[byte](e.testbed, 1)
		sent[0] = 'n'
		require.NoError(t, rdma.Reject(other, pointerTo(&sent[0]), 1))
		if closes {
			require.NoError(t, rdma.DestroyID(other))
		}
		e.expectNoEvent(e.here)
		e.fabric.Advance(time.Minute)
		event := e.event(e.here, rdmacm.CM_EVENT_REJECTED)
		assert.EqualValues(t, message.RejectConsumer, event.Status)
		assert.Equal(t, "n", string(mem.List[byte](uint64(event.Param.Conn().PrivateData), 1)))
		require.NoError(t, rdma.AckCMEvent(event))
		assert.Equal(t, 4, e.count(message.REJ))
		e.expectNoEvent(e.there)
		require.NoError(t, rdma.DestroyID(id))
		if !closes {
			require.NoError(t, rdma.DestroyID(other))
		}
	}
}

// TestLostDisconnects: the peer gets the event for the end of a connection whose identifier was destroyed, even if the
// first DREQs are lost.
func TestLostDisconnects(t *testing.T) {
	for _, disconnects := range []bool{false, true} {
		e := newTestListener(t)
		id := e.sendRequest()
		other := e.accepted(id)
		e.dropMessages(message.DREQ, 3)
		if disconnects {
			require.NoError(t, rdma.Disconnect(id))
		}
		require.NoError(t, rdma.DestroyID(id))
		e.expectNoEvent(e.there)
		e.fabric.Advance(10 * time.Second)
		e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED)
		assert.Empty(t, e.manager.disconnectRetries, "the DREP arrived")
		require.NoError(t, rdma.DestroyID(other))
	}
}

// TestDisconnectRetryEnds: retransmission of an unanswered DREQ ends.
func TestDisconnectRetryEnds(t *testing.T) {
	e := newTestListener(t)
	id := e.sendRequest()
	other := e.accepted(id)
	e.dropMessages(message.DREQ, -1)
	require.NoError(t, rdma.DestroyID(id))
	dreq := e.last(message.DREQ)
	e.deliver(&message.MAD{Attribute: message.DREP, From: dreq.To, To: dreq.From, TID: dreq.TID,
		LocalID: dreq.RemoteID + 1, RemoteID: dreq.LocalID}) // for another identifier
	assert.Len(t, e.manager.disconnectRetries, 1)
	e.fabric.Advance(time.Hour)
	assert.Equal(t, 1+retries+2, e.count(message.DREQ))
	assert.Empty(t, e.manager.disconnectRetries)
	require.NoError(t, rdma.DestroyID(other))
}

// TestUnexpectedReplies: the passive side gets an event when its REP arrives after the active side was destroyed, with
// the reason if it was sent before.
func TestUnexpectedReplies(t *testing.T) {
	for _, answered := range []bool{false, true} {
		e := newTestListener(t)
		id := e.sendRequest()
		other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.dropMessages(message.REJ, 1)
		want := int32(message.RejectInvalidID)
		if answered {
			require.NoError(t, rdma.Accept(other, e.param))
			e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
			want = message.RejectConsumer
		}
		require.NoError(t, rdma.DestroyID(id))
		if !answered {
			require.NoError(t, rdma.Accept(other, e.param))
		}
		e.fabric.Advance(time.Minute)
		event := e.event(e.there, rdmacm.CM_EVENT_REJECTED)
		assert.Equal(t, want, event.Status)
		require.NoError(t, rdma.AckCMEvent(event))
		require.NoError(t, rdma.DestroyID(other))
	}
}

// TestRejectedAfterReply: the active side gets an event if the passive side timed out before the RTU arrived.
func TestRejectedAfterReply(t *testing.T) {
	e := newTestListener(t)
	id := e.sendRequest()
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	e.dropMessages(message.RTU, -1)
	require.NoError(t, rdma.Establish(id))
	rep := e.last(message.REP)
	e.deliver(&message.MAD{Attribute: message.REJ, From: rep.From, To: rep.To, TID: rep.TID + 1, LocalID: rep.LocalID,
		RemoteID: rep.RemoteID}) // for another request
	e.expectNoEvent(e.here)
	require.NoError(t, rdma.DestroyID(other))
	e.expectEvent(e.here, rdmacm.CM_EVENT_REJECTED)
	require.NoError(t, rdma.DestroyID(id))
}

// TestDisconnectBeforeRTU: a DREQ implies that the REP arrived, so the passive side gets both events.
func TestDisconnectBeforeRTU(t *testing.T) {
	e := newTestListener(t)
	id := e.sendRequest()
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	e.dropMessages(message.RTU, 1)
	require.NoError(t, rdma.Establish(id))
	require.NoError(t, rdma.DestroyID(id))
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, rdma.DestroyID(other))
}

// TestEndedRequestsAreForgotten: the number of remembered requests is limited.
func TestEndedRequestsAreForgotten(t *testing.T) {
	var e recent[ending]
	for i := range uint32(3 * mostRecent) {
		e.add(peerKey{1, i}, ending{tid: uint64(i)})
	}
	assert.Len(t, e.of, mostRecent)
	assert.Len(t, e.order, mostRecent)
	assert.Contains(t, e.of, peerKey{1, 3*mostRecent - 1})
	assert.Contains(t, e.of, peerKey{1, 2 * mostRecent})
}

// accepted completes the connection of an identifier that has sent a request, and returns the passive identifier.
func (e *testListener) accepted(id *rdmacm.CMID) *rdmacm.CMID {
	e.t.Helper()
	other := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(e.t, rdma.Accept(other, e.param))
	e.expectEvent(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	require.NoError(e.t, rdma.Establish(id))
	e.expectEvent(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	return other
}
