// SPDX-License-Identifier: BSD-2-Clause

package printing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func gid(t *testing.T, text string) ibv.GID {
	t.Helper()
	g, err := ibv.ParseGID(text)
	require.NoError(t, err)
	return g
}

func TestGIDs(t *testing.T) {
	for text, want := range map[string]string{
		"fe80:0000:0000:0000:0002:c903:00a1:b2c3\n": "fe80::2:c903:a1:b2c3", "192.0.2.1": "::ffff:192.0.2.1",
		"::ffff:c000:0201": "::ffff:192.0.2.1", "::": "::", "fe800000000000000002c90300a1b2c3": "fe80::2:c903:a1:b2c3",
		"0xff12401bffff0000:0x1": "ff12:401b:ffff::1",
	} {
		g := gid(t, text)
		assert.Equal(t, want, g.String())
		assert.Equal(t, netip.MustParseAddr(want).As16(), *g.Raw())
		assert.Equal(t, want, fmt.Sprintf("%v", g))
		assert.Equal(t, want, fmt.Sprintf("%s", &g))
		entry := ibv.GIDEntry{GID: g, GIDIndex: 3, PortNum: 1, GIDType: ibv.GID_TYPE_ROCE_V2}
		out, err := json.Marshal(entry)
		require.NoError(t, err)
		assert.JSONEq(t, `{"GID":"`+want+`","GIDIndex":3,"PortNum":1,"GIDType":"IBV_GID_TYPE_ROCE_V2","NDevIfindex":0}`,
			string(out))
		var back ibv.GIDEntry
		require.NoError(t, json.Unmarshal(out, &back))
		assert.Equal(t, entry, back)
	}
	g := gid(t, "::1")
	err := json.Unmarshal([]byte(`"fe80::1%eth0"`), &g)
	assert.EqualError(t, err, `"fe80::1%eth0" is not a GID: write it as an IPv6 address without a zone `+
		`(fe80::2:c903:a1:b2c3, ::ffff:192.0.2.1), as 32 hex digits, or as its halves `+
		`(0xfe80000000000000:0x0002c90300a1b2c3)`)
	assert.Equal(t, gid(t, "::1"), g)
}

// TestAttributes checks that C structures print and marshal their members by name.
func TestAttributes(t *testing.T) {
	port := ibv.PortAttr{State: ibv.PORT_ACTIVE, MaxMTU: ibv.MTU_4096, ActiveMTU: 99,
		PortCapFlags: ibv.PORT_IP_BASED_GIDS | ibv.PORT_CM_SUP}
	text, err := json.Marshal(port)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	assert.Equal(t, []any{"IBV_PORT_ACTIVE", "IBV_MTU_4096", 99.0,
		"IBV_PORT_CM_SUP|IBV_PORT_IP_BASED_GIDS"}, []any{fields["State"], fields["MaxMTU"], fields["ActiveMTU"],
		fields["PortCapFlags"]})
	var back ibv.PortAttr
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, port, back)

	filter := ibv.FlowEthFilter{DstMAC: [6]uint8{2, 0, 0x5e, 0x10, 0, 1}, EtherType: 0x800}
	text, err = json.Marshal(filter)
	require.NoError(t, err)
	assert.JSONEq(t, `{"DstMAC":"02:00:5e:10:00:01","SrcMAC":"00:00:00:00:00:00","EtherType":2048,"VLANTag":0}`,
		string(text))
	device := ibv.DeviceAttr{NodeGUID: ibv.GUID(ibv.ToBE64(0x2c90300a1b2c3))}
	assert.Equal(t, "0002:c903:00a1:b2c3", fmt.Sprint(device.NodeGUID))
}

// completions has one completion of each kind, with its text; the second line is JSON.
func completions() map[string]ibv.WC {
	received := ibv.WC{WRID: 42, Opcode: ibv.WC_RECV, QPNum: 0x11, ByteLen: 64,
		WCFlags: ibv.WC_WITH_IMM | ibv.WC_GRH, SrcQP: 0x12}
	*received.ImmData() = ibv.ToBE32(0xabc)
	invalidated := ibv.WC{Opcode: ibv.WC_RECV, QPNum: 1, WCFlags: ibv.WC_WITH_INV}
	*invalidated.InvalidatedRKey() = 0x1234
	return map[string]ibv.WC{
		"QP 0x11: WR id 0x2a: IBV_WC_RECV, 64 bytes, from QP 0x12, immediate data 0xabc, IBV_WC_GRH|IBV_WC_WITH_IMM\n" +
			`{"wr_id":42,"status":"IBV_WC_SUCCESS","qp_num":17,"opcode":"IBV_WC_RECV","byte_len":64,` +
			`"wc_flags":"IBV_WC_GRH|IBV_WC_WITH_IMM","imm_data":2748,"src_qp":18}`: received,
		"QP 0x1: WR id 0x0: IBV_WC_RECV, 0 bytes, invalidated key 0x1234, IBV_WC_WITH_INV\n" +
			`{"wr_id":0,"status":"IBV_WC_SUCCESS","qp_num":1,"opcode":"IBV_WC_RECV","byte_len":0,` +
			`"wc_flags":"IBV_WC_WITH_INV","invalidated_rkey":4660}`: invalidated,
		"QP 0x11: WR id 0x7: IBV_WC_RDMA_WRITE\n" + // its length is undefined
			`{"wr_id":7,"status":"IBV_WC_SUCCESS","qp_num":17,"opcode":"IBV_WC_RDMA_WRITE"}`: {
			WRID: 7, Opcode: ibv.WC_RDMA_WRITE, QPNum: 0x11, ByteLen: 99},
		"QP 0x11: WR id 0x7: ibv_wc_opcode(9999), 99 bytes\n" +
			`{"wr_id":7,"status":"IBV_WC_SUCCESS","qp_num":17,"opcode":9999,"byte_len":99}`: {
			WRID: 7, Opcode: 9999, QPNum: 0x11, ByteLen: 99},
		"QP 0x11: WR id 0xffffffffffffffff: IBV_WC_RETRY_EXC_ERR (status 12): " +
			ibv.WCStatusMeaning(ibv.WC_RETRY_EXC_ERR).Meaning + ", vendor error 0x81\n" +
			`{"wr_id":18446744073709551615,"status":"IBV_WC_RETRY_EXC_ERR","qp_num":17,"vendor_err":129}`: {
			WRID: 1<<64 - 1, Status: ibv.WC_RETRY_EXC_ERR, Opcode: ibv.WC_RECV, QPNum: 0x11, ByteLen: 99,
			VendorErr: 0x81,
			WCFlags:   ibv.WC_WITH_IMM},
		"QP 0x0: WR id 0x0: ibv_wc_status(77) (status 77)\n" +
			`{"wr_id":0,"status":77,"qp_num":0,"vendor_err":0}`: {Status: 77},
	}
}

// TestPortNames: fields of a port that C declares as numbers print the names of their enumerations.
func TestPortNames(t *testing.T) {
	text := fmt.Sprintf("%+v", ibv.PortAttr{State: ibv.PORT_ACTIVE, LinkLayer: ibv.LINK_LAYER_ETHERNET,
		PhysState: ibv.IB_PORT_PHYS_STATE_LINK_UP, ActiveWidth: ibv.IB_WIDTH_4X, ActiveSpeed: ibv.IB_SPEED_EDR})
	for _, name := range []string{"LinkLayer:IBV_LINK_LAYER_ETHERNET", "PhysState:IB_PORT_PHYS_STATE_LINK_UP",
		"ActiveWidth:IB_WIDTH_4X", "ActiveSpeed:IB_SPEED_EDR"} {
		assert.Contains(t, text, name)
	}
}

func TestCompletions(t *testing.T) {
	for want, wc := range completions() {
		text, err := json.Marshal(wc)
		require.NoError(t, err)
		assert.Equal(t, want, wc.String()+"\n"+string(text))
		assert.Equal(t, wc.String(), fmt.Sprintf("%v", &wc))
		require.True(t, json.Valid(text))
		pointer, err := json.Marshal(&wc)
		require.NoError(t, err)
		assert.Equal(t, text, pointer)

		var spaced bytes.Buffer
		require.NoError(t, json.Indent(&spaced, text, " ", "\t"))
		for _, text := range []string{string(text), spaced.String(),
			`{"more":{"a,b":["}\"",1]},` + string(text[1:])} { // from a later release
			back := ibv.WC{WRID: 1, Status: 2, Opcode: 3, VendorErr: 4, ByteLen: 5, QPNum: 6, SrcQP: 7}
			require.NoError(t, json.Unmarshal([]byte(text), &back), text)
			again, err := json.Marshal(back)
			require.NoError(t, err)
			assert.JSONEq(t, string(pointer), string(again))
			assert.Equal(t, wc.String(), back.String())
		}
	}
}

// TestInvalidCompletions checks that invalid text causes a descriptive error and changes nothing.
func TestInvalidCompletions(t *testing.T) {
	for text, want := range map[string]string{
		`[]`: "is not a completion", `7`: "is not a completion", `"x"`: "is not a completion",
		`{"wr_id":-1}`: `"-1" is not a value of wr_id`, `{"wr_id":18446744073709551616}`: "is not a value of wr_id",
		`{"sl":256}`: `"256" is not a value of sl`, `{"status":"NOTHING"}`: `"NOTHING" is not a value of ibv_wc_status`,
		`{"qp_num":{"a":1}}`: "is not a value of qp_num",
	} {
		wc := ibv.WC{WRID: 7}
		assert.ErrorContains(t, json.Unmarshal([]byte(text), &wc), want, text)
		assert.Equal(t, ibv.WC{WRID: 7}, wc)
	}
	for _, text := range []string{"", "{", "}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a`,
		`{"a\`, `{:1}`, `{,}`, `{"a":1`} {
		assert.Error(t, new(ibv.WC).UnmarshalJSON([]byte(text)), "%q", text)
	}
	wc := ibv.WC{WRID: 7}
	require.NoError(t, json.Unmarshal([]byte("null"), &wc))
	assert.EqualValues(t, 7, wc.WRID)
}

// TestSmallStructures checks the text of frequently printed structures.
func TestSmallStructures(t *testing.T) {
	for want, v := range map[string]any{
		"64 bytes at 0x7f0000001000, lkey 0x1234": ibv.SGE{Addr: 0x7f0000001000, Length: 64, LKey: 0x1234},
		"max_send_wr 1, max_recv_wr 2, max_send_sge 3, max_recv_sge 4, max_inline_data 5": ibv.QPCap{MaxSendWR: 1,
			MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInlineData: 5},
		"GID fe80::1 (port 1, index 3, IBV_GID_TYPE_ROCE_V2)": ibv.GIDEntry{GID: gid(t, "fe80::1"), PortNum: 1,
			GIDIndex: 3, GIDType: ibv.GID_TYPE_ROCE_V2},
		"GID ::1 (port 2, index 0, IBV_GID_TYPE_IB, interface 4)": ibv.GIDEntry{GID: gid(t, "::1"), PortNum: 2,
			NDevIfindex: 4},
	} {
		assert.Equal(t, want, fmt.Sprint(v))
		assert.Equal(t, "["+want+"]", fmt.Sprintf("%v", []any{v}))
	}
}

// TestLogs checks that the handlers of log/slog print the same text.
func TestLogs(t *testing.T) {
	var out bytes.Buffer
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	wc := ibv.WC{WRID: 7, Opcode: ibv.WC_RDMA_WRITE, QPNum: 0x11}
	attributes := []any{"wc", wc, "gid", gid(t, "::1"), "guid", ibv.GUID(ibv.ToBE64(1)), "mac", ibv.MAC{1},
		"imm", ibv.ToBE32(7), "access", ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ, "new", ibv.QPType(77)}
	slog.New(slog.NewTextHandler(&out, options)).Info("done", attributes...)
	slog.New(slog.NewJSONHandler(&out, options)).Info("done", attributes...)
	assert.Equal(t, `level=INFO msg=done wc="QP 0x11: WR id 0x7: IBV_WC_RDMA_WRITE" gid=::1 guid=0000:0000:0000:0001 `+
		"mac=01:00:00:00:00:00 imm=7 access=IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ new=77\n"+
		`{"level":"INFO","msg":"done","wc":{"wr_id":7,"status":"IBV_WC_SUCCESS","qp_num":17,`+
		`"opcode":"IBV_WC_RDMA_WRITE"},`+
		`"gid":"::1","guid":"0000:0000:0000:0001","mac":"01:00:00:00:00:00","imm":7,`+
		`"access":"IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ","new":77}`+"\n", out.String())
}
