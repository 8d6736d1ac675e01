// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

var allOpcodes = append([]ibv.WROpcode{ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE, ibv.WR_DRIVER1}, documentedOpcodes...)

// TestWRPostMatchesPage compares the answers with the page, apart from corrected errors.
func TestWRPostMatchesPage(t *testing.T) {
	page := table(t, "wr_post")
	require.Len(t, page.Rows, 12)
	opcodes := map[string]ibv.WROpcode{}
	for _, op := range allOpcodes {
		opcodes[strings.TrimPrefix(op.String(), "IBV_WR_")] = op
	}
	for _, row := range page.Rows {
		op := opcodes[row.Name]
		assert.Equal(t, row.Cells[0], ibv.WRBuilder(op).Builder)
		listed := strings.Split(strings.ReplaceAll(row.Cells[1], "SRC SEND", "XRC_SEND"), ", ")
		for _, qpt := range documentedTypes {
			want := ibv.AnswerNo
			for _, name := range listed {
				if "IBV_QPT_"+name == qpt.String() {
					want = ibv.AnswerYes
				}
			}
			assert.Equal(t, want, ibv.WRPost(qpt, op).Answer, "%v on %v", op, qpt)
		}
	}
	assert.Contains(t, ibv.WRPost(ibv.QPT_XRC_SEND, ibv.WR_SEND_WITH_IMM).Note, `"SRC SEND"`)
	assert.Contains(t, ibv.WRPost(ibv.QPT_UD, ibv.WR_FLUSH).Note, `"RD"`)
	assert.Contains(t, ibv.WRPost(ibv.QPT_RC, ibv.WR_FLUSH).Note, "Data = ibv_wr_set_sge",
		"the note has the page's text")
}

// TestWRPostAgainstPostSend checks that both ways to post support the same operations, apart from those only in
// builders.
func TestWRPostAgainstPostSend(t *testing.T) {
	for _, op := range documentedOpcodes {
		for _, qpt := range append([]ibv.QPType{ibv.QPT_XRC_RECV, ibv.QPT_DRIVER}, documentedTypes...) {
			assert.Equal(t, ibv.PostSendValidity(qpt, op).Answer, ibv.WRPost(qpt, op).Answer, "%v on %v", op, qpt)
		}
	}
	for _, op := range []ibv.WROpcode{ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE} {
		assert.Equal(t, ibv.AnswerYes, ibv.WRPost(ibv.QPT_RC, op).Answer)
		assert.Equal(t, ibv.AnswerNo, ibv.WRPost(ibv.QPT_UC, op).Answer)
		assert.Equal(t, ibv.AnswerNo, ibv.WRPost(ibv.QPT_UD, op).Answer)
	}
	assert.Contains(t, ibv.WRPost(ibv.QPT_XRC_SEND, ibv.WR_FLUSH).Note, "another source says no")
	assert.Equal(t, ibv.AnswerNotInVerb, ibv.WRPost(ibv.QPT_RC, ibv.WR_DRIVER1).Answer)
}

func TestWRPostSetters(t *testing.T) {
	sge := ibv.WRSetSGE | ibv.WRSetSGEList
	inline := ibv.WRSetInlineData | ibv.WRSetInlineDataList
	for _, c := range []struct {
		qpt           ibv.QPType
		op            ibv.WROpcode
		data, address ibv.WRSetters
	}{
		{ibv.QPT_RC, ibv.WR_SEND, sge | inline, 0},
		{ibv.QPT_UD, ibv.WR_SEND_WITH_IMM, sge | inline, ibv.WRSetUDAddr},
		{ibv.QPT_XRC_SEND, ibv.WR_RDMA_WRITE, sge | inline, ibv.WRSetXRCSRQN},
		{ibv.QPT_XRC_SEND, ibv.WR_RDMA_READ, sge, ibv.WRSetXRCSRQN},
		{ibv.QPT_RC, ibv.WR_ATOMIC_FETCH_AND_ADD, sge, 0},
		{ibv.QPT_RAW_PACKET, ibv.WR_TSO, sge, 0},
		{ibv.QPT_XRC_SEND, ibv.WR_LOCAL_INV, 0, 0},
		{ibv.QPT_RC, ibv.WR_BIND_MW, 0, 0},
		{ibv.QPT_RC, ibv.WR_FLUSH, 0, 0},
		{ibv.QPT_RC, ibv.WR_ATOMIC_WRITE, 0, 0},
	} {
		v := ibv.WRPost(c.qpt, c.op)
		assert.Equal(t, c.data, v.Data, "%v on %v", c.op, c.qpt)
		assert.Equal(t, c.address, v.Address, "%v on %v", c.op, c.qpt)
	}
	assert.Equal(t, "ibv_wr_set_sge|ibv_wr_set_xrc_srqn", (ibv.WRSetSGE | ibv.WRSetXRCSRQN).String())
}

// TestWRBuilder checks that each opcode has its own builder and flag with corresponding names.
func TestWRBuilder(t *testing.T) {
	seen := map[ibv.QPCreateSendOpsFlags]bool{}
	for _, op := range allOpcodes {
		v := ibv.WRBuilder(op)
		if op == ibv.WR_DRIVER1 {
			assert.Equal(t, ibv.AnswerNotInVerb, v.Answer)
			continue
		}
		assert.Equal(t, ibv.AnswerYes, v.Answer)
		assert.Equal(t, strings.TrimPrefix(op.String(), "IBV_WR_"),
			strings.TrimPrefix(v.SendOps.String(), "IBV_QP_EX_WITH_"))
		assert.False(t, seen[v.SendOps])
		seen[v.SendOps] = true
	}
	assert.Len(t, seen, 13)
}

func TestWRFlagValidity(t *testing.T) {
	assert.Equal(t, ibv.AnswerYes, ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_SEND, ibv.SEND_FENCE).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.WRFlagValidity(ibv.QPT_UC, ibv.WR_SEND, ibv.SEND_FENCE).Answer)
	assert.Equal(t, ibv.AnswerNotInVerb, ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_SEND, ibv.SEND_INLINE).Answer)
	assert.Equal(t, ibv.AnswerYes, ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_FLUSH, ibv.SEND_SIGNALED).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_FLUSH, ibv.SEND_SOLICITED).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.WRFlagValidity(ibv.QPT_UD, ibv.WR_RDMA_READ, 1<<30).Answer,
		"the operation decides first")
	assert.Equal(t, ibv.AnswerUnspecified,
		ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_SEND, ibv.SEND_FENCE|ibv.SEND_SIGNALED).Answer)
	for _, qpt := range documentedTypes {
		for _, op := range documentedOpcodes {
			for _, flag := range []ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED,
				ibv.SEND_IP_CSUM} {
				assert.Equal(t, ibv.SendFlagValidity(qpt, op, flag).Answer, ibv.WRFlagValidity(qpt, op, flag).Answer,
					"%v on %v with %v", op, qpt, flag)
			}
		}
	}
}

func TestBuildersDoNotAllocate(t *testing.T) {
	var rule ibv.WRPostRule
	var builder ibv.WRBuilderRule
	var flag ibv.Validity
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		rule = ibv.WRPost(ibv.QPT_UD, ibv.WR_SEND)
		builder = ibv.WRBuilder(ibv.WR_FLUSH)
		flag = ibv.WRFlagValidity(ibv.QPT_RC, ibv.WR_SEND, 1<<20)
	}))
	_, _, _ = rule, builder, flag
}
