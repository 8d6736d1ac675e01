// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

func TestFlowLayout(t *testing.T) {
	f, d, pd := fakePD(t)
	_, qp := fakeQP(t, pd)
	counters, err := d.CreateCounters(nil)
	require.NoError(t, err)
	action, err := d.CreateFlowActionESP(&ESP{})
	require.NoError(t, err)
	var got []byte
	f.Do["create_flow"] = func(a []uintptr) uintptr {
		assert.Equal(t, address(qp.C()), a[0])
		attr := ibv.Ptr[ibv.FlowAttr](a[1]).Deref()
		got = slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(attr)), attr.Size))
		flow := fakedevice.Object[ibv.Flow](f)
		flow.Context, flow.Handle = ibv.PtrTo(&f.Context.Context), 5
		return address(flow)
	}
	eth, udp, handle, count := new(ibv.FlowSpec), new(ibv.FlowSpec), new(ibv.FlowSpec), new(ibv.FlowSpec)
	*eth.Eth() = ibv.FlowSpecEth{Type: ibv.FLOW_SPEC_ETH}
	eth.Eth().Val.DstMAC = [6]byte{1, 2, 3, 4, 5, 6}
	*udp.TCPUDP() = ibv.FlowSpecTCPUDP{Type: ibv.FLOW_SPEC_UDP | ibv.FLOW_SPEC_INNER,
		Val: ibv.FlowTCPUDPFilter{DstPort: 4791}}
	*handle.Handle() = ibv.FlowSpecActionHandle{Type: ibv.FLOW_SPEC_ACTION_HANDLE, Action: action.Ptr()}
	*count.FlowCount() = ibv.FlowSpecCounterAction{Type: ibv.FLOW_SPEC_ACTION_COUNT, Counters: counters.Ptr()}
	flow, err := qp.CreateFlow(&ibv.FlowAttr{Type: ibv.FLOW_ATTR_NORMAL, Port: 1, Priority: 3}, eth, udp, handle, count)
	require.NoError(t, err)
	le := binary.LittleEndian
	if unsafe.Sizeof(uintptr(0)) == 8 && *(*byte)(unsafe.Pointer(&[]uint16{1}[0])) == 1 {
		require.Len(t, got, 20+40+16+16+16)
		assert.EqualValues(t, len(got), le.Uint16(got[8:]))
		assert.EqualValues(t, 4, got[12], "num_of_specs")
		at := 20
		for i, want := range []struct {
			kind ibv.FlowSpecType
			size int
		}{{ibv.FLOW_SPEC_ETH, 40}, {ibv.FLOW_SPEC_UDP | ibv.FLOW_SPEC_INNER, 16}, {ibv.FLOW_SPEC_ACTION_HANDLE, 16},
			{ibv.FLOW_SPEC_ACTION_COUNT, 16}} {
			assert.EqualValues(t, want.kind, le.Uint32(got[at:]), i)
			assert.EqualValues(t, want.size, le.Uint16(got[at+4:]), i)
			at += want.size
		}
		assert.Equal(t, []byte{1, 2, 3, 4, 5, 6}, got[26:32])
		assert.EqualValues(t, action.Ptr(), le.Uint64(got[20+40+16+8:]))
	}
	assert.Zero(t, eth.Hdr().Size, "the caller's specs are not changed")

	require.NoError(t, counters.Attach(&ibv.CounterAttachAttr{}, flow))
	later, err := d.CreateCounters(&ibv.CountersInitAttr{})
	require.NoError(t, err)
	require.NoError(t, later.Attach(&ibv.CounterAttachAttr{}, nil), "for rules created later")
	require.NoError(t, later.Attach(&ibv.CounterAttachAttr{}, flow))
	for _, o := range []interface{ Close() error }{action, counters, later, qp} {
		err := o.Close()
		assert.ErrorIs(t, err, ErrInUse)
		assert.ErrorContains(t, err, "flow 5 of QP 0x12 (RAW_PACKET)")
	}
	f.Do["read_counters"] = func(a []uintptr) uintptr {
		copy(unsafe.Slice(ibv.Ptr[uint64](a[1]).Deref(), a[2]), []uint64{10, 20})
		return 0
	}
	values := make([]uint64, 2)
	require.NoError(t, counters.Read(values, 0))
	assert.Equal(t, []uint64{10, 20}, values)
	assert.ErrorIs(t, counters.Read(nil, 0), syscall.EINVAL)
	require.NoError(t, flow.Close())
	require.NoError(t, counters.Close())
	require.NoError(t, later.Close())
	assert.ErrorIs(t, counters.Read(values, 0), ErrClosed)
	require.NoError(t, action.Close())

	_, err = qp.CreateFlow(&ibv.FlowAttr{}, handle)
	assert.ErrorContains(t, err, "spec 0: action is not an open object of fake")
	_, err = qp.CreateFlow(&ibv.FlowAttr{}, &ibv.FlowSpec{})
	assert.ErrorContains(t, err, "unknown type")
	_, err = qp.CreateFlow(nil)
	assert.ErrorIs(t, err, syscall.EINVAL)
	f.Fails["create_flow"] = syscall.EOPNOTSUPP
	_, err = qp.CreateFlow(&ibv.FlowAttr{})
	assert.ErrorIs(t, err, ErrNotSupported)
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
}

func TestESPMatchesC(t *testing.T) {
	f, d, _ := fakePD(t)
	esn := uint32(7)
	esp := &ESP{Attr: ibv.IBUverbsFlowActionESP{SPI: 9}, Keymat: &ibv.IBUverbsFlowActionESPKeymatAESGCM{KeyLen: 16},
		Replay: &ibv.IBUverbsFlowActionESPReplayBmp{Size: 32}, ESN: &esn}
	check := func(a []uintptr) {
		attr := ibv.Ptr[ibv.FlowActionESPAttr](a[1]).Deref()
		assert.EqualValues(t, 9, attr.ESPAttr.Deref().SPI)
		assert.EqualValues(t, 16, ibv.Ptr[ibv.IBUverbsFlowActionESPKeymatAESGCM](attr.KeymatPtr).Deref().KeyLen)
		assert.EqualValues(t, unsafe.Sizeof(*esp.Keymat), attr.KeymatLen)
		assert.EqualValues(t, 32, ibv.Ptr[ibv.IBUverbsFlowActionESPReplayBmp](attr.ReplayPtr).Deref().Size)
		assert.Equal(t, ibv.IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP, attr.ReplayProto)
		assert.Equal(t, ibv.FLOW_ACTION_ESP_MASK_ESN, attr.CompMask)
		assert.EqualValues(t, 7, attr.ESN)
		assert.Zero(t, attr.ESPEncap)
	}
	f.Do["create_flow_action_esp"] = func(a []uintptr) uintptr {
		check(a)
		o := fakedevice.Object[ibv.FlowAction](f)
		o.Context = ibv.PtrTo(&f.Context.Context)
		return address(o)
	}
	f.Do["modify_flow_action_esp"] = func(a []uintptr) uintptr { check(a); return 0 }
	a, err := d.CreateFlowActionESP(esp)
	require.NoError(t, err)
	require.NoError(t, a.ModifyESP(esp))
	require.NoError(t, a.Close())
	assert.ErrorIs(t, a.ModifyESP(esp), ErrClosed)
	assert.Equal(t, []string{"create_flow_action_esp", "modify_flow_action_esp", "destroy_flow_action"}, f.Took())
}

func TestCompCntrOutlivesQPs(t *testing.T) {
	f, d, pd := fakePD(t)
	_, qp := fakeQP(t, pd)
	n, err := d.CreateCompCntr(&ibv.CompCntrInitAttr{})
	require.NoError(t, err)
	f.Do["ibv_qp_attach_comp_cntr"] = func(a []uintptr) uintptr {
		assert.Equal(t, []uintptr{address(qp.C()), address(n.C())}, a[:2])
		assert.Equal(t, ibv.QP_ATTACH_COMP_CNTR_OP_SEND, ibv.Ptr[ibv.QPAttachCompCntrAttr](a[2]).Deref().OpMask)
		return 0
	}
	f.Do["ibv_read_comp_cntr"] = func(a []uintptr) uintptr { *ibv.Ptr[uint64](a[1]).Deref() = 3; return 0 }
	f.Do["ibv_read_err_comp_cntr"] = func(a []uintptr) uintptr { *ibv.Ptr[uint64](a[1]).Deref() = 4; return 0 }
	f.Do["ibv_set_comp_cntr"] = func(a []uintptr) uintptr { assert.EqualValues(t, 5, a[1]); return 0 }
	require.NoError(t, qp.AttachCompCntr(n, ibv.QP_ATTACH_COMP_CNTR_OP_SEND))
	ok, err := n.Read()
	require.NoError(t, err)
	failed, err := n.ReadErr()
	require.NoError(t, err)
	assert.Equal(t, []uint64{3, 4}, []uint64{ok, failed})
	for _, err := range []error{n.Set(5), n.SetErr(6), n.Inc(7), n.IncErr(8)} {
		require.NoError(t, err)
	}
	err = n.Close()
	assert.ErrorIs(t, err, ErrInUse)
	assert.ErrorContains(t, err, "needed by QP 0x12 (RAW_PACKET)")
	require.NoError(t, qp.Close())
	require.NoError(t, n.Close())
	assert.ErrorIs(t, n.Inc(1), ErrClosed)
	assert.Equal(t, []string{
		"ibv_create_comp_cntr", "ibv_qp_attach_comp_cntr", "ibv_read_comp_cntr", "ibv_read_err_comp_cntr",
		"ibv_set_comp_cntr", "ibv_set_err_comp_cntr", "ibv_inc_comp_cntr", "ibv_inc_err_comp_cntr",
	}, f.Took()[:8])
}
