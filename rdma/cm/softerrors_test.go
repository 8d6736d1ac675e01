// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftErrorsNameID: every error of an ID contains its address, even if the peer is unreachable or the ID closed,
// and matches one type with errors.As.
func TestSoftErrorsNameID(t *testing.T) {
	f := newFabric(t, soft.Options{})
	id, err := CreateIDOn(f, rdmacm.PS_TCP)
	require.NoError(t, err)
	defer id.Close()
	refused := func(err error, want string) {
		t.Helper()
		assert.ErrorContains(t, err, want)
		var verb *rdma.VerbError
		require.ErrorAs(t, err, &verb)
		assert.NotEmpty(t, verb.Verb)
		assert.NotEmpty(t, verb.Object)
		if verb.Errno != 0 {
			assert.ErrorIs(t, err, verb.Errno)
		}
	}
	none := netip.AddrPort{}
	at := netip.MustParseAddrPort("127.0.0.1:7471")
	unreachable := netip.MustParseAddrPort("192.0.2.9:7")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()

	refused(id.ResolveRoute(timeout(t), time.Second), "rdma_resolve_route: unbound ID: address not resolved")
	err = id.ResolveAddr(canceled, none, at, time.Second)
	refused(err, "rdma_resolve_addr: ID to 127.0.0.1:7471: context canceled")
	assert.ErrorIs(t, err, context.Canceled)
	err = id.ResolveAddr(timeout(t), none, unreachable, time.Second)
	refused(err, "rdma_resolve_addr: ID to 192.0.2.9:7: RDMA_CM_EVENT_ADDR_ERROR: no device has the address")
	assert.ErrorIs(t, err, syscall.EHOSTUNREACH)

	id = newIDOn(t, f)
	require.NoError(t, id.ResolveAddr(timeout(t), none, at, time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	refused(id.Connect(timeout(t), nil, nil), " to 127.0.0.1:7471: no queue pair: call CreateQP first, or set")
	_, err = id.CreateQP(nil, nil, rdma.QueueOptions{})
	refused(err, " to 127.0.0.1:7471: the attributes are nil")
	_, err = id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	err = id.Connect(timeout(t), nil, nil)
	refused(err, " to 127.0.0.1:7471: RDMA_CM_EVENT_REJECTED: no listener in this process, and soft0 "+
		"reaches no other; to connect processes, give each a device soft@ADDRESS")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	name := id.name()
	require.NoError(t, id.Close())
	for _, err := range []error{
		id.PostSend(1, []byte("x"), nil, 0), id.PostRecv(1, []byte("x"), nil),
		id.PostRead(1, []byte("x"), nil, 0, 0, 0),
		id.PostUDSend(1, []byte("x"), nil, 0, nil, 0), id.Connect(timeout(t), nil, nil), id.Listen(1),
	} {
		refused(err, ": "+name+" on soft0: closed")
		assert.ErrorIs(t, err, rdma.ErrClosed)
	}

	id = newIDOn(t, f)
	require.NoError(t, id.Listen(1))
	assert.True(t, id.LocalAddr().Addr().IsUnspecified())
	assert.NotZero(t, id.LocalAddr().Port())
	refused(id.ResolveAddr(timeout(t), none, at, time.Second), "the ID is listening")
	_, _, err = id.GetRequest(canceled)
	refused(err, "rdma_get_request: ID 0.0.0.0:")
	_, err = id.Event(canceled)
	refused(err, "rdma_get_cm_event: ID 0.0.0.0:")
	assert.ErrorIs(t, err, context.Canceled)
}

func newIDOn(t *testing.T, f *soft.Fabric) *ID {
	t.Helper()
	id, err := CreateIDOn(f, rdmacm.PS_TCP)
	return keep(t, id, err)
}

// TestSoftDefaultCap: a queue pair created without capacities is usable.
func TestSoftDefaultCap(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	// the space of one entry also holds 16 bytes of inline data
	plain := ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16}
	shared := ibv.QPCap{MaxSendWR: 64, MaxSendSGE: 1, MaxInlineData: 16}
	id := s.resolved()
	qp, err := id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, ibv.QPT_RC, qp.Type())
	assert.Equal(t, plain, qp.Cap())
	mr, err := id.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	for i := range uint64(64) {
		require.NoError(t, id.PostRecv(i, mr.Bytes(), mr))
	}
	require.NoError(t, qp.Close())
	require.NoError(t, mr.Close())
	_, err = id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	qp, err = id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, shared, qp.Cap())
}

// TestSoftAcceptCanceled: Accept returns its context's error; the request stays accepted, and Event returns the
// outcome.
func TestSoftAcceptCanceled(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, client := newIDOn(t, f), newIDOn(t, f)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.2:7471")))
	require.NoError(t, l.Listen(1))
	require.NoError(t, client.ResolveAddr(timeout(t), netip.AddrPort{}, l.LocalAddr(), time.Second))
	require.NoError(t, client.ResolveRoute(timeout(t), time.Second))
	// without a queue pair, the ID does not confirm until Establish is called
	param := DefaultConnParam()
	param.QPNum = 77
	require.NoError(t, client.Migrate(keepChannel(t, f)))
	require.NoError(t, client.Connect(timeout(t), &param, nil))
	request, _, err := l.GetRequest(timeout(t))
	require.NoError(t, err)
	keep(t, request, nil)
	_, err = request.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = request.Accept(ctx, nil, nil)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	var verb *rdma.VerbError
	require.ErrorAs(t, err, &verb)
	assert.Equal(t, "rdma_accept", verb.Verb)
	assert.Contains(t, verb.Object, "127.0.0.2:7471")
	assert.Equal(t, ibv.QPS_RTS, request.QP().State())
	require.NoError(t, client.Establish())
	e, err := request.Event(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.CM_EVENT_ESTABLISHED, e.Type)
	require.NoError(t, client.Close())
}

func keepChannel(t *testing.T, f *soft.Fabric) *EventChannel {
	t.Helper()
	ch, err := CreateEventChannelOn(f)
	return keep(t, ch, err)
}

// TestSoftPassivePeerLoss checks the documentation of ID about a lost peer.
func TestSoftPassivePeerLoss(t *testing.T) {
	a, b, ma, mb := connectedWithMemory(t)
	require.NoError(t, b.PostRecv(7, mb.Bytes(), mb))
	require.NoError(t, b.Migrate(nil))
	require.NoError(t, ma.Close())
	require.NoError(t, a.Close())
	e, err := b.Event(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.CM_EVENT_DISCONNECTED, e.Type)
	n, err := b.QP().RecvCQ().Poll(make([]ibv.WC, 1))
	require.NoError(t, err)
	assert.Zero(t, n, "receives stay posted")
	require.NoError(t, b.Disconnect(timeout(t)))
	wc, err := b.GetRecvComp(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	assert.EqualValues(t, 7, wc.WRID)
	require.NoError(t, b.QP().Close())
	require.NoError(t, mb.Close())
}

// TestSoftEventsAreErrors: Event.Err converts an event that ends an operation of an asynchronous ID to the error that a
// synchronous one returns. It converts other events to nil.
func TestSoftEventsAreErrors(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	id := s.withQP(s.resolved())
	require.NoError(t, id.Connect(timeout(t), nil, nil)) // no listener
	err := s.event(s.activeChannel, rdmacm.CM_EVENT_REJECTED).Err("rdma_connect")
	var rejected *EventError
	require.ErrorAs(t, err, &rejected)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.ErrorContains(t, err, "rdma_connect: ID 127.0.0.1:")
	assert.ErrorContains(t, err, "no listener in this process, and soft1 reaches no other")
	assert.Contains(t, id.NoAnswerHint(), "check that its program calls Accept")
	require.NoError(t, id.WriteEvent(5, 0))
	assert.NoError(t, s.event(s.activeChannel, rdmacm.CM_EVENT_USER).Err("rdma_connect"), "the status is the program's")
	assert.NoError(t, Event{}.Err(""))
}
