// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// testbed is a fabric with a virtual clock and an event channel for each side. One goroutine runs the programs of both
// sides.
type testbed struct {
	t                             *testing.T
	f                             *soft.Fabric
	activeChannel, passiveChannel *EventChannel
	local, remote                 netip.AddrPort // addresses of soft0, and of soft1 with a port
	listener                      *ID
	space                         rdmacm.PortSpace
	attrs                         ibv.QPInitAttr
	client, peer                  *ID
}

func newTestbed(t *testing.T, ps rdmacm.PortSpace) *testbed {
	t.Helper()
	return newTestbedOn(t, ps, soft.Options{Virtual: true})
}

func newTestbedOn(t *testing.T, ps rdmacm.PortSpace, o soft.Options) *testbed {
	t.Helper()
	f, err := soft.New(o)
	keep(t, f, err)
	s := &testbed{t: t, f: f, space: ps, local: netip.MustParseAddrPort("127.0.0.1:0"),
		remote: netip.MustParseAddrPort("127.0.0.2:7471"), attrs: softAttr}
	s.activeChannel, err = CreateEventChannelOn(f)
	keep(t, s.activeChannel, err)
	s.passiveChannel, err = CreateEventChannelOn(f)
	keep(t, s.passiveChannel, err)
	if ps == rdmacm.PS_UDP {
		s.attrs.QPType = ibv.QPT_UD
	}
	return s
}

func (s *testbed) listen(backlog int) {
	s.t.Helper()
	l, err := s.passiveChannel.CreateID(s.space)
	s.listener = keep(s.t, l, err)
	require.NoError(s.t, l.Bind(s.remote))
	require.NoError(s.t, l.Listen(backlog))
}

// event returns the next event of a channel. It fails unless it has type want and no other event follows.
func (s *testbed) event(ch *EventChannel, want rdmacm.CMEventType) Event {
	s.t.Helper()
	e, err := ch.Event(timeout(s.t))
	require.NoError(s.t, err)
	require.Equal(s.t, want, e.Type, "%v", e)
	return e
}

// success is event that also fails if the event has an error status.
func (s *testbed) success(ch *EventChannel, want rdmacm.CMEventType) {
	s.t.Helper()
	require.Zero(s.t, s.event(ch, want).Status)
}

// resolved returns an ID on soft0 that has resolved the route to soft1.
func (s *testbed) resolved() *ID {
	s.t.Helper()
	id, err := s.activeChannel.CreateID(s.space)
	keep(s.t, id, err)
	require.NoError(s.t, id.ResolveAddr(timeout(s.t), s.local, s.remote, time.Second))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(s.t, id.ResolveRoute(timeout(s.t), time.Second))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	return id
}

func (s *testbed) withQP(id *ID) *ID {
	s.t.Helper()
	_, err := id.CreateQP(nil, &s.attrs, rdma.QueueOptions{})
	require.NoError(s.t, err)
	return id
}

// requested returns an ID that has sent a connection request.
func (s *testbed) requested() *ID {
	s.t.Helper()
	id := s.withQP(s.resolved())
	require.NoError(s.t, id.Connect(timeout(s.t), nil, nil))
	return id
}

// request returns the ID of a received request.
func (s *testbed) request() *ID {
	s.t.Helper()
	return s.withQP(keep(s.t, s.event(s.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
}

// connect connects client and peer.
func (s *testbed) connect() {
	s.t.Helper()
	s.client = s.requested()
	s.peer = s.request()
	require.NoError(s.t, s.peer.Accept(timeout(s.t), nil, nil))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
}

// elapsed returns the fabric's time since a time.
func (s *testbed) elapsed(since time.Duration) time.Duration { return s.f.Now() - since }

// requestTimeout is Linux's timeout of a request with all retransmissions.
const requestTimeout = 16 * 4096 << 20 * time.Nanosecond
