// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Device has one object of each kind, linked with each other, with recording functions in every slot: a QP with and one
// without the extended slots, and a CQ of each kind. All are in one block of memory outside the Go heap. Objects that
// the stub's headers lack are nil.
type Device struct {
	VerbsContext *ibv.VerbsContext // members outside SZ are zero: the provider is older
	Context      *ibv.Context
	Device       *ibv.Device
	CompChannel  *ibv.CompChannel
	PD           *ibv.PD
	CQ           *ibv.CQ
	CQEx         *ibv.CQEx
	SRQ          *ibv.SRQ
	WQ           *ibv.WQ
	QP           *ibv.QP
	QPEx         *ibv.QPEx
	MR           *ibv.MR
	MW           *ibv.MW
	AH           *ibv.AH
	XRCD         *ibv.XRCD
	TD           *ibv.TD
	DM           *ibv.DM
	MLX5QPEx     *mlx5dv.QPEx
	EFAQP        *efadv.QP
	EFACQ        *efadv.CQ
	CMID         *rdmacm.CMID

	stub   *Stub
	memory *offheap.Mapping
}

// New creates a device. It is freed when the test ends.
func (s *Stub) New(t testing.TB) *Device {
	t.Helper()
	memory, err := offheap.Map(s.size, offheap.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { memory.Close() })
	d := &Device{stub: s, memory: memory}
	f := runtime.Function{Name: "stub_world_init"}
	require.NoError(t, f.Slot(s.Symbol("stub_world_init")).Void(memory.Address()))
	find(d, "ibv_context", &d.Context)
	// members that a newer release has before the structure are in zeroed memory
	d.VerbsContext = (*ibv.VerbsContext)(unsafe.Add(unsafe.Pointer(d.Context),
		-int(unsafe.Offsetof(ibv.VerbsContext{}.Context))))
	find(d, "ibv_device", &d.Device)
	find(d, "ibv_comp_channel", &d.CompChannel)
	find(d, "ibv_pd", &d.PD)
	find(d, "ibv_cq", &d.CQ)
	find(d, "ibv_cq_ex", &d.CQEx)
	find(d, "ibv_srq", &d.SRQ)
	find(d, "ibv_wq", &d.WQ)
	find(d, "ibv_qp", &d.QP)
	find(d, "ibv_qp_ex", &d.QPEx)
	find(d, "ibv_mr", &d.MR)
	find(d, "ibv_mw", &d.MW)
	find(d, "ibv_ah", &d.AH)
	find(d, "ibv_xrcd", &d.XRCD)
	find(d, "ibv_td", &d.TD)
	find(d, "ibv_dm", &d.DM)
	find(d, "mlx5dv_qp_ex", &d.MLX5QPEx)
	find(d, "efadv_qp", &d.EFAQP)
	find(d, "efadv_cq", &d.EFACQ)
	find(d, "rdma_cm_id", &d.CMID)
	d.name()
	return d
}

// name numbers the objects.
func (d *Device) name() {
	copy(d.Device.Name[:], "stub0")
	d.Context.NumCompVectors = 1
	d.QP.QPNum, d.QPEx.QPBase.QPNum = 0x12, 0x13
	d.QP.QPType, d.QPEx.QPBase.QPType = ibv.QPT_RC, ibv.QPT_RC
	d.QP.State, d.QPEx.QPBase.State = ibv.QPS_RTS, ibv.QPS_RTS
	d.CQ.CQE, d.CQEx.CQE = 64, 64
	d.MR.LKey, d.MR.RKey = 0x1234, 0x5678
	d.MW.RKey, d.MW.Type = 0x9abc, ibv.MW_TYPE_1
	d.CMID.QPType = ibv.QPT_RC
}

func find[T any](d *Device, object string, into **T) {
	if p, ok := d.stub.places[object]; ok {
		*into = (*T)(unsafe.Pointer(&d.memory.Bytes()[p.offset]))
	}
}

// Address returns the address of an object by its structure tag; 0 if the stub's headers lack it.
func (d *Device) Address(tag string) uintptr {
	if p, ok := d.stub.places[tag]; ok {
		return d.memory.Address() + p.offset
	}
	return 0
}

// Buffer returns one of the device's Buffers buffers of BufferSize bytes, for use by a test.
func (d *Device) Buffer(i int) []byte {
	return d.memory.Bytes()[d.stub.places["buffers"].offset+uintptr(i)*BufferSize:][:BufferSize:BufferSize]
}

// Memory returns all of the device's memory.
func (d *Device) Memory() []byte { return d.memory.Bytes()[:d.stub.size] }
