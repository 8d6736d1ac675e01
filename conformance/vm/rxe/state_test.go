// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// states lists the states to which a queue pair can be moved. SQE cannot be requested, and Soft-RoCE never enters it.
var (
	states = []ibv.QPState{ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QPS_ERR}
	wanted = append(append([]ibv.QPState{}, states...), ibv.QPS_SQE)
)

// TestModifyQP measures every transition in the table of ibv_modify_qp: with the required attributes, without each of
// them, and with each optional one. Transitions that are not in the table are tried with only the state.
func TestModifyQP(t *testing.T) {
	r := testbed.Open(t)
	cq := r.CQ(16)
	table := results.Table{Columns: []string{"qp_type", "from", "to", "attributes", "modify"}, Keys: 4}
	try := func(kind ibv.QPType, from, to ibv.QPState, desc string, mask ibv.QPAttrMask) {
		t.Run(strings.Join([]string{trim(kind.String()), trim(from.String()), trim(to.String()), desc}, "/"),
			func(t *testing.T) {
				sub := r.For(t)
				qp := sub.QP(kind, cq, cq)
				sub.Bring(qp, from)
				attr := attributes(r, qp, from, to)
				err := verbs.ModifyQP(qp, &attr, mask)
				if err == nil {
					require.Equal(t, to, sub.State(qp))
				} else {
					require.Equal(t, from, sub.State(qp), "a rejected transition changed the state")
				}
				table.Rows = append(table.Rows, []string{trim(kind.String()), trim(from.String()), trim(to.String()),
					desc,
					errnoName(err)})
			})
	}
	for _, kind := range creatable {
		for _, from := range states {
			for _, to := range wanted {
				rule := ibv.ModifyQP(kind, from, to)
				required := rule.Required | ibv.QP_STATE
				try(kind, from, to, "required", required)
				if rule.Answer != ibv.AnswerYes {
					continue
				}
				for _, one := range flagsOf(rule.Required &^ ibv.QP_STATE) {
					try(kind, from, to, "without "+name(one), required&^one)
				}
				for _, one := range flagsOf(rule.Optional &^ ibv.QP_STATE) {
					try(kind, from, to, "with "+name(one), required|one)
				}
			}
		}
	}
	check(t, "modify_qp", table)
}

func name(one ibv.QPAttrMask) string { return strings.TrimPrefix(one.String(), "IBV_QP_") }

func flagsOf(mask ibv.QPAttrMask) (all []ibv.QPAttrMask) {
	for rest := uint32(mask); rest != 0; rest &= rest - 1 {
		all = append(all, 1<<bits.TrailingZeros32(rest))
	}
	return all
}

// attributes returns a value for every attribute that is valid on the device.
func attributes(r *testbed.Testbed, qp *ibv.QP, from, to ibv.QPState) ibv.QPAttr {
	return ibv.QPAttr{
		QPState: to, CurQPState: from, PathMTU: ibv.MTU_1024, PathMigState: ibv.MIG_MIGRATED, QKey: testbed.QKey, RQPSN: 1,
		SQPSN:     1,
		DestQPNum: qp.QPNum, QPAccessFlags: r.Access, Cap: testbed.Caps, AHAttr: r.AH(), AltAHAttr: r.AH(),
		PortNum: testbed.PortNum, AltPortNum: testbed.PortNum,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, MinRNRTimer: 1, Timeout: 14, AltTimeout: 14, RetryCnt: 1, RNRRetry: 1,
	}
}
