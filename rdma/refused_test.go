// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// If the device rejects the creation of an object, the error names the wrong attribute and, if known, a valid value.
func TestRefusedCreation(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	cq, err := d.CreateCQ(500, nil, 0)
	closeAtEnd(t, cq, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	dm, err := d.AllocDM(&ibv.AllocDMAttr{Length: 4096})
	closeAtEnd(t, dm, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	b := make([]byte, 64)
	at := uintptr(unsafe.Pointer(&b[0]))
	srqEx := func(kind ibv.SRQType, mask ibv.SRQInitAttrMask) func() error {
		return func() error {
			_, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: kind,
				CompMask: mask, PD: pd.Ptr(), CQ: cq.Ptr()}, QueueOptions{})
			return err
		}
	}
	qp := func(change func(a *ibv.QPInitAttr)) func() error {
		return func() error {
			a := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				Cap: ibv.QPCap{MaxSendWR: 2, MaxSendSGE: 1, MaxRecvWR: 2, MaxRecvSGE: 1}}
			change(a)
			_, err := pd.CreateQP(a, QueueOptions{})
			return err
		}
	}
	children := [2]int{pd.life.Children(), d.life.Children()}
	for want, create := range map[string]func() error{
		"unknown queue pair type ibv_qp_type(99)": qp(func(a *ibv.QPInitAttr) {
			a.QPType = 99
		}),
		"the device does not support queue pairs of type RAW_PACKET": qp(func(a *ibv.QPInitAttr) {
			a.QPType = ibv.QPT_RAW_PACKET
		}),
		"max_inline_data is 1048576, but the device grants only 1024": qp(func(a *ibv.QPInitAttr) {
			a.Cap.MaxInlineData = 1 << 20
		}),
		"max_send_sge is 1000, which exceeds the device's 32 (max_sge)": qp(func(a *ibv.QPInitAttr) {
			a.Cap.MaxSendSGE = 1000
		}),
		"max_recv_sge is 1000, which exceeds the device's 32 (max_sge)": qp(func(a *ibv.QPInitAttr) {
			a.Cap.MaxRecvSGE = 1000
		}),
		"SendCQ must be set, even for a queue pair that only receives": qp(func(a *ibv.QPInitAttr) {
			a.SendCQ = 0
		}),
		"RecvCQ must be set, even for a queue pair that only sends": qp(func(a *ibv.QPInitAttr) {
			a.RecvCQ = 0
		}),
		"no completion vector 1; the device has 1, starting at 0": func() error {
			_,
				err := d.CreateCQ(4, nil, 1)
			return err
		},
		"no completion vector -1": func() error {
			_,
				err := d.CreateCQ(4, nil, -1)
			return err
		},
		"no completion vector 7": func() error {
			_,
				err := d.CreateCQEx(&ibv.CQInitAttrEx{CQE: 4, CompVector: 7})
			return err
		},
		"does not support all of wc_flags": func() error {
			_,
				err := d.CreateCQEx(&ibv.CQInitAttrEx{CQE: 4, WCFlags: 1 << 40})
			return err
		},
		"16777216 completions exceed the device's 4194304 (max_cqe)": func() error {
			_,
				err := d.CreateCQ(1<<24, nil, 0)
			return err
		},
		"max_wr is 0; it must be from 1 to the device's": func() error {
			_,
				err := pd.CreateSRQ(ibv.SRQAttr{}, QueueOptions{})
			return err
		},
		"max_sge is 1000, which exceeds the device's 32 (max_srq_sge)": func() error {
			_,
				err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 1, MaxSGE: 1000}, QueueOptions{})
			return err
		},
		"srq_limit is 5, which exceeds the queue's 4 receives": func() error {
			return srq.Modify(&ibv.SRQAttr{SRQLimit: 5},
				ibv.SRQ_LIMIT)
		},
		"max_wr is 1048576; it must be from 1 to the device's": func() error {
			return srq.Modify(&ibv.SRQAttr{MaxWR: 1 << 20}, ibv.SRQ_MAX_WR)
		},
		"IBV_ACCESS_LOCAL_WRITE must be set too": func() error {
			_,
				err := pd.RegMR(b, ibv.ACCESS_REMOTE_WRITE)
			return err
		},
		"access 0x40000000: unknown flag 0x40000000": func() error {
			_,
				err := pd.RegMR(b, 1<<30)
			return err
		},
		"the device may not support IBV_ACCESS_ON_DEMAND": func() error { // rejected because of huge pages
			_,
				err := pd.RegImplicit(ibv.ACCESS_HUGETLB)
			return err
		},
		"the memory is empty": func() error {
			_,
				err := pd.RegAddress(0, 0, 0, 0)
			return err
		},
		"0 bytes; it must be from 1 to the device's 1": func() error {
			_,
				err := d.AllocDM(new(ibv.AllocDMAttr))
			return err
		},
		"9999999999 bytes; it must be from 1 to the": func() error {
			_,
				err := d.AllocDM(&ibv.AllocDMAttr{Length: 9999999999})
			return err
		},
		"65 bytes at offset 4032 are not inside " + dm.name + ", which has 4096": func() error {
			_,
				err := pd.RegDMMR(dm, 4032, 65, ibv.ACCESS_ZERO_BASED)
			return err
		},
		"iova 0x1 and address": func() error {
			_,
				err := pd.RegAddress(at, 64, 1, 0)
			return err
		},
		"4096 bytes at 0xfffffffffffff000 end beyond the last address": func() error {
			_,
				err := pd.RegAddress(at&^0xfff, 1<<12, ^uint64(0xfff), 0)
			return err
		},
		"is created by Device.CreateQPEx, with its domain": qp(func(a *ibv.QPInitAttr) { a.QPType = ibv.QPT_XRC_RECV }),
		"XRC_RECV is created by Device.CreateQPEx": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV}, QueueOptions{})
			return err
		},
		"the protection domain is not set (PD": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr()},
				QueueOptions{})
			return err
		},
		"type IBV_SRQT_BASIC also needs IBV_SRQ_INIT_ATTR_PD": srqEx(0, 0),
		"type IBV_SRQT_XRC also needs IBV_SRQ_INIT_ATTR_XRCD|IBV_SRQ_INIT_ATTR_CQ": srqEx(ibv.SRQT_XRC,
			ibv.SRQ_INIT_ATTR_TYPE|ibv.SRQ_INIT_ATTR_PD),
		"type IBV_SRQT_TM also needs IBV_SRQ_INIT_ATTR_TM": srqEx(ibv.SRQT_TM,
			ibv.SRQ_INIT_ATTR_TYPE|ibv.SRQ_INIT_ATTR_PD|ibv.SRQ_INIT_ATTR_CQ),
		"unknown shared receive queue type ibv_srq_type(9)": srqEx(9,
			ibv.SRQ_INIT_ATTR_TYPE|ibv.SRQ_INIT_ATTR_PD),
		"a queue pair of type RC needs a peer: use Connect": e.qp.Ready,
		"ibv_mw_type(77) is not a known type of memory window": func() error {
			_,
				err := pd.AllocMW(77)
			return err
		},
	} {
		assert.ErrorContains(t, create(), want)
	}
	assert.Equal(t, children, [2]int{pd.life.Children(), d.life.Children()}, "trial objects are destroyed")
	assert.Equal(t, 500, cq.Free())
}

// If the device reports no limit, creating a queue pair finds the excessive capacity by trial.
func TestFindsExcessiveCapacity(t *testing.T) {
	f, _, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	plain := f.Do["ibv_create_qp"]
	created, destroyed := 0, 0
	f.Do["ibv_destroy_qp"] = func([]uintptr) uintptr { destroyed++; return 0 }
	defer delete(f.Do, "ibv_destroy_qp")
	cap := ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	for want, fits := range map[string]func(c *ibv.QPCap) bool{
		"max_send_wr is 8, but the device grants only 7": func(c *ibv.QPCap) bool {
			return c.MaxSendWR < 8
		},
		"max_recv_wr is 8, but the device grants only 7": func(c *ibv.QPCap) bool {
			return c.MaxRecvWR < 8
		},
		"max_send_sge is 4, but the device grants only 3": func(c *ibv.QPCap) bool {
			return c.MaxSendSGE < 4
		},
		"max_recv_sge is 4, but the device grants only 3": func(c *ibv.QPCap) bool {
			return c.MaxRecvSGE < 4
		},
		"max_inline_data is 64, but the device grants only 28": func(c *ibv.QPCap) bool {
			return c.MaxInlineData <= 28
		},
		"max_inline_data is 64, but the device grants only 0": func(c *ibv.QPCap) bool {
			return c.MaxInlineData == 0
		},
		"ibv_create_qp: " + pd.name +
			": invalid argument": func(c *ibv.QPCap) bool { return false },
	} {
		f.Do["ibv_create_qp"] = func(a []uintptr) uintptr {
			if !fits(&ibv.Ptr[ibv.QPInitAttr](a[1]).Deref().Cap) {
				return 0
			}
			created++
			return plain(a)
		}
		created, destroyed = 0, 0
		_, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: cap},
			QueueOptions{})
		assert.ErrorContains(t, err, want)
		if strings.HasPrefix(want, "max_") {
			assert.NotZero(t, created)
			assert.Equal(t, created, destroyed, "trial objects")
		}
	}
}

// Objects that the mask selects must be set, because C dereferences them.
func TestMaskedObjectsMustBeSet(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	cq, err := d.CreateCQ(8, nil, 0)
	closeAtEnd(t, cq, err)
	for want, create := range map[string]func() error{
		"PD must be set": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				CompMask: ibv.QP_INIT_ATTR_PD}, QueueOptions{})
			return err
		},
		"XRCD must be set": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD},
				QueueOptions{})
			return err
		},
		"RWQIndTbl must be set": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{CompMask: ibv.QP_INIT_ATTR_IND_TABLE}, QueueOptions{})
			return err
		},
		"open_qp: soft0: XRCD must": func() error { _, err := d.OpenQP(&ibv.QPOpenAttr{}); return err },
		"srq_ex: soft0: PD must": func() error {
			_, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{CompMask: ibv.SRQ_INIT_ATTR_PD}, QueueOptions{})
			return err
		},
		"srq_ex: soft0: XRCD must": func() error {
			_, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{CompMask: ibv.SRQ_INIT_ATTR_XRCD}, QueueOptions{})
			return err
		},
		"srq_ex: soft0: CQ must": func() error {
			_, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{CompMask: ibv.SRQ_INIT_ATTR_CQ}, QueueOptions{})
			return err
		},
		"ParentDomain must be set": func() error {
			_, err := d.CreateCQEx(&ibv.CQInitAttrEx{CQE: 1, CompMask: ibv.CQ_INIT_ATTR_MASK_PD})
			return err
		},
		"parent_domain: soft0: PD must": func() error {
			_,
				err := d.AllocParentDomain(&ibv.ParentDomainInitAttr{})
			return err
		},
		"DMAH must be set": func() error {
			_, err := pd.RegMREx(&ibv.MRInitAttr{CompMask: ibv.REG_MR_MASK_DMAH})
			return err
		},
		"Buf must be set": func() error {
			_,
				err := pd.RegMREx(&ibv.MRInitAttr{CompMask: ibv.REG_MR_MASK_BUF})
			return err
		},
	} {
		err := create()
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
}

// Nil attributes are rejected, because C would dereference them.
func TestNilAttributes(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	pd, d := e.pd, e.pd.Device()
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	for verb, call := range map[string]func() error{
		"ibv_open_qp":                 func() error { _, err := d.OpenQP(nil); return err },
		"ibv_reg_mr_ex":               func() error { _, err := pd.RegMREx(nil); return err },
		"ibv_alloc_dm":                func() error { _, err := d.AllocDM(nil); return err },
		"ibv_create_flow_action_esp":  func() error { _, err := d.CreateFlowActionESP(nil); return err },
		"ibv_modify_flow_action_esp":  func() error { return new(FlowAction).ModifyESP(nil) },
		"ibv_modify_qp: QP":           func() error { return e.qp.ConnectWith(nil) },
		"ibv_alloc_td":                func() error { _, err := d.AllocTD(nil); return err },
		"ibv_alloc_dmah":              func() error { _, err := d.AllocDMAH(nil); return err },
		"ibv_open_xrcd":               func() error { _, err := d.OpenXRCD(nil); return err },
		"ibv_create_comp_cntr":        func() error { _, err := d.CreateCompCntr(nil); return err },
		"ibv_create_qp":               func() error { _, err := pd.CreateQP(nil, QueueOptions{}); return err },
		"ibv_create_qp_ex":            func() error { _, err := d.CreateQPEx(nil, QueueOptions{}); return err },
		"ibv_create_cq_ex":            func() error { _, err := d.CreateCQEx(nil); return err },
		"ibv_create_srq_ex":           func() error { _, err := d.CreateSRQEx(nil, QueueOptions{}); return err },
		"ibv_create_wq":               func() error { _, err := d.CreateWQ(nil, QueueOptions{}); return err },
		"ibv_alloc_parent_domain":     func() error { _, err := d.AllocParentDomain(nil); return err },
		"ibv_create_ah":               func() error { _, err := pd.CreateAH(nil); return err },
		"ibv_create_ah_from_wc":       func() error { _, err := pd.CreateAHFromWC(nil, new(ibv.GRH), 1); return err },
		"ibv_init_ah_from_wc":         func() error { _, err := d.AHAttrFromWC(new(ibv.WC), nil, 1); return err },
		"ibv_resolve_eth_l2_from_gid": func() error { _, _, err := d.ResolveMAC(nil); return err },
		"ibv_modify_cq":               func() error { return e.cq.Modify(nil) },
		"ibv_modify_srq":              func() error { return srq.Modify(nil, ibv.SRQ_LIMIT) },
		"ibv_modify_qp":               func() error { return e.qp.Modify(nil, 0) },
		"ibv_modify_qp_rate_limit":    func() error { return e.qp.ModifyRateLimit(nil) },
		"ibv_set_ece":                 func() error { return e.qp.SetECE(nil) },
	} {
		err := call()
		require.ErrorIs(t, err, syscall.EINVAL, verb)
		assert.ErrorContains(t, err, verb)
	}
}
