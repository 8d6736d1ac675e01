// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/gid"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestConnectAllowsAllAccess: a connection allows every access of its type and device; the memory regions restrict it.
func TestConnectAllowsAllAccess(t *testing.T) {
	pd := softPD(t)
	const plain = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ
	for kind, want := range map[ibv.QPType]ibv.AccessFlags{ibv.QPT_RC: plain | ibv.ACCESS_REMOTE_ATOMIC,
		ibv.QPT_UD: 0} {
		e := newSoftPeer(t, pd, kind)
		peer, err := e.qp.Endpoint()
		require.NoError(t, err)
		attr, err := e.qp.ConnectAttr(peer)
		require.NoError(t, err)
		assert.Equal(t, want, attr.QPAccessFlags, "%v", kind)
	}
}

// TestConnectUsesCommonLimits: Connect uses the smaller MTU, and the number of reads and atomics that the peer accepts.
func TestConnectUsesCommonLimits(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	local, err := e.qp.Endpoint()
	require.NoError(t, err)
	require.Equal(t, ibv.MTU_4096, local.MTU)
	for mtu, want := range map[ibv.MTU]ibv.MTU{0: ibv.MTU_4096, ibv.MTU_256: ibv.MTU_256, ibv.MTU_4096: ibv.MTU_4096} {
		peer := local
		peer.MTU = mtu
		attr, err := e.qp.ConnectAttr(peer)
		require.NoError(t, err)
		assert.Equal(t, want, attr.PathMTU, "peer's MTU %v", mtu)
	}
	for most, want := range map[uint8]uint8{0: 1, 3: 3, DefaultReadAtomic: DefaultReadAtomic, 255: DefaultReadAtomic} {
		peer := local
		peer.ReadAtomic = most
		attr, err := e.qp.ConnectAttr(peer)
		require.NoError(t, err)
		assert.Equal(t, want, attr.MaxRdAtomic, "peer accepts %d", most)
	}
}

// TestEndpointText: a marshaled endpoint can be unmarshaled. Invalid text is rejected and leaves the endpoint
// unchanged.
func TestEndpointText(t *testing.T) {
	full := Endpoint{QPNum: 0xffffff, PSN: 0xffffff, LID: 0xffff, MTU: ibv.MTU_4096, ReadAtomic: 255, QKey: 0xffffffff}
	*full.GID.Raw() = netip.MustParseAddr("::ffff:10.0.0.1").As16()
	for _, e := range []Endpoint{{}, {QPNum: 0x12, MTU: ibv.MTU_256}, full} {
		text, err := e.MarshalText()
		require.NoError(t, err)
		var again Endpoint
		require.NoError(t, again.UnmarshalText(text))
		assert.Equal(t, e, again, "%s", text)
	}
	for _, bad := range []string{"", "psn=1", "qpn", "qpn=-1", "qpn=0x1000000", "qpn=1 psn=0x1000000", "qpn=1 mtu=1",
		"qpn=1 mtu=8192", "qpn=1 gid=", "qpn=1 gid=lo", "qpn=1 lid=65536", "qpn=1 rd_atomic=256", "qpn=1\x00"} {
		e := full
		assert.Error(t, e.UnmarshalText([]byte(bad)), bad)
		assert.Equal(t, full, e, bad)
	}
	var e Endpoint
	require.NoError(t, e.UnmarshalText([]byte("of=tomorrow qpn=7")))
	assert.Equal(t, Endpoint{QPNum: 7}, e)
}

// TestSourceGID: among entries with the same GID, Connect uses the one with the selected type, interface and VLAN.
func TestSourceGID(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	local, err := e.qp.Endpoint()
	require.NoError(t, err)
	chosen, err := e.qp.device.FindGID(GIDQuery{GID: &local.GID})
	require.NoError(t, err)
	_, ok := gid.Choose(gid.Query(e.qp.local.source), []ibv.GIDEntry{chosen})
	assert.True(t, ok)
	other := chosen
	other.GIDType = ibv.GID_TYPE_ROCE_V1
	_, ok = gid.Choose(gid.Query(e.qp.local.source), []ibv.GIDEntry{other})
	assert.False(t, ok)
	path, err := e.qp.Path(local)
	require.NoError(t, err)
	assert.EqualValues(t, chosen.GIDIndex, path.GRH.SGIDIndex)

	vlan := uint16(7)
	source := sourceOf(chosen, GIDQuery{Interface: "eth0.7", VLAN: &vlan})
	assert.Equal(t, "with port 1, type IBV_GID_TYPE_ROCE_V2, interface eth0.7, VLAN 7, GID ::ffff:127.0.0.1",
		source.String())
}

// TestConnectErrorNamesAttribute: the error names the wrong attribute and suggests a valid value.
func TestConnectErrorNamesAttribute(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	for want, change := range map[string]func(*ibv.QPAttr){
		"port_num is 9; it must be from 1 to 1":                              func(a *ibv.QPAttr) { a.PortNum = 9 },
		"pkey_index is 999; it must be from 0 to 0":                          func(a *ibv.QPAttr) { a.PKeyIndex = 999 },
		"path_mtu is 6; it must be from IBV_MTU_256 (1) to IBV_MTU_4096 (5)": func(a *ibv.QPAttr) { a.PathMTU = 6 },
		"max_rd_atomic is 255; it must be from 0 to 128": func(a *ibv.QPAttr) {
			a.MaxRdAtomic = 255
		},
		"min_rnr_timer is 32; it must be from 0 to 31": func(a *ibv.QPAttr) {
			a.MinRNRTimer = 32
		},
		"timeout is 32; it must be from 0 to 31": func(a *ibv.QPAttr) { a.Timeout = 32 },
		"retry_cnt is 8; it must be from 0 to 7": func(a *ibv.QPAttr) { a.RetryCnt = 8 },
		"rnr_retry is 8; it must be from 0 to 7": func(a *ibv.QPAttr) { a.RNRRetry = 8 },
		"dest_qp_num is 16777216; it must be from 0 to 16777215": func(a *ibv.QPAttr) {
			a.DestQPNum = 1 << 24
		},
		"this flag applies to memory": func(a *ibv.QPAttr) {
			a.QPAccessFlags = ibv.ACCESS_ZERO_BASED
		},
		"no entry 200 (sgid_index)": func(a *ibv.QPAttr) {
			a.AHAttr.GRH.SGIDIndex = 200
		},
		"a path on Ethernet must be global": func(a *ibv.QPAttr) {
			a.AHAttr.IsGlobal = 0
		},
		"the zero GID": func(a *ibv.QPAttr) {
			a.AHAttr.GRH.DGID = ibv.GID{}
		},
	} {
		local, err := e.qp.Endpoint()
		require.NoError(t, err)
		attr, err := e.qp.ConnectAttr(local)
		require.NoError(t, err)
		change(attr)
		err = e.qp.ConnectWith(attr)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, want)
		require.Equal(t, ibv.QPS_RESET, e.qp.State(), "Connect can be called again")
	}
	err := e.qp.Modify(&ibv.QPAttr{CurQPState: ibv.QPS_RTS, QPState: ibv.QPS_SQD}, ibv.QP_STATE|ibv.QP_CUR_STATE)
	assert.ErrorContains(t, err, "in RESET, not in cur_qp_state RTS")
	err = e.qp.Modify(&ibv.QPAttr{QPState: 77}, ibv.QP_STATE)
	assert.ErrorContains(t, err, "unknown state 77 (qp_state)")
	_, err = e.qp.PD().CreateAH(&ibv.AHAttr{PortNum: 7})
	assert.ErrorContains(t, err, "port 7, which the device does not have")
}

// TestPathsThatSomeDevicesReject: the software device accepts paths that some devices reject.
func TestPathsThatSomeDevicesReject(t *testing.T) {
	fabric, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{MTU: ibv.MTU_1024}}})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	d = keep(t, d, err)
	pd, err := d.AllocPD()
	e := newSoftPeer(t, keep(t, pd, err), ibv.QPT_RC)
	local, err := e.qp.Endpoint()
	require.NoError(t, err)
	good, err := e.qp.ConnectAttr(local)
	require.NoError(t, err)
	good.AltPortNum, good.AltAHAttr = 1, good.AHAttr
	reason := func(attr *ibv.QPAttr) string {
		mask := ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_RQ_PSN | ibv.QP_ALT_PATH
		q := refusal.QP{Device: d.refused(), C: e.qp.c, Kind: ibv.QPT_RC}
		return q.Modify(e.qp.State(), ibv.QPS_RTR, attr, mask)
	}
	assert.Empty(t, reason(good))
	for want, change := range map[string]func(*ibv.QPAttr){
		"sl is 16; it must be from 0 to 15": func(a *ibv.QPAttr) { a.AHAttr.SL = 16 },
		"grh.flow_label is 0x100000, which exceeds 20 bits": func(a *ibv.QPAttr) {
			a.AHAttr.GRH.FlowLabel = 1 << 20
		},
		"path_mtu is 4096 bytes, but the port's active_mtu is 1024": func(a *ibv.QPAttr) { a.PathMTU = ibv.MTU_4096 },
		"alt_timeout is 32; it must be from 0 to 31": func(a *ibv.QPAttr) {
			a.AltPortNum, a.AltTimeout = 1, 32
		},
		"rq_psn is 16777216; it must be from 0 to 16777215": func(a *ibv.QPAttr) { a.RQPSN = 1 << 24 },
	} {
		attr := *good
		change(&attr)
		assert.Contains(t, reason(&attr), want)
	}
}

// TestReadsNeedDepth: with max_rd_atomic 0, checks reject reads and atomic operations, which Soft-RoCE would accept but
// never execute.
func TestReadsNeedDepth(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	local, err := e.qp.Endpoint()
	require.NoError(t, err)
	attr, err := e.qp.ConnectAttr(local)
	require.NoError(t, err)
	attr.MaxRdAtomic = 0
	require.NoError(t, e.qp.ConnectWith(attr))
	const why = " with max_rd_atomic 0: the queue pair was connected without reads and atomic operations"
	b := sendBatch(t, 1, 1, 0)
	post := func(build func(b *SendBatch) SendRequest) error {
		b.Reset()
		build(b).SGE(0, 8, 0).Signaled()
		_, err := e.qp.PostSend(b)
		return err
	}
	read := func(b *SendBatch) SendRequest { return b.Read(1, 0, 0) }
	assert.ErrorContains(t, post(read), "WR 0 (id 0x1): IBV_WR_RDMA_READ"+why)
	assert.ErrorContains(t, post(func(b *SendBatch) SendRequest { return b.FetchAdd(1, 0, 0, 1) }),
		"IBV_WR_ATOMIC_FETCH_AND_ADD"+why)
	assert.ErrorContains(t, post(func(b *SendBatch) SendRequest { return b.CompareSwap(1, 0, 0, 1, 1) }),
		"IBV_WR_ATOMIC_CMP_AND_SWP"+why)
	assert.NoError(t, post(func(b *SendBatch) SendRequest { return b.Write(1, 0, 0) }))
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	require.NoError(t, e.qp.Connect(Endpoint{QPNum: local.QPNum, PSN: local.PSN, GID: local.GID}))
	assert.NoError(t, post(read), "endpoint without a read limit")
	got, _, err := e.qp.Query(ibv.QP_MAX_QP_RD_ATOMIC)
	require.NoError(t, err)
	assert.EqualValues(t, 1, got.MaxRdAtomic)
}

// TestQueriedDepth: if another library has connected a queue pair, a query updates the read limit of the checks, except
// on iWARP, where drivers may report 0.
func TestQueriedDepth(t *testing.T) {
	for transport, forbidden := range map[ibv.TransportType]bool{ibv.TRANSPORT_IB: true, ibv.TRANSPORT_IWARP: false} {
		e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
		local, err := e.qp.Endpoint()
		require.NoError(t, err)
		attr, err := e.qp.ConnectAttr(local)
		require.NoError(t, err)
		attr.MaxRdAtomic = 0
		require.NoError(t, e.qp.ConnectWith(attr))
		e.qp.limitReads(1) // the value before Connect
		e.qp.device.info.Transport = transport
		got, _, err := e.qp.Query(ibv.QP_MAX_QP_RD_ATOMIC)
		require.NoError(t, err)
		assert.Zero(t, got.MaxRdAtomic)
		b := sendBatch(t, 1, 1, 0)
		b.Read(1, 0, 0).SGE(0, 8, 0).Signaled()
		_, err = e.qp.PostSend(b)
		assert.Equal(t, forbidden, err != nil, "%v: %v", transport, err)
	}
}

// TestConnectToUnreachableGID: the error names the destination GID and the source GID.
func TestConnectToUnreachableGID(t *testing.T) {
	pd := softPD(t)
	e := newSoftPeer(t, pd, ibv.QPT_RC)
	peer, err := e.qp.Endpoint()
	require.NoError(t, err)
	from := peer.GID.String()
	*peer.GID.Raw() = netip.MustParseAddr("::ffff:10.9.9.9").As16()
	want := "the GID ::ffff:10.9.9.9 (grh.dgid) may not exist, or may not be reachable from the GID " +
		from
	assert.ErrorContains(t, e.qp.Connect(peer), want)
	path, err := e.qp.Path(peer)
	require.NoError(t, err)
	path.PortNum = 7
	_, err = pd.CreateAH(&path)
	assert.ErrorContains(t, err, "the path uses port 7, which the device does not have")
}

// TestConnectToMissingQP: Connect does not contact the peer, so it succeeds without one. The first request fails.
func TestConnectToMissingQP(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	peer, err := e.qp.Endpoint()
	require.NoError(t, err)
	peer.QPNum = 0xfffffe
	attr, err := e.qp.ConnectAttr(peer)
	require.NoError(t, err)
	attr.Timeout, attr.RetryCnt = 1, 0
	require.NoError(t, e.qp.ConnectWith(attr))
	b := sendBatch(t, 1, 1, 64)
	b.Send(1).Signaled()
	_, err = e.qp.PostSend(b)
	require.NoError(t, err)
	wcs := make([]ibv.WC, 1)
	_, err = e.cq.WaitBusy(t.Context(), wcs)
	require.NoError(t, err)
	assert.ErrorIs(t, CompletionErr(&wcs[0]), &CompletionError{Status: ibv.WC_RETRY_EXC_ERR})

	assert.Equal(t, ibv.QPS_RTS, e.qp.State())
	err = e.qp.Connect(peer)
	assert.ErrorContains(t, err, "the queue pair is in ERR on the device, because a request failed; "+
		"the program moved it to RTS")
	assert.ErrorContains(t, err, "Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE), or create a new queue "+
		"pair")
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	require.NoError(t, e.qp.Connect(peer))
	assert.ErrorContains(t, e.qp.Connect(peer), "the queue pair is in RTS; Connect requires RESET")
}

// TestConnectToOtherProcess checks that connecting soft0 to the soft0 of another process, where the first queue pair
// has the same number, is an error that names soft@ADDRESS. A connection to itself works.
func TestConnectToOtherProcess(t *testing.T) {
	device := openSoft(t)
	qp, err := device.NewRC(QPParts{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, qp.Close()) })
	peer, err := qp.Endpoint()
	require.NoError(t, err)
	peer.PSN ^= 1
	err = qp.Connect(peer)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "another process, which soft0 cannot reach; use soft@ADDRESS in each process")
	peer.PSN ^= 1
	assert.NoError(t, qp.Connect(peer))
}
