package rxe

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// TestUnsupported calls what Soft-RoCE, or the guest's library, may lack: the answer is an error, not a crash.
func TestUnsupported(t *testing.T) {
	r := rig.Open(t)
	cq := r.CQ(16)
	qp := r.QP(ibv.QPT_RC, cq, cq)
	buffer := r.Buffer(4096, ibv.ACCESS_LOCAL_WRITE)
	sge := &rig.Records[ibv.SGE](r, 1)[0]
	*sge = buffer.SGE(0, 64)
	table := results.Table{Columns: []string{"verb", "answer", "not_supported"}, Keys: 1}
	for _, v := range []struct {
		name string
		call func() error
	}{
		{"ibv_open_xrcd", func() error {
			_, err := verbs.OpenXRCD(r.Context, &ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1, Oflags: 0o100})
			return err
		}},
		{"ibv_alloc_dm", func() error { _, err := verbs.AllocDM(r.Context, &ibv.AllocDMAttr{Length: 64}); return err }},
		{"ibv_alloc_null_mr", func() error { _, err := verbs.AllocNullMR(r.PD); return err }},
		{"ibv_alloc_td", func() error { _, err := verbs.AllocTD(r.Context, &ibv.TDInitAttr{}); return err }},
		{"ibv_alloc_parent_domain", func() error {
			_, err := verbs.AllocParentDomain(r.Context, &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.PD)})
			return err
		}},
		{"ibv_advise_mr", func() error {
			return verbs.AdviseMR(r.PD, ibv.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, ibv.IB_UVERBS_ADVISE_MR_FLAG_FLUSH, sge, 1)
		}},
		{"ibv_modify_cq", func() error { return verbs.ModifyCQ(cq, &ibv.ModifyCQAttr{AttrMask: ibv.CQ_ATTR_MODERATE}) }},
		{"ibv_query_rt_values_ex", func() error {
			return verbs.QueryRtValuesEx(r.Context, &ibv.ValuesEx{CompMask: ibv.VALUES_MASK_RAW_CLOCK})
		}},
		{"ibv_create_flow", func() error {
			_, err := verbs.CreateFlow(qp, &ibv.FlowAttr{Type: ibv.FLOW_ATTR_NORMAL, Size: 20, Port: rig.PortNum})
			return err
		}},
		{"ibv_create_wq", func() error {
			_, err := verbs.CreateWQ(r.Context, &ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 4, MaxSGE: 1, PD: ibv.PtrTo(r.PD), CQ: ibv.PtrTo(cq)})
			return err
		}},
		{"ibv_create_rwq_ind_table", func() error {
			_, err := verbs.CreateRWQIndTable(r.Context, &ibv.RWQIndTableInitAttr{})
			return err
		}},
		{"ibv_create_counters", func() error { _, err := verbs.CreateCounters(r.Context, &ibv.CountersInitAttr{}); return err }},
		{"ibv_open_qp", func() error {
			_, err := verbs.OpenQP(r.Context, &ibv.QPOpenAttr{CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_TYPE, QPType: ibv.QPT_XRC_RECV, QPNum: qp.QPNum})
			return err
		}},
		{"ibv_modify_qp_rate_limit", func() error { return verbs.ModifyQPRateLimit(qp, &ibv.QPRateLimitAttr{RateLimit: 1}) }},
		{"ibv_create_srq_ex with tag matching", func() error {
			_, err := verbs.CreateSRQEx(r.Context, &ibv.SRQInitAttrEx{
				Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
				SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.PD), CQ: ibv.PtrTo(cq),
			})
			return err
		}},
		{"ibv_query_ece", func() error { return verbs.QueryECE(qp, new(ibv.ECE)) }},
		{"ibv_reg_mr_ex", func() error {
			_, err := verbs.RegMREx(r.PD, &ibv.MRInitAttr{Length: 4096, Access: ibv.ACCESS_LOCAL_WRITE})
			return err
		}},
		{"ibv_reg_dmabuf_mr", func() error {
			_, err := verbs.RegDMABufMR(r.PD, 0, 4096, 0, -1, ibv.ACCESS_LOCAL_WRITE)
			return err
		}},
		{"ibv_alloc_dmah", func() error { _, err := verbs.AllocDMAH(r.Context, &ibv.DMAHInitAttr{}); return err }},
		{"ibv_create_comp_cntr", func() error { _, err := verbs.CreateCompCntr(r.Context, &ibv.CompCntrInitAttr{}); return err }},
		{"ibv_query_port_speed", func() error { return verbs.QueryPortSpeed(r.Context, rig.PortNum, new(uint64)) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			err := v.call()
			require.Error(t, err)
			not := "no"
			if errors.Is(err, runtime.ErrNotSupported) {
				not = "yes"
			}
			var lacks *runtime.NotSupportedError
			answer := errnoName(err)
			if errors.As(err, &lacks) {
				answer = "not in the library"
				assert.Equal(t, v.name, lacks.Function)
			}
			table.Rows = append(table.Rows, []string{v.name, answer, not})
		})
	}
	check(t, "unsupported", table)
}
