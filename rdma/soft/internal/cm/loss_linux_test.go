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

// loses loses the next messages of an attribute.
func (e *exchanged) loses(a message.Attribute, n int) {
	e.tap.lost = func(m *message.MAD) bool {
		if m.Attribute != a || n == 0 {
			return false
		}
		n--
		return true
	}
}

// count is how many messages of an attribute were sent.
func (e *exchanged) count(a message.Attribute) (n int) {
	for _, m := range e.seen {
		if m.Attribute == a {
			n++
		}
	}
	return n
}

// TestLostRefusals: a refusal that is lost is given again, with its private data, whether its identifier is there or
// not. No second request comes of that.
func TestLostRefusals(t *testing.T) {
	for _, closes := range []bool{false, true} {
		e := newExchanged(t)
		id := e.ask()
		other := e.take(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.loses(message.REJ, 3)
		said := outside[byte](e.rig, 1)
		said[0] = 'n'
		require.NoError(t, rdma.Reject(other, pointerTo(&said[0]), 1))
		if closes {
			require.NoError(t, rdma.DestroyID(other))
		}
		e.none(e.here)
		e.fabric.Advance(time.Minute)
		event := e.event(e.here, rdmacm.CM_EVENT_REJECTED)
		assert.EqualValues(t, message.RejectConsumer, event.Status)
		assert.Equal(t, "n", string(mem.List[byte](uint64(event.Param.Conn().PrivateData), 1)))
		require.NoError(t, rdma.AckCMEvent(event))
		assert.Equal(t, 4, e.count(message.REJ))
		e.none(e.there)
		require.NoError(t, rdma.DestroyID(id))
		if !closes {
			require.NoError(t, rdma.DestroyID(other))
		}
	}
}

// TestLostFarewells: the other side hears of the end of a connection whose identifier is gone, also when the first
// messages that say so are lost.
func TestLostFarewells(t *testing.T) {
	for _, disconnects := range []bool{false, true} {
		e := newExchanged(t)
		id := e.ask()
		other := e.accepted(id)
		e.loses(message.DREQ, 3)
		if disconnects {
			require.NoError(t, rdma.Disconnect(id))
		}
		require.NoError(t, rdma.DestroyID(id))
		e.none(e.there)
		e.fabric.Advance(10 * time.Second)
		e.take(e.there, rdmacm.CM_EVENT_DISCONNECTED)
		assert.Empty(t, e.manager.farewells, "it was heard")
		require.NoError(t, rdma.DestroyID(other))
	}
}

// TestFarewellsEnd: one that nobody hears is given up.
func TestFarewellsEnd(t *testing.T) {
	e := newExchanged(t)
	id := e.ask()
	other := e.accepted(id)
	e.loses(message.DREQ, -1)
	require.NoError(t, rdma.DestroyID(id))
	dreq := e.last(message.DREQ)
	e.arrives(&message.MAD{Attribute: message.DREP, From: dreq.To, To: dreq.From, TID: dreq.TID,
		LocalID: dreq.RemoteID + 1, RemoteID: dreq.LocalID}) // of another identifier
	assert.Len(t, e.manager.farewells, 1)
	e.fabric.Advance(time.Hour)
	assert.Equal(t, 1+retries+2, e.count(message.DREQ))
	assert.Empty(t, e.manager.farewells)
	require.NoError(t, rdma.DestroyID(other))
}

// TestAnswersThatNobodyAwaits: the side that accepts hears that the other one has gone, once its answer arrives there,
// and why if that was said before.
func TestAnswersThatNobodyAwaits(t *testing.T) {
	for _, answered := range []bool{false, true} {
		e := newExchanged(t)
		id := e.ask()
		other := e.take(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.loses(message.REJ, 1)
		want := int32(message.RejectInvalidID)
		if answered {
			require.NoError(t, rdma.Accept(other, e.param))
			e.take(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
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

// TestRefusedAfterItsAnswer: the side that asked hears that the other one gave up before it heard of the connection.
func TestRefusedAfterItsAnswer(t *testing.T) {
	e := newExchanged(t)
	id := e.ask()
	other := e.take(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.take(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	e.loses(message.RTU, -1)
	require.NoError(t, rdma.Establish(id))
	rep := e.last(message.REP)
	e.arrives(&message.MAD{Attribute: message.REJ, From: rep.From, To: rep.To, TID: rep.TID + 1, LocalID: rep.LocalID,
		RemoteID: rep.RemoteID}) // of another request
	e.none(e.here)
	require.NoError(t, rdma.DestroyID(other))
	e.take(e.here, rdmacm.CM_EVENT_REJECTED)
	require.NoError(t, rdma.DestroyID(id))
}

// TestLeavesBeforeItsLastWord: a side that ends the connection had the answer. The other one hears both.
func TestLeavesBeforeItsLastWord(t *testing.T) {
	e := newExchanged(t)
	id := e.ask()
	other := e.take(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(other, e.param))
	e.take(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	e.loses(message.RTU, 1)
	require.NoError(t, rdma.Establish(id))
	require.NoError(t, rdma.DestroyID(id))
	e.take(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	e.take(e.there, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, rdma.DestroyID(other))
}

// TestEndedRequestsAreForgotten: so many are remembered, and no more.
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

// accepted connects an identifier that has asked, and returns the other end.
func (e *exchanged) accepted(id *rdmacm.CMID) *rdmacm.CMID {
	e.t.Helper()
	other := e.take(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(e.t, rdma.Accept(other, e.param))
	e.take(e.here, rdmacm.CM_EVENT_CONNECT_RESPONSE)
	require.NoError(e.t, rdma.Establish(id))
	e.take(e.there, rdmacm.CM_EVENT_ESTABLISHED)
	return other
}
