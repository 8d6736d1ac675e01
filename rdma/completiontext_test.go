// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestCompletionText: a completion is printed in the format of ibv.WC, without values that were not read.
func TestCompletionText(t *testing.T) {
	meaning := ibv.WCStatusMeaning(ibv.WC_WR_FLUSH_ERR).Meaning
	for want, c := range map[string]Completion{
		"WR id 0x0: IBV_WC_SEND\n" + `{"wr_id":0,"status":"IBV_WC_SUCCESS","opcode":"IBV_WC_SEND"}`: {},
		"QP 0x11: WR id 0x2a: IBV_WC_RECV, 64 bytes, immediate data 0x7, IBV_WC_WITH_IMM\n" +
			`{"wr_id":42,"status":"IBV_WC_SUCCESS","qp_num":17,"opcode":"IBV_WC_RECV","byte_len":64,` +
			`"wc_flags":"IBV_WC_WITH_IMM","imm_data":7}`: {WRID: 42, QPNum: 0x11, Opcode: ibv.WC_RECV, ByteLen: 64,
			Flags: ibv.WC_WITH_IMM, Imm: ibv.ToBE32(7)},
		"WR id 0x1: IBV_WC_TM_RECV, invalidated key 0x1234, VLAN 5, flow tag 0x6, tag 0x8, IBV_WC_WITH_INV\n" +
			`{"wr_id":1,"status":"IBV_WC_SUCCESS","opcode":"IBV_WC_TM_RECV","wc_flags":"IBV_WC_WITH_INV",` +
			`"invalidated_rkey":4660,"slid":65536,"cvlan":5,"flow_tag":6,"completion_ts":9,` +
			`"tm_info":{"tag":8,"priv":0}}`: {WRID: 1, Opcode: ibv.WC_TM_RECV, Flags: ibv.WC_WITH_INV, Imm: 0x1234,
			SLID: 65536, CVLAN: 5, FlowTag: 6, Timestamp: 9, TM: ibv.WCTMInfo{Tag: 8}},
		"WR id 0x5: IBV_WC_WR_FLUSH_ERR (status 5): " + meaning + ", vendor error 0x81\n" +
			`{"wr_id":5,"status":"IBV_WC_WR_FLUSH_ERR","vendor_err":129}`: {WRID: 5, Status: ibv.WC_WR_FLUSH_ERR,
			VendorErr: 0x81},
	} {
		text, err := json.Marshal(c)
		require.NoError(t, err)
		assert.Equal(t, want, c.String()+"\n"+string(text))
		back := Completion{WRID: 9, Opcode: 9, VendorErr: 9, TM: ibv.WCTMInfo{Tag: 9}}
		require.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, c, back)
	}
	wc := ibv.WC{WRID: 42, QPNum: 0x11, Opcode: ibv.WC_RDMA_READ, ByteLen: 64}
	c := Completion{WRID: 42, QPNum: 0x11, Opcode: ibv.WC_RDMA_READ, ByteLen: 64}
	assert.Equal(t, wc.String(), c.String())
	a, err := json.Marshal(wc)
	require.NoError(t, err)
	b, err := json.Marshal(&c)
	require.NoError(t, err)
	assert.Equal(t, string(a), string(b))
}

// Immediate data that was not read is not printed.
func TestUnreadImmediateData(t *testing.T) {
	for flags, text := range map[ibv.WCFlags]string{
		ibv.WC_WITH_IMM: "WR id 0x1: IBV_WC_RECV, IBV_WC_WITH_IMM",
		ibv.WC_WITH_INV: "WR id 0x1: IBV_WC_RECV, IBV_WC_WITH_INV",
	} {
		c := Completion{WRID: 1, Opcode: ibv.WC_RECV, Flags: flags}
		assert.Equal(t, text, c.String())
		json, err := json.Marshal(c)
		require.NoError(t, err)
		assert.NotContains(t, string(json), "imm_data")
		assert.NotContains(t, string(json), "invalidated_rkey")
	}
}
