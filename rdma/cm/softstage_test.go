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

// stage is a fabric with a virtual clock and an event channel for each side. One goroutine runs the programs of both
// sides.
type stage struct {
	t            *testing.T
	f            *soft.Fabric
	here, there  *EventChannel
	own, of      netip.AddrPort // addresses of soft0, and of soft1 with a port
	listens      *ID
	space        rdmacm.PortSpace
	attrs        ibv.QPInitAttr
	client, peer *ID
}

func newStage(t *testing.T, ps rdmacm.PortSpace) *stage {
	t.Helper()
	return newStageOn(t, ps, soft.Options{Virtual: true})
}

func newStageOn(t *testing.T, ps rdmacm.PortSpace, o soft.Options) *stage {
	t.Helper()
	f, err := soft.New(o)
	keep(t, f, err)
	s := &stage{t: t, f: f, space: ps, own: netip.MustParseAddrPort("127.0.0.1:0"),
		of: netip.MustParseAddrPort("127.0.0.2:7471"), attrs: softAttr}
	s.here, err = CreateEventChannelOn(f)
	keep(t, s.here, err)
	s.there, err = CreateEventChannelOn(f)
	keep(t, s.there, err)
	if ps == rdmacm.PS_UDP {
		s.attrs.QPType = ibv.QPT_UD
	}
	return s
}

func (s *stage) listen(backlog int) {
	s.t.Helper()
	l, err := s.there.CreateID(s.space)
	s.listens = keep(s.t, l, err)
	require.NoError(s.t, l.Bind(s.of))
	require.NoError(s.t, l.Listen(backlog))
}

// event returns the next event of a channel. It fails unless it has type want and no other event follows.
func (s *stage) event(ch *EventChannel, want rdmacm.CMEventType) Event {
	s.t.Helper()
	e, err := ch.Event(soon(s.t))
	require.NoError(s.t, err)
	require.Equal(s.t, want, e.Type, "%v", e)
	return e
}

// success is event that also fails if the event has an error status.
func (s *stage) success(ch *EventChannel, want rdmacm.CMEventType) {
	s.t.Helper()
	require.Zero(s.t, s.event(ch, want).Status)
}

// resolved returns an ID on soft0 that has resolved the route to soft1.
func (s *stage) resolved() *ID {
	s.t.Helper()
	id, err := s.here.CreateID(s.space)
	keep(s.t, id, err)
	require.NoError(s.t, id.ResolveAddr(soon(s.t), s.own, s.of, time.Second))
	s.event(s.here, rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(s.t, id.ResolveRoute(soon(s.t), time.Second))
	s.event(s.here, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	return id
}

func (s *stage) withQP(id *ID) *ID {
	s.t.Helper()
	_, err := id.CreateQP(nil, &s.attrs, rdma.QueueOptions{})
	require.NoError(s.t, err)
	return id
}

// requested returns an ID that has sent a connection request.
func (s *stage) requested() *ID {
	s.t.Helper()
	id := s.withQP(s.resolved())
	require.NoError(s.t, id.Connect(soon(s.t), nil, nil))
	return id
}

// request returns the ID of a received request.
func (s *stage) request() *ID {
	s.t.Helper()
	return s.withQP(keep(s.t, s.event(s.there, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
}

// connect connects client and peer.
func (s *stage) connect() {
	s.t.Helper()
	s.client = s.requested()
	s.peer = s.request()
	require.NoError(s.t, s.peer.Accept(soon(s.t), nil, nil))
	s.event(s.here, rdmacm.CM_EVENT_ESTABLISHED)
	s.event(s.there, rdmacm.CM_EVENT_ESTABLISHED)
}

// elapsed returns the fabric's time since a time.
func (s *stage) elapsed(since time.Duration) time.Duration { return s.f.Now() - since }

// sixteenTimes is Linux's timeout of a request with all retransmissions.
const sixteenTimes = 16 * 4096 << 20 * time.Nanosecond
