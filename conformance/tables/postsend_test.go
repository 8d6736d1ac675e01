// SPDX-License-Identifier: BSD-2-Clause

// Package tables tests the tables of the generated packages against the recorded man pages.
package tables

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/headers"
)

var (
	documentedTypes   = []ibv.QPType{ibv.QPT_UD, ibv.QPT_UC, ibv.QPT_RC, ibv.QPT_XRC_SEND, ibv.QPT_RAW_PACKET}
	documentedOpcodes = []ibv.WROpcode{
		ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ,
		ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW, ibv.WR_SEND_WITH_INV, ibv.WR_TSO,
	}
)

// TestPostSendMatchesPage compares the generated answers with the recorded page, cell by cell. Every answer is yes or
// no, with a source and a reason.
func TestPostSendMatchesPage(t *testing.T) {
	text, err := headers.Model(headers.Primary("rdma-core"))
	require.NoError(t, err)
	r, err := model.Decode(headers.Primary("rdma-core")+".json", text)
	require.NoError(t, err)
	require.Equal(t, "post_send", r.Tables[0].Name)
	page := map[[2]string]string{}
	for _, row := range r.Tables[0].Rows {
		for i, cell := range row.Cells {
			page[[2]string{r.Tables[0].Columns[i], row.Name}] = cell
		}
	}
	require.Len(t, page, 55)
	yes := 0
	for _, qpt := range documentedTypes {
		for _, op := range documentedOpcodes {
			v := ibv.PostSendValidity(qpt, op)
			assert.Equal(t, page[[2]string{qpt.String(), op.String()}], v.Answer.String(), "%v on %v", op, qpt)
			assert.Contains(t, v.Source, "ibv_post_send.3", "%v on %v", op, qpt)
			assert.NotEmpty(t, v.Reason)
			if v.Answer == ibv.AnswerYes {
				yes++
			}
		}
	}
	assert.Equal(t, 32, yes, "X marks of the page")
}

func TestPostSendElsewhere(t *testing.T) {
	for _, qpt := range append(documentedTypes, ibv.QPT_DRIVER, ibv.QPT_XRC_RECV) {
		for op, name := range map[ibv.WROpcode]string{ibv.WR_FLUSH: "ibv_wr_flush",
			ibv.WR_ATOMIC_WRITE: "ibv_wr_atomic_write"} {
			v := ibv.PostSendValidity(qpt, op)
			assert.Equal(t, ibv.AnswerNotInVerb, v.Answer)
			assert.Contains(t, v.Reason, "not in ibv_post_send")
			assert.Contains(t, v.Reason, name)
			assert.NotEmpty(t, v.Source)
		}
	}
	for _, op := range documentedOpcodes {
		assert.Equal(t, ibv.AnswerNo, ibv.PostSendValidity(ibv.QPT_XRC_RECV, op).Answer)
		assert.Equal(t, ibv.AnswerUnspecified, ibv.PostSendValidity(ibv.QPT_DRIVER, op).Answer)
	}
	for _, qpt := range []ibv.QPType{0, 1, 5, 254, 256, 1<<32 - 1} {
		for _, op := range []ibv.WROpcode{0, 12, 13, 16, 1<<32 - 1} {
			v := ibv.PostSendValidity(qpt, op)
			assert.Equal(t, ibv.AnswerUnspecified, v.Answer)
			assert.NotEmpty(t, v.Reason)
		}
	}
}

// TestPostSendDisagreements checks that a note mentions disagreements between sources.
func TestPostSendDisagreements(t *testing.T) {
	for _, c := range []struct {
		qpt  ibv.QPType
		op   ibv.WROpcode
		want ibv.Answer
	}{{ibv.QPT_UD, ibv.WR_TSO, ibv.AnswerYes}, {ibv.QPT_UC, ibv.WR_LOCAL_INV, ibv.AnswerYes},
		{ibv.QPT_UC, ibv.WR_SEND_WITH_INV, ibv.AnswerYes}, {ibv.QPT_UD, ibv.WR_SEND_WITH_INV, ibv.AnswerNo}} {
		v := ibv.PostSendValidity(c.qpt, c.op)
		assert.Equal(t, c.want, v.Answer)
		assert.Contains(t, v.Note, "another source says")
	}
	assert.Equal(t, ibv.AnswerYes, ibv.SendFlagValidity(ibv.QPT_XRC_SEND, ibv.WR_RDMA_READ, ibv.SEND_FENCE).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.SendFlagValidity(ibv.QPT_UC, ibv.WR_SEND, ibv.SEND_FENCE).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.SendFlagValidity(ibv.QPT_RC, ibv.WR_RDMA_READ, ibv.SEND_INLINE).Answer)
	assert.NotEmpty(t, ibv.SendFlagValidity(ibv.QPT_UD, ibv.WR_SEND, ibv.SEND_IP_CSUM).Condition)
}

func TestPostSendQPTypes(t *testing.T) {
	assert.ElementsMatch(t, []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND}, ibv.PostSendQPTypes(ibv.WR_RDMA_READ))
	assert.Empty(t, ibv.PostSendQPTypes(ibv.WR_FLUSH))
	assert.Empty(t, ibv.PostSendQPTypes(99))
}

func TestNoAllocation(t *testing.T) {
	var v ibv.Validity
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		v = ibv.PostSendValidity(ibv.QPT_UC, ibv.WR_RDMA_READ)
		v = ibv.SendFlagValidity(ibv.QPT_RC, ibv.WR_SEND, ibv.SEND_FENCE)
		_ = ibv.PostSendQPTypes(ibv.WR_SEND)
	}))
	_ = v
}

func TestNamesPrint(t *testing.T) {
	assert.Equal(t, "IBV_WR_RDMA_READ", ibv.WR_RDMA_READ.String())
	assert.Equal(t, "ibv_wr_opcode(77)", ibv.WROpcode(77).String())
	assert.Equal(t, "IBV_NODE_UNKNOWN", ibv.NODE_UNKNOWN.String())
	assert.Equal(t, "ibv_node_type(-9)", ibv.NodeType(-9).String())
	assert.Equal(t, "IBV_SEND_FENCE|IBV_SEND_SIGNALED|0x4000", (ibv.SEND_FENCE | ibv.SEND_SIGNALED | 0x4000).String())
	assert.Equal(t, "0", ibv.SendFlags(0).String())
	assert.Equal(t, "IBV_RX_HASH_INNER", ibv.RX_HASH_INNER.String())
	assert.Equal(t, "IBV_MW_TYPE_2", ibv.MW_TYPE_2.String(), "an enum of 1 and 2 is not a set of flags")
	assert.Equal(t, "IBV_WC_RECV", ibv.WC_RECV.String())
	assert.Equal(t, "RDMA_DRIVER_I40IW", ibv.RDMA_DRIVER_IRDMA.String(), "a repeated value prints its first name")
}
