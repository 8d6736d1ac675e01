// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftListenerReportsLeftovers: if the ID of a failed connection cannot be released, the listener's Close fails.
func TestSoftListenerReportsLeftovers(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := listening(Config{Backend: f}).Listen(soon(t), "127.0.0.1:0")
	require.NoError(t, err)
	there, err := cm.CreateEventChannelOn(f)
	keep(t, there, err)
	listener, err := there.CreateID(rdmacm.PS_TCP)
	keep(t, listener, err)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, listener.Listen(2))
	attr := ibv.QPInitAttr{QPType: ibv.QPT_RC,
		Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
	for i := range uint32(2) {
		id, here := resolved(t, f, listener.LocalAddr())
		require.NoError(t, id.Connect(soon(t), &rdmacm.ConnParam{QPNum: 99 + i}, []byte("no stream")))
		e, err := there.Event(soon(t))
		require.NoError(t, err)
		request := keep(t, e.ID, nil)
		_, err = request.CreateQP(nil, &attr, rdma.QueueOptions{})
		require.NoError(t, err)
		attr := attr
		attr.SendCQ, attr.RecvCQ = request.QP().SendCQ().Ptr(), request.QP().RecvCQ().Ptr()
		other, err := request.QP().PD().CreateQP(&attr, rdma.QueueOptions{Overcommit: true}) // the CQ cannot be closed
		keep(t, other, err)
		l.handshake(&endpoint{ID: request}, e, made.NewWork(made.Here()))
		e, err = here.Event(soon(t))
		require.NoError(t, err)
		assert.Equal(t, rdmacm.CM_EVENT_REJECTED, e.Type)
	}
	err = l.Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "close rdma 127.0.0.1:")
	assert.ErrorContains(t, err, "releasing a failed connection, and 1 more")
}
