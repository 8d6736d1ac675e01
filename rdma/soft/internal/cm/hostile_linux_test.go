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
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// requestFrom delivers a host's connection request to the listener.
func (e *testListener) requestFrom(from netip.Addr, number uint32) {
	e.forget()
	e.requestFromPeer(func(m *message.MAD) {
		gid := from.As16()
		m.From, m.Source, m.Path.Local = message.Remote(gid), netip.AddrPortFrom(from, 99), gid
		m.LocalID, m.TID, m.QPN = number, uint64(number), number
	})
}

// TestHostileHandshakes: while one host sends requests that it never confirms, a program that accepts one request after
// another soon serves an honest peer.
func TestHostileHandshakes(t *testing.T) {
	e := newTestListener(t)
	fuzzInput, honest := netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("192.0.2.77")
	number := uint32(100)
	flood := func() {
		for range 100 {
			number++
			e.requestFrom(fuzzInput, number)
		}
	}
	flood()
	begin := e.fabric.Now()
	for i := range uint32(2) { // two peers at one address
		e.requestFrom(honest, 1+i)
	}
	served := 0
	for range 8 {
		id := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
		e.forget()
		require.NoError(t, rdma.Accept(id, e.param))
		rep := e.last(message.REP)
		if rep.To.GID == honest.As16() {
			e.deliver(&message.MAD{Attribute: message.RTU, From: rep.To, To: rep.From, TID: rep.TID,
				LocalID: rep.RemoteID, RemoteID: rep.LocalID})
			assert.Equal(t, established, verbs.Find[identifier](ibv.PtrTo(id)).state)
			served++
		} else {
			e.fabric.Advance(10 * time.Second)
			require.Equal(t, over, verbs.Find[identifier](ibv.PtrTo(id)).state, "the request timed out")
			assert.LessOrEqual(t, e.count(message.REP), 6, "number of messages to an address that may be forged")
		}
		require.NoError(t, rdma.DestroyID(id))
		flood()
		if served == 2 {
			break
		}
	}
	assert.Equal(t, 2, served)
	assert.Less(t, e.fabric.Now()-begin, 30*time.Second)
}

// TestUnconfirmedAnswer: a request that is retransmitted after its answer timed out is rejected.
func TestUnconfirmedAnswer(t *testing.T) {
	e := newTestListener(t)
	e.requestFrom(peerAddr, 7)
	id := e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)
	require.NoError(t, rdma.Accept(id, e.param))
	e.fabric.Advance(10 * time.Second)
	e.expectEvent(e.there, rdmacm.CM_EVENT_UNREACHABLE)
	for range 2 {
		e.requestFrom(peerAddr, 7)
		rej := e.last(message.REJ)
		require.NotNil(t, rej)
		assert.Equal(t, message.OfREQ, rej.Of)
		if id != nil {
			require.NoError(t, rdma.DestroyID(id))
			id = nil
		}
	}
}
