// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/rdma"
)

// insideEFA runs a test again in a process over an emulated EFA adapter, of an older and a newer kind. In that process
// it returns true.
func insideEFA(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	e := emulated(t)
	for _, more := range []string{"0", longNumbers} {
		again(t, e.As(EFA), pathEFA, envRelease+"="+e.libraries.Release, envCapabilities+"="+more)
	}
	return false
}

// writes is the first release in which libefa supports writes and related features.
const writes = "56.1"

// envRelease is the release under test.
const envRelease = "GOVERBS_PROVIDER_RELEASE"

// longNumbers are the capabilities of an adapter that numbers requests with 64 bits. libefa 65.0 uses these numbers for
// wr_ids.
const (
	envCapabilities = "GOVERBS_EFA_CAPABILITIES"
	longNumbers     = "0x200"
)

func supports(release string) bool { return os.Getenv(envRelease) >= release }

// efaTests lists the EFA tests to run over each release. For the primary release, the tests run directly.
var efaTests = []string{"TestEFAQueries", "TestEFADatagrams", "TestSRD", "TestSRDOrder", "TestSRDFailures",
	"TestSourceGID", "TestEFAExtendedQueues"}

// efaSuite runs efaTests over a release.
func efaSuite(t *testing.T, e *Emulated) {
	t.Helper()
	tests := efaTests
	if e.libraries.Release >= writes {
		tests = append(slices.Clone(tests), "TestUnsolicited")
	}
	program := testProgram(t, e, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := e.As(EFA).Command(ctx, program, "-test.v", "-test.timeout=100s",
		"-test.run=^("+strings.Join(tests, "|")+")$")
	cmd.Env = append(cmd.Env, envInside+"="+pathEFA, envRelease+"="+e.libraries.Release)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range tests {
		assert.Contains(t, string(out), "--- PASS: "+test+" (")
	}
}

func openEFA(t *testing.T) *rdma.Device {
	t.Helper()
	var device *rdma.Device
	var err error
	if os.Getenv(envInside) == pathNative {
		device, err = rdma.OpenOn(backend(t), EFA.Device)
	} else {
		device, err = rdma.Open(EFA.Device)
	}
	keep(t, device, err)
	return device
}

// TestEFAQueries checks the attributes that the generic verbs and EFA's verbs report.
func TestEFAQueries(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	device := openEFA(t)
	caps, err := device.Query()
	require.NoError(t, err)
	assert.Equal(t, []any{uint32(0x1d0f), uint32(0xefa2), int32(4096), "1.2.3.4"},
		[]any{caps.VendorID, caps.VendorPartID, caps.MaxQPWR, string(bytes.TrimRight(caps.FWVer[:], "\x00"))})
	port, err := device.Port(1)
	require.NoError(t, err)
	assert.Equal(t, []any{ibv.PORT_ACTIVE, uint32(8192), int32(1)}, []any{port.State, port.MaxMsgSz, port.GIDTblLen})
	gid, err := device.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	assert.Equal(t, ibv.GID_TYPE_IB, ibv.GIDType(gid.GIDType))

	var deviceAttr efadv.DeviceAttr
	require.NoError(t, libefa.QueryDevice(device.C(), &deviceAttr, uint32(unsafe.Sizeof(deviceAttr))))
	assert.Equal(t, []uint32{4096, 1 << 15, 2, 4, 32, 1 << 30}, []uint32{deviceAttr.MaxSQWR, deviceAttr.MaxRQWR,
		uint32(deviceAttr.MaxSQSGE), uint32(deviceAttr.MaxRQSGE), uint32(deviceAttr.InlineBufSize), deviceAttr.MaxRDMASize})
	want := efadv.DEVICE_ATTR_CAPS_RDMA_READ | efadv.DEVICE_ATTR_CAPS_RNR_RETRY | efadv.DEVICE_ATTR_CAPS_CQ_WITH_SGID
	if supports(writes) {
		want |= efadv.DEVICE_ATTR_CAPS_RDMA_WRITE | efadv.DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV
	}
	assert.Equal(t, want, deviceAttr.DeviceCaps)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	var region efadv.MRAttr
	err = libefa.QueryMR(mr.C(), &region, uint32(unsafe.Sizeof(region)))
	if supports(writes) {
		require.NoError(t, err)
		assert.Equal(t, efadv.MRAttr{ICIDValidity: 7, RecvICID: 1, RDMAReadICID: 1, RDMARecvICID: 1}, region)
	} else {
		assert.ErrorIs(t, err, rdma.ErrNotSupported)
	}
	ah, err := pd.CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{DGID: gid.GID}})
	keep(t, ah, err)
	var address efadv.AHAttr
	require.NoError(t, libefa.QueryAH(ah.C(), &address, uint32(unsafe.Sizeof(address))))
	assert.NotZero(t, address.AHN)
}

// datagrams is two queue pairs, each with memory and an address handle for the other.
type datagrams struct {
	device *rdma.Device
	pds    [2]*rdma.PD
	qps    [2]*rdma.QP
	mrs    [2]*rdma.MR
	ahs    [2]*rdma.AH
}

const key = rdma.DefaultQKey // Q_Key of all queue pairs

var room = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 32}

func newDatagrams(t *testing.T, create func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error)) *datagrams {
	t.Helper()
	g := &datagrams{device: openEFA(t)}
	gid, err := g.device.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	for i := range g.qps {
		g.pds[i], err = g.device.AllocPD()
		keep(t, g.pds[i], err)
		channel, err := g.device.CreateCompChannel()
		keep(t, channel, err)
		cq, err := g.device.CreateCQ(64, channel, 0)
		keep(t, cq, err)
		g.mrs[i], err = g.pds[i].RegMR(make([]byte, 2*size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
			ibv.ACCESS_REMOTE_READ)
		keep(t, g.mrs[i], err)
		g.ahs[i], err = g.pds[i].CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{DGID: gid.GID}})
		keep(t, g.ahs[i], err)
		g.qps[i], err = create(g.pds[i], cq)
		keep(t, g.qps[i], err)
		if os.Getenv(envInside) != pathNative {
			assert.Equal(t, "efa", g.qps[i].SendQueue().Provider(), "the provider in use")
		}
		g.ready(t, g.qps[i], 7)
	}
	return g
}

// ready moves a queue pair to RTS. retries limits the retries of a datagram whose receiver is not ready; 7 means
// unlimited.
func (g *datagrams) ready(t *testing.T, qp *rdma.QP, retries uint8) {
	t.Helper()
	require.NoError(t, qp.Ready())
	end, err := qp.Endpoint()
	require.NoError(t, err)
	require.EqualValues(t, key, end.QKey)
	if qp.Type() == ibv.QPT_DRIVER && retries != 7 {
		// the default is 7, and only the transition to RTS changes it
		require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		attr := ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QKey: key}
		require.NoError(t, qp.Modify(&attr, ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_QKEY))
		attr.QPState = ibv.QPS_RTR
		require.NoError(t, qp.Modify(&attr, ibv.QP_STATE))
		attr.QPState, attr.RNRRetry = ibv.QPS_RTS, retries
		require.NoError(t, qp.Modify(&attr, ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_RNR_RETRY))
	}
}

// program posts a program of ibv_wr_* calls.
func program(t *testing.T, qp *rdma.QP, fill func(*rdma.WRProgram)) {
	t.Helper()
	p, err := qp.NewWRProgram()
	require.NoError(t, err)
	fill(p)
	require.NoError(t, qp.PostProgram(p))
}

func success(t *testing.T, cq *rdma.CQ, opcode ibv.WCOpcode, id uint64) ibv.WC {
	t.Helper()
	wc := next(t, cq)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, []any{opcode, id}, []any{wc.Opcode, wc.WRID})
	return wc
}

// TestEFADatagrams checks that unreliable datagrams arrive after the space for a GRH, inline and not.
func TestEFADatagrams(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newDatagrams(t, func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error) {
		return pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_UD, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: room}, rdma.QueueOptions{})
	})
	a, b := g.qps[0], g.qps[1]
	for round := range 50 {
		text := bytes.Repeat([]byte{byte(round + 1)}, round+1)
		copy(g.mrs[0].Bytes(), text)
		receive(t, b.PostRecv, g.mrs[1].SGE(0, size))
		send(t, a, func(batch *rdma.SendBatch) {
			// not received, because of its Q_Key
			batch.Send(1).Add(g.mrs[0].SGE(500, 10)).UD(g.ahs[0].Ptr(), b.Num(), key+1).Signaled()
			if round < 32 {
				batch.SendImm(2, ibv.ToBE32(77)).Inline(text).UD(g.ahs[0].Ptr(), b.Num(), key).Signaled()
			} else {
				batch.Send(2).Add(g.mrs[0].SGE(0, 1)).Add(g.mrs[0].SGE(1, uint32(round))).
					UD(g.ahs[0].Ptr(), b.Num(), key).Signaled()
			}
		})
		wc := success(t, b.RecvCQ(), ibv.WC_RECV, 100)
		assert.Equal(t, []uint32{routeHeader + uint32(round) + 1, a.Num(), b.Num()},
			[]uint32{wc.ByteLen, wc.SrcQP, wc.QPNum})
		assert.Equal(t, round < 32, wc.WCFlags&ibv.WC_WITH_IMM != 0)
		if round < 32 {
			assert.EqualValues(t, 77, wc.ImmData().Host())
		}
		assert.Equal(t, text, g.mrs[1].Bytes()[routeHeader:][:len(text)])
		success(t, a.SendCQ(), ibv.WC_SEND, 1)
		success(t, a.SendCQ(), ibv.WC_SEND, 2)
	}
}
