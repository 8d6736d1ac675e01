// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// scene has an event channel for each side.
type scene struct {
	t      *testing.T
	ch     *cm.EventChannel // connecting side
	server *cm.EventChannel
}

func newScene(t *testing.T) *scene {
	t.Helper()
	testbed.Kernel(t)
	return newSceneOn(t, backend())
}

func newSceneOn(t *testing.T, backend runtime.Backend) *scene {
	t.Helper()
	a, err := cm.CreateEventChannelOn(backend)
	keep(t, a, err)
	b, err := cm.CreateEventChannelOn(backend)
	keep(t, b, err)
	return &scene{t, a, b}
}

func (s *scene) listen(ps rdmacm.PortSpace, at netip.AddrPort) *cm.ID {
	s.t.Helper()
	l, err := s.server.CreateID(ps)
	keep(s.t, l, err)
	require.NoError(s.t, l.Bind(at))
	require.NoError(s.t, l.Listen(8))
	return l
}

// resolved returns an ID with a resolved route.
func (s *scene) resolved(ps rdmacm.PortSpace, to netip.AddrPort) *cm.ID {
	s.t.Helper()
	id, err := s.ch.CreateID(ps)
	keep(s.t, id, err)
	require.NoError(s.t, id.ResolveAddr(withTimeout(s.t), netip.AddrPort{}, to, time.Second))
	e := expect(s.t, s.ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
	assert.Same(s.t, id, e.ID)
	require.NoError(s.t, id.ResolveRoute(withTimeout(s.t), time.Second))
	expect(s.t, s.ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	return id
}

func withQP(t *testing.T, id *cm.ID) *cm.ID {
	t.Helper()
	attr := qpAttr
	if id.PortSpace() == rdmacm.PS_UDP {
		attr.QPType = ibv.QPT_UD
	}
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	return id
}
