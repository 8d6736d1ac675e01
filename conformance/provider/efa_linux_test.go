// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/efa"
)

// insideEFA has a test run again in a process over the emulated kernel with an adapter of EFA; there it returns true.
func insideEFA(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	again(t, emulated(t).As(EFA), pathEFA)
	return false
}

func openEFA(t *testing.T) *rdma.Device {
	t.Helper()
	device, err := rdma.Open(EFA.Device)
	keep(t, device, err)
	return device
}

// TestEFAQueries: what the adapter says of itself, by the verbs of all adapters and by those of EFA.
func TestEFAQueries(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	device := openEFA(t)
	caps, err := device.Query()
	require.NoError(t, err)
	assert.Equal(t, []any{uint32(0x1d0f), uint32(0xefa2), int32(4096), "0.0.0.0"},
		[]any{caps.VendorID, caps.VendorPartID, caps.MaxQPWR, string(bytes.TrimRight(caps.FWVer[:], "\x00"))})
	port, err := device.Port(1)
	require.NoError(t, err)
	assert.Equal(t, []any{ibv.PORT_ACTIVE, uint32(8192), int32(1)}, []any{port.State, port.MaxMsgSz, port.GIDTblLen})
	gid, err := device.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	assert.Equal(t, ibv.GID_TYPE_IB, ibv.GIDType(gid.GIDType))

	var own efadv.DeviceAttr
	require.NoError(t, libefa.QueryDevice(device.C(), &own, uint32(unsafe.Sizeof(own))))
	assert.Equal(t, []uint32{4096, 1 << 15, 2, 4, 32, 1 << 30}, []uint32{own.MaxSQWR, own.MaxRQWR,
		uint32(own.MaxSQSGE), uint32(own.MaxRQSGE), uint32(own.InlineBufSize), own.MaxRDMASize})
	for _, cap := range []efadv.DeviceAttrCaps{efadv.DEVICE_ATTR_CAPS_RDMA_READ, efadv.DEVICE_ATTR_CAPS_RDMA_WRITE,
		efadv.DEVICE_ATTR_CAPS_RNR_RETRY, efadv.DEVICE_ATTR_CAPS_CQ_WITH_SGID} {
		assert.NotZero(t, own.DeviceCaps&cap, cap)
	}
	pd, err := device.AllocPD()
	keep(t, pd, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	var region efadv.MRAttr
	require.NoError(t, libefa.QueryMR(mr.C(), &region, uint32(unsafe.Sizeof(region))))
	assert.Equal(t, efadv.MRAttr{ICIDValidity: 7, RecvICID: 1, RDMAReadICID: 1, RDMARecvICID: 1}, region)
	ah, err := pd.CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{DGID: gid.GID}})
	keep(t, ah, err)
	var address efadv.AHAttr
	require.NoError(t, libefa.QueryAH(ah.C(), &address, uint32(unsafe.Sizeof(address))))
	assert.NotZero(t, address.AHN)
}

var _ = efa.CreateQP
