// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/headers"
)

var (
	movable = []ibv.QPType{ibv.QPT_UD, ibv.QPT_UC, ibv.QPT_RC, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV, ibv.QPT_RAW_PACKET}
	states  = []ibv.QPState{ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QPS_SQE,
		ibv.QPS_ERR}
)

// transitions are the valid transitions, the same for every type.
var transitions = map[ibv.QPState][]ibv.QPState{
	ibv.QPS_RESET: {ibv.QPS_RESET, ibv.QPS_INIT},
	ibv.QPS_INIT:  {ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_ERR},
	ibv.QPS_RTR:   {ibv.QPS_RESET, ibv.QPS_RTS, ibv.QPS_ERR},
	ibv.QPS_RTS:   {ibv.QPS_RESET, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QPS_ERR},
	ibv.QPS_SQD:   {ibv.QPS_RESET, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QPS_ERR},
	ibv.QPS_SQE:   {ibv.QPS_RESET, ibv.QPS_RTS, ibv.QPS_ERR},
	ibv.QPS_ERR:   {ibv.QPS_RESET, ibv.QPS_ERR},
}

func table(t *testing.T, name string) *model.Table {
	t.Helper()
	text, err := headers.Model(headers.Primary("rdma-core"))
	require.NoError(t, err)
	r, err := model.Decode(headers.Primary("rdma-core")+".json", text)
	require.NoError(t, err)
	for i := range r.Tables {
		if r.Tables[i].Name == name {
			return &r.Tables[i]
		}
	}
	t.Fatalf("the model has no table %s", name)
	return nil
}

// TestModifyQPMatchesPage compares the required attributes with the tables of the page, by name.
func TestModifyQPMatchesPage(t *testing.T) {
	page := table(t, "modify_qp")
	types := map[string]ibv.QPType{}
	for _, qpt := range movable {
		types[qpt.String()] = qpt
	}
	require.Len(t, page.Rows, 4)
	for _, row := range page.Rows {
		from := ibv.QPS_RESET
		for i, to := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
			require.Equal(t, page.Columns[i], to.String())
			required, _, ok := ibv.ModifyQPMask(types[row.Name], from, to)
			assert.True(t, ok)
			assert.ElementsMatch(t, strings.Split(row.Cells[i], ", "), strings.Split(required.String(), "|"),
				"%s %v → %v", row.Name, from, to)
			assert.Contains(t, ibv.ModifyQP(types[row.Name], from, to).Source,
				"ibv_modify_qp.3, rdma-core "+headers.Primary("rdma-core"))
			from = to
		}
	}
}

// TestModifyQPTransitions checks that transitions are the same for every type, that required and optional attributes do
// not overlap, and that the state is required exactly if it changes.
func TestModifyQPTransitions(t *testing.T) {
	for _, qpt := range movable {
		for _, from := range states {
			for _, to := range states {
				required, optional, ok := ibv.ModifyQPMask(qpt, from, to)
				want := false
				for _, s := range transitions[from] {
					want = want || s == to
				}
				assert.Equal(t, want, ok, "%v %v → %v", qpt, from, to)
				assert.Zero(t, required&optional, "%v %v → %v", qpt, from, to)
				if !ok {
					assert.Zero(t, required|optional)
					continue
				}
				assert.Equal(t, from != to, required&ibv.QP_STATE != 0, "%v %v → %v", qpt, from, to)
				assert.Equal(t, from == to, optional&ibv.QP_STATE != 0, "%v %v → %v", qpt, from, to)
				if optional&ibv.QP_CUR_STATE != 0 {
					assert.NotContains(t, []ibv.QPState{ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_ERR}, from)
				}
				if to == ibv.QPS_RESET && from != to || to == ibv.QPS_ERR && from != to {
					assert.Equal(t, ibv.QP_STATE, required|optional, "%v %v → %v", qpt, from, to)
				}
			}
		}
	}
}

// TestModifyQPMasks checks masks that the page does not have.
func TestModifyQPMasks(t *testing.T) {
	for _, c := range []struct {
		qpt                ibv.QPType
		from, to           ibv.QPState
		required, optional ibv.QPAttrMask
	}{
		{ibv.QPT_RC, ibv.QPS_INIT, ibv.QPS_RTR,
			ibv.QP_STATE | ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN | ibv.QP_MAX_DEST_RD_ATOMIC |
				ibv.QP_MIN_RNR_TIMER,
			ibv.QP_ALT_PATH | ibv.QP_ACCESS_FLAGS | ibv.QP_PKEY_INDEX},
		{ibv.QPT_XRC_SEND, ibv.QPS_INIT, ibv.QPS_RTR,
			ibv.QP_STATE | ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN,
			ibv.QP_ALT_PATH | ibv.QP_ACCESS_FLAGS | ibv.QP_PKEY_INDEX},
		{ibv.QPT_XRC_RECV, ibv.QPS_RTR, ibv.QPS_RTS, ibv.QP_STATE | ibv.QP_TIMEOUT | ibv.QP_SQ_PSN,
			ibv.QP_CUR_STATE | ibv.QP_ALT_PATH | ibv.QP_ACCESS_FLAGS | ibv.QP_MIN_RNR_TIMER | ibv.QP_PATH_MIG_STATE},
		{ibv.QPT_UD, ibv.QPS_SQE, ibv.QPS_RTS, ibv.QP_STATE, ibv.QP_CUR_STATE | ibv.QP_QKEY},
		{ibv.QPT_RC, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QP_STATE, ibv.QP_EN_SQD_ASYNC_NOTIFY},
		{ibv.QPT_RAW_PACKET, ibv.QPS_RTS, ibv.QPS_RTS, 0, ibv.QP_STATE | ibv.QP_RATE_LIMIT},
		{ibv.QPT_RC, ibv.QPS_SQD, ibv.QPS_SQD, 0, ibv.QP_STATE | ibv.QP_PORT | ibv.QP_AV | ibv.QP_TIMEOUT |
			ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY |
			ibv.QP_MAX_QP_RD_ATOMIC | ibv.QP_MAX_DEST_RD_ATOMIC | ibv.QP_ALT_PATH | ibv.QP_ACCESS_FLAGS |
			ibv.QP_PKEY_INDEX | ibv.QP_MIN_RNR_TIMER | ibv.QP_PATH_MIG_STATE},
	} {
		required, optional, ok := ibv.ModifyQPMask(c.qpt, c.from, c.to)
		assert.True(t, ok)
		assert.Equal(t, c.required, required, "%v %v → %v", c.qpt, c.from, c.to)
		assert.Equal(t, c.optional, optional, "%v %v → %v", c.qpt, c.from, c.to)
	}
}

func TestModifyQPDisagreements(t *testing.T) {
	assert.Contains(t, ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_RTS, ibv.QPS_SQD).Note, "another source says no: mlx5")
	assert.Contains(t, ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_RESET, ibv.QPS_ERR).Note, "another source says yes: mlx5")
	assert.Contains(t, ibv.ModifyQP(ibv.QPT_UD, ibv.QPS_RTS, ibv.QPS_RTS).Note, "IBV_QP_CAP")
	assert.Contains(t, ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_INIT, ibv.QPS_RTR).Condition, "IBV_DEVICE_AUTO_PATH_MIG")
	for _, s := range states {
		assert.Equal(t, ibv.AnswerUnspecified, ibv.ModifyQP(ibv.QPT_DRIVER, ibv.QPS_RESET, s).Answer)
	}
	for _, v := range []ibv.ModifyQPRule{ibv.ModifyQP(99, ibv.QPS_INIT, ibv.QPS_RTR),
		ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_UNKNOWN, ibv.QPS_RTR), ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_INIT, 1<<31)} {
		assert.Equal(t, ibv.AnswerUnspecified, v.Answer)
		assert.NotEmpty(t, v.Reason)
	}
}

func TestPostInState(t *testing.T) {
	for state, want := range map[ibv.QPState][2]ibv.Answer{
		ibv.QPS_RESET: {ibv.AnswerNo, ibv.AnswerNo}, ibv.QPS_INIT: {ibv.AnswerNo, ibv.AnswerYes},
		ibv.QPS_RTR: {ibv.AnswerNo, ibv.AnswerYes},
		ibv.QPS_RTS: {ibv.AnswerYes, ibv.AnswerYes}, ibv.QPS_SQD: {ibv.AnswerYes, ibv.AnswerYes},
		ibv.QPS_SQE: {ibv.AnswerYes, ibv.AnswerYes},
		ibv.QPS_ERR: {ibv.AnswerYes, ibv.AnswerYes},
	} {
		send, recv := ibv.PostInState(state, ibv.WorkQueueSend), ibv.PostInState(state, ibv.WorkQueueRecv)
		assert.Equal(t, want, [2]ibv.Answer{send.Answer, recv.Answer}, state)
		assert.NotEmpty(t, send.Outcome)
		assert.NotEmpty(t, recv.Outcome)
	}
	assert.Contains(t, ibv.PostInState(ibv.QPS_ERR, ibv.WorkQueueSend).Outcome, "IBV_WC_WR_FLUSH_ERR")
	assert.Equal(t, "receive queue", ibv.WorkQueueRecv.String())
	assert.Equal(t, ibv.AnswerUnspecified, ibv.PostInState(ibv.QPS_RTS, 7).Answer)
}

func TestStatesDoNotAllocate(t *testing.T) {
	var rule ibv.ModifyQPRule
	var post ibv.PostRule
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		rule = ibv.ModifyQP(ibv.QPT_RC, ibv.QPS_INIT, ibv.QPS_RTR)
		rule = ibv.ModifyQP(77, ibv.QPS_INIT, ibv.QPS_RTR)
		rule.Required, rule.Optional, _ = ibv.ModifyQPMask(ibv.QPT_UD, ibv.QPS_RTR, ibv.QPS_RTS)
		post = ibv.PostInState(ibv.QPS_SQD, ibv.WorkQueueSend)
	}))
	_, _ = rule, post
}
