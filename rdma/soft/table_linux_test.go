// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestConnectionsTable: both ends report consistent values before, during and after traffic.
func TestConnectionsTable(t *testing.T) {
	f, addresses := wiredTwo(t, false)
	a, b := newRunner(t, f[0], "soft0", ibv.QPT_RC), newRunner(t, f[1], "soft0", ibv.QPT_RC)
	assert.Empty(t, f[0].Connections())
	a.connect(b, everyRequestMTU)
	b.connect(a, everyRequestMTU)
	local, remote := netip.MustParseAddr(addresses[0]), netip.MustParseAddr(addresses[1])
	want := soft.Connection{Device: "soft0", Type: ibv.QPT_RC, State: ibv.QPS_RTS, QPN: a.qp.Num(), PeerQPN: b.qp.Num(),
		Local: local, Peer: remote, MTU: ibv.MTU_1024, NextPSN: a.end.PSN, ExpectedPSN: b.end.PSN}
	got := f[0].Connections()[0]
	assert.NotZero(t, got.Window)
	want.Window = got.Window
	assert.Equal(t, want, got)
	a.do(b, func(p *rdma.WRProgram) rdma.WRRequest {
		return p.Write(1, b.mr.Address(), b.mr.RKey()).Add(a.mr.SGE(0, 3000)) // 3 packets
	})
	got = f[0].Connections()[0]
	want.NextPSN, want.Window = (a.end.PSN+3)&0xffffff, got.Window
	assert.Equal(t, want, got)
	assert.Equal(t, want.NextPSN, f[1].Connections()[0].ExpectedPSN)
	require.True(t, f[1].SetLink("soft0", false))
	p, err := a.qp.NewWRProgram()
	require.NoError(t, err)
	for i := range uint64(3) {
		p.Write(i, b.mr.Address(), b.mr.RKey()).Add(a.mr.SGE(0, 3000)).Signaled()
	}
	require.NoError(t, a.qp.PostProgram(p))
	got = f[0].Connections()[0]
	assert.EqualValues(t, 9, got.InFlight)
	assert.EqualValues(t, 3, got.Queued)
	waitFor(t, func() bool { return f[0].Connections()[0].SentAgain > 0 })
	text := f[0].Connections().String()
	lines := strings.Split(text, "\n")
	require.Len(t, lines, 3, text)
	assert.Contains(t, lines[1], "RC    RTS")
	assert.Contains(t, lines[1], remote.String())
	t.Log("\n" + text)
}

// TestConnectionsOfCM: connections made by the connection manager have its addresses.
func TestConnectionsOfCM(t *testing.T) {
	a := newTwoFabrics(t, rdmacm.PS_TCP, 0)
	id := a.connect(rdmacm.PS_TCP, a.at, "")
	other := a.withQP(a.keep(a.expect(a.passiveChannel, rdmacm.CM_EVENT_CONNECT_REQUEST).ID))
	require.NoError(t, other.Accept(a.timeout(), nil, nil))
	a.expect(a.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	local, remote := a.fabrics[0].Connections(), a.fabrics[1].Connections()
	require.Len(t, local, 1)
	require.Len(t, remote, 1)
	assert.Equal(t, []netip.AddrPort{id.LocalAddr(), a.at}, []netip.AddrPort{local[0].CMLocal, local[0].CMPeer})
	assert.Equal(t, []netip.AddrPort{a.at, id.LocalAddr()}, []netip.AddrPort{remote[0].CMLocal, remote[0].CMPeer})
	assert.NotZero(t, local[0].CMID)
	assert.NotEqual(t, local[0].CMID, remote[0].CMID)
}
