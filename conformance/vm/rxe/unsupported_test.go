// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// bare holds arguments for calls that must fail.
type bare struct {
	*testbed.Testbed
	cq     *ibv.CQ
	qp     *ibv.QP
	buffer *testbed.Buffer
	sge    *ibv.SGE
}

var unsupported = []struct {
	name string // verb with its variant
	call func(r *bare) error
}{
	{"ibv_open_xrcd", func(r *bare) error {
		return created(r.Testbed,
			verbs.CloseXRCD)(verbs.OpenXRCD(r.Context,
			&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1, Oflags: 0o100}))
	}},
	{"ibv_alloc_dm", func(r *bare) error {
		return created(r.Testbed, verbs.FreeDM)(verbs.AllocDM(r.Context, &ibv.AllocDMAttr{Length: 64}))
	}},
	{"ibv_alloc_null_mr", func(r *bare) error { return created(r.Testbed, verbs.DeregMR)(verbs.AllocNullMR(r.PD)) }},
	{"ibv_alloc_td", func(r *bare) error {
		return created(r.Testbed, verbs.DeallocTD)(verbs.AllocTD(r.Context, &ibv.TDInitAttr{}))
	}},
	{"ibv_alloc_parent_domain", func(r *bare) error {
		return created(r.Testbed,
			verbs.DeallocPD)(verbs.AllocParentDomain(r.Context, &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.PD)}))
	}},
	{"ibv_advise_mr", func(r *bare) error {
		return verbs.AdviseMR(r.PD, ibv.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, ibv.IB_UVERBS_ADVISE_MR_FLAG_FLUSH, r.sge,
			1)
	}},
	{"ibv_rereg_mr", func(r *bare) error {
		_, err := verbs.ReregMR(r.buffer.MR, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, local)
		return err
	}},
	{"ibv_modify_cq",
		func(r *bare) error { return verbs.ModifyCQ(r.cq, &ibv.ModifyCQAttr{AttrMask: ibv.CQ_ATTR_MODERATE}) }},
	{"ibv_query_rt_values_ex", func(r *bare) error {
		return verbs.QueryRTValuesEx(r.Context, &ibv.ValuesEx{CompMask: ibv.VALUES_MASK_RAW_CLOCK})
	}},
	{"ibv_create_flow", func(r *bare) error {
		_, err := verbs.CreateFlow(r.qp, &ibv.FlowAttr{Type: ibv.FLOW_ATTR_NORMAL, Size: 20, Port: testbed.PortNum})
		return err
	}},
	{"ibv_create_wq", func(r *bare) error {
		_, err := verbs.CreateWQ(r.Context,
			&ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 4, MaxSGE: 1, PD: ibv.PtrTo(r.PD), CQ: ibv.PtrTo(r.cq)})
		return err
	}},
	{"ibv_create_rwq_ind_table", func(r *bare) error {
		_, err := verbs.CreateRWQIndTable(r.Context, &ibv.RWQIndTableInitAttr{})
		return err
	}},
	{"ibv_create_counters",
		func(r *bare) error { _, err := verbs.CreateCounters(r.Context, &ibv.CountersInitAttr{}); return err }},
	{"ibv_open_qp", func(r *bare) error {
		_, err := verbs.OpenQP(r.Context, &ibv.QPOpenAttr{CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_TYPE,
			QPType: ibv.QPT_XRC_RECV, QPNum: r.qp.QPNum})
		return err
	}},
	{"ibv_modify_qp_rate_limit",
		func(r *bare) error { return verbs.ModifyQPRateLimit(r.qp, &ibv.QPRateLimitAttr{RateLimit: 1}) }},
	{"ibv_create_srq_ex with tag matching", func(r *bare) error {
		_, err := verbs.CreateSRQEx(r.Context, &ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD |
				ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
			SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.PD), CQ: ibv.PtrTo(r.cq),
		})
		return err
	}},
	{"ibv_query_ece", func(r *bare) error { return verbs.QueryECE(r.qp, new(ibv.ECE)) }},
	{"ibv_reg_dmabuf_mr", func(r *bare) error {
		_, err := verbs.RegDMABufMR(r.PD, 0, 4096, 0, -1, ibv.ACCESS_LOCAL_WRITE)
		return err
	}},
	{"ibv_alloc_dmah", func(r *bare) error {
		return created(r.Testbed, verbs.DeallocDMAH)(verbs.AllocDMAH(r.Context, &ibv.DMAHInitAttr{}))
	}},
	{"ibv_create_comp_cntr",
		func(r *bare) error { _, err := verbs.CreateCompCntr(r.Context, &ibv.CompCntrInitAttr{}); return err }},
	{"ibv_query_port_speed", func(r *bare) error { return verbs.QueryPortSpeed(r.Context, testbed.PortNum, new(uint64)) }},
	{"ibv_set_ece", func(r *bare) error { return verbs.SetECE(r.qp, new(ibv.ECE)) }},
	{"ibv_import_device",
		func(r *bare) error {
			return created(r.Testbed, verbs.CloseDevice)(verbs.ImportDevice(int(r.Context.CmdFD)))
		}},
	{"ibv_import_pd", func(r *bare) error {
		return created(r.Testbed, verbs.UnimportPD)(verbs.ImportPD(r.Context, r.PD.Handle))
	}},
	{"ibv_import_mr", func(r *bare) error {
		return created(r.Testbed, verbs.UnimportMR)(verbs.ImportMR(r.PD, r.buffer.MR.Handle))
	}},
	{"ibv_import_dm", func(r *bare) error { _, err := verbs.ImportDM(r.Context, 1); return err }},
	{"ibv_create_flow_action_esp", func(r *bare) error {
		_, err := verbs.CreateFlowActionESP(r.Context, &ibv.FlowActionESPAttr{})
		return err
	}},
	{"ibv_query_comp_cntr_caps",
		func(r *bare) error { return verbs.QueryCompCntrCaps(r.Context, new(ibv.CompCntrCaps)) }},
	{"ibv_get_srq_num of a queue that is not XRC",
		func(r *bare) error { return verbs.GetSRQNum(r.SRQ(8), new(uint32)) }},
	{"ibv_post_srq_ops of a queue without tag matching", func(r *bare) error {
		op, bad := &testbed.Records[ibv.OpsWR](r.Testbed, 1)[0], &testbed.Records[ibv.Ptr[ibv.OpsWR]](r.Testbed, 1)[0]
		op.Opcode = ibv.WR_TAG_SYNC
		return verbs.PostSRQOps(r.SRQ(8), op, bad)
	}},
}

// creators maps verbs to the verbs that create the objects they need.
var creators = map[string]string{
	"ibv_close_xrcd": "ibv_open_xrcd",

	"ibv_free_dm": "ibv_alloc_dm", "ibv_memcpy_to_dm": "ibv_alloc_dm", "ibv_memcpy_from_dm": "ibv_alloc_dm",
	"ibv_reg_dm_mr":           "ibv_alloc_dm",
	"ibv_dm_export_dmabuf_fd": "ibv_alloc_dm", "ibv_unimport_dm": "ibv_import_dm",
	"ibv_unimport_mr": "ibv_import_mr", "ibv_unimport_pd": "ibv_import_pd",
	"ibv_dealloc_td": "ibv_alloc_td", "ibv_dealloc_dmah": "ibv_alloc_dmah",
	"ibv_destroy_flow": "ibv_create_flow", "ibv_destroy_flow_action": "ibv_create_flow_action_esp",
	"ibv_modify_flow_action_esp": "ibv_create_flow_action_esp",
	"ibv_destroy_wq":             "ibv_create_wq", "ibv_modify_wq": "ibv_create_wq",
	"ibv_post_wq_recv":          "ibv_create_wq",
	"ibv_destroy_rwq_ind_table": "ibv_create_rwq_ind_table",
	"ibv_destroy_counters":      "ibv_create_counters", "ibv_attach_counters_point_flow": "ibv_create_counters",
	"ibv_read_counters":     "ibv_create_counters",
	"ibv_destroy_comp_cntr": "ibv_create_comp_cntr", "ibv_inc_comp_cntr": "ibv_create_comp_cntr",
	"ibv_inc_err_comp_cntr": "ibv_create_comp_cntr",
	"ibv_set_comp_cntr":     "ibv_create_comp_cntr", "ibv_set_err_comp_cntr": "ibv_create_comp_cntr",
	"ibv_read_comp_cntr":     "ibv_create_comp_cntr",
	"ibv_read_err_comp_cntr": "ibv_create_comp_cntr", "ibv_qp_attach_comp_cntr": "ibv_create_comp_cntr",
}

// TestUnsupported calls verbs that Soft-RoCE or the guest's library may lack. They must return an error and not crash.
// The software device supports some of them, and package native supports what the kernel supports.
func TestUnsupported(t *testing.T) {
	base := testbed.Open(t)
	cq := base.CQ(16)
	r := &bare{Testbed: base, cq: cq, qp: base.QP(ibv.QPT_RC, cq, cq), buffer: base.Buffer(4096, local),
		sge: &testbed.Records[ibv.SGE](base, 1)[0]}
	*r.sge = r.buffer.SGE(0, 64)
	table := results.Table{Columns: []string{"verb", "answer", "not_supported"}, Keys: 1}
	for _, v := range unsupported {
		t.Run(v.name, func(t *testing.T) {
			err := v.call(r)
			if testbed.Kernel(t) != testbed.Soft && !testbed.Native() {
				require.Error(t, err)
			}
			not := "no"
			if errors.Is(err, runtime.ErrNotSupported) {
				not = "yes"
			}
			var lacks *runtime.NotSupportedError
			if errors.As(err, &lacks) {
				assert.True(t, strings.HasPrefix(v.name, strings.TrimPrefix(lacks.Function, "_")), "%s is not %s",
					lacks.Function, v.name)
			}
			table.Rows = append(table.Rows, []string{v.name, answer(err), not})
		})
	}
	check(t, "unsupported", table)
}
