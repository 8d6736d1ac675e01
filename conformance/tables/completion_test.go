// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

var allTypes = append(slices.Clone(documentedTypes), ibv.QPT_XRC_RECV)

// wcOpcodes returns the completion opcodes of requests, from SendCompletion.
func wcOpcodes() map[ibv.WCOpcode][]ibv.WROpcode {
	all := map[ibv.WCOpcode][]ibv.WROpcode{}
	for _, op := range append(slices.Clone(documentedOpcodes), ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE) {
		c := ibv.SendCompletion(op)
		all[c.Opcode] = append(all[c.Opcode], op)
	}
	return all
}

// TestSendCompletion checks that a queue pair completes with an opcode if and only if a corresponding operation may be
// posted.
func TestSendCompletion(t *testing.T) {
	for wc, ops := range wcOpcodes() {
		require.NotEmpty(t, ops)
		for _, qpt := range allTypes {
			posted := slices.ContainsFunc(ops,
				func(op ibv.WROpcode) bool { return ibv.PostSendValidity(qpt, op).Answer == ibv.AnswerYes })
			if wc == ibv.WC_FLUSH || wc == ibv.WC_ATOMIC_WRITE { // only posted with builders
				posted = qpt == ibv.QPT_RC || qpt == ibv.QPT_XRC_SEND
			}
			kind := ibv.WCKindOf(wc, qpt)
			assert.Equal(t, posted, kind.Answer == ibv.AnswerYes, "%v on %v", wc, qpt)
			if posted {
				fetched := wc == ibv.WC_RDMA_READ || wc == ibv.WC_COMP_SWAP || wc == ibv.WC_FETCH_ADD
				assert.Equal(t, fetched, kind.Kind == ibv.WCKindFetched, "%v on %v", wc, qpt)
			}
		}
	}
	assert.Equal(t, ibv.WC_SEND, ibv.SendCompletion(ibv.WR_SEND_WITH_INV).Opcode)
	assert.Equal(t, ibv.WC_RDMA_WRITE, ibv.SendCompletion(ibv.WR_RDMA_WRITE_WITH_IMM).Opcode)
	assert.Equal(t, ibv.WC_DRIVER1, ibv.SendCompletion(ibv.WR_DRIVER1).Opcode)
}

func TestRecvCompletion(t *testing.T) {
	for op, want := range map[ibv.WROpcode]struct {
		opcode ibv.WCOpcode
		flags  ibv.WCFlags
	}{
		ibv.WR_SEND: {ibv.WC_RECV, 0}, ibv.WR_SEND_WITH_IMM: {ibv.WC_RECV, ibv.WC_WITH_IMM},
		ibv.WR_SEND_WITH_INV:       {ibv.WC_RECV, ibv.WC_WITH_INV},
		ibv.WR_RDMA_WRITE_WITH_IMM: {ibv.WC_RECV_RDMA_WITH_IMM, ibv.WC_WITH_IMM}, ibv.WR_TSO: {ibv.WC_RECV, 0},
	} {
		c := ibv.RecvCompletion(op)
		assert.Equal(t, ibv.AnswerYes, c.Answer, "%v", op)
		assert.Equal(t, want.opcode, c.Opcode, "%v", op)
		assert.Equal(t, want.flags, c.Flags, "%v", op)
		for _, field := range []struct {
			field ibv.WCField
			flag  ibv.WCFlags
		}{{ibv.WCFieldImmData, ibv.WC_WITH_IMM}, {ibv.WCFieldInvalidatedRKey, ibv.WC_WITH_INV}} {
			v := ibv.WCFieldValidity(field.field, ibv.WCKindReceived)
			assert.Equal(t, field.flag, v.Flag)
		}
	}
	for _, op := range []ibv.WROpcode{ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_FLUSH,
		ibv.WR_BIND_MW} {
		assert.Equal(t, ibv.AnswerNo, ibv.RecvCompletion(op).Answer, "%v", op)
	}
	assert.Contains(t, ibv.RecvCompletion(ibv.WR_SEND_WITH_IMM).Note, "ibv_wr_post.3", "the note has the page's error")
}

func TestTagMatchingCompletions(t *testing.T) {
	for op, want := range map[ibv.OpsWROpcode]ibv.WCOpcode{ibv.WR_TAG_ADD: 130, ibv.WR_TAG_DEL: 131,
		ibv.WR_TAG_SYNC: 132} {
		assert.Equal(t, want, ibv.SRQOpsCompletion(op).Opcode)
		assert.Equal(t, ibv.WCKindTagOp, ibv.WCKindOf(want, ibv.QPT_RC).Kind)
	}
	for message, want := range map[ibv.TMMessage]struct {
		opcode ibv.WCOpcode
		flags  ibv.WCFlags
		status ibv.WCStatus
	}{
		ibv.TMMessageMatched: {133, 0x60, 0}, ibv.TMMessageAnnounced: {133, 0x20, 0},
		ibv.TMMessageFetched:  {133, 0x40, 0},
		ibv.TMMessageSoftware: {133, 0x20, 23}, ibv.TMMessageUnexpected: {133, 0, 0},
		ibv.TMMessageUntagged: {134, 0, 0},
	} {
		c := ibv.TMCompletion(message)
		assert.Equal(t, want.opcode, c.Opcode, "%v", message)
		assert.Equal(t, want.flags, c.Flags, "%v", message)
		assert.Equal(t, want.status, c.Status, "%v", message)
	}
}

// TestErrorFields checks that exactly four fields are valid in every completion with an error.
func TestErrorFields(t *testing.T) {
	valid := []ibv.WCField{ibv.WCFieldWRID, ibv.WCFieldStatus, ibv.WCFieldQPNum, ibv.WCFieldVendorErr}
	for field := range ibv.WCFieldTMInfo + 1 {
		want := ibv.AnswerNo
		if slices.Contains(valid, field) {
			want = ibv.AnswerYes
		}
		v := ibv.WCFieldValidity(field, ibv.WCKindError)
		assert.Equal(t, want, v.Answer, "%v", field)
		assert.Contains(t, v.Source, "ibv_poll_cq.3")
	}
	assert.Zero(t, ibv.WCKindError, "unknown kinds are treated as an error: the fewest fields")
	assert.Equal(t, ibv.AnswerYes, ibv.WCFieldValidity(ibv.WCFieldSrcQP, ibv.WCKindDatagram).Answer)
	assert.Equal(t, ibv.AnswerNo, ibv.WCFieldValidity(ibv.WCFieldSrcQP, ibv.WCKindReceived).Answer)
	assert.Equal(t, ibv.WC_EX_WITH_BYTE_LEN, ibv.WCFieldValidity(ibv.WCFieldByteLen, ibv.WCKindReceived).Request)
	assert.Equal(t, ibv.AnswerNeedsCapability, ibv.WCFieldValidity(ibv.WCFieldCompletionTS, ibv.WCKindSent).Answer)
}

// TestWCStatus checks that statuses that do not occur keep every state, and that retries belong to services with
// acknowledgements.
func TestWCStatus(t *testing.T) {
	types := append(slices.Clone(allTypes), ibv.QPT_DRIVER)
	for status := range ibv.WC_TM_RNDV_INCOMPLETE + 1 {
		v := ibv.WCStatusMeaning(status)
		assert.NotEmpty(t, v.Meaning, "%v", status)
		assert.NotEmpty(t, v.Causes, "%v", status)
		assert.Equal(t, status == ibv.WC_SUCCESS, v.Detector == ibv.WCDetectorNone, "%v", status)
		for _, qpt := range types {
			for _, queue := range []ibv.WorkQueue{ibv.WorkQueueSend, ibv.WorkQueueRecv} {
				s := ibv.StateAfterCompletion(status, queue, qpt)
				if v.Answer == ibv.AnswerNo || status == ibv.WC_SUCCESS || status == ibv.WC_WR_FLUSH_ERR {
					assert.Equal(t, ibv.AnswerNo, s.Answer, "%v on %v", status, qpt)
				}
				if s.Answer == ibv.AnswerYes {
					assert.Contains(t, []ibv.QPState{ibv.QPS_ERR, ibv.QPS_SQE}, s.State)
					assert.Equal(t, s.State == ibv.QPS_SQE, queue == ibv.WorkQueueSend &&
						(qpt == ibv.QPT_UC || qpt == ibv.QPT_UD), "%v on %v", status, qpt)
				}
			}
		}
	}
	for _, status := range []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR, ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_REM_ACCESS_ERR} {
		assert.Equal(t, ibv.QPS_ERR, ibv.StateAfterCompletion(status, ibv.WorkQueueSend, ibv.QPT_RC).State)
		assert.Equal(t, ibv.AnswerNo, ibv.StateAfterCompletion(status, ibv.WorkQueueSend, ibv.QPT_UC).Answer)
	}
	assert.Contains(t, ibv.StateAfterCompletion(ibv.WC_LOC_PROT_ERR, ibv.WorkQueueSend, ibv.QPT_UD).Note, "rxe")
}
