// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// The tables below were written independently of gen/rules/tables, to detect an edit of a single cell there.

// kernelMoves is qp_state_table of Linux, drivers/infiniband/core/verbs.c: from, to, types, required and optional
// attributes. It omits IBV_QP_STATE, which is required if the state changes and optional otherwise. "-" is none, "*"
// all types.
const kernelMoves = `
RESET RESET | * | - | -
RESET INIT | UD | PKEY_INDEX PORT QKEY | -
RESET INIT | RAW_PACKET | PORT | -
RESET INIT | UC RC XRC_SEND XRC_RECV | PKEY_INDEX PORT ACCESS_FLAGS | -
INIT RESET | * | - | -
INIT ERR | * | - | -
INIT INIT | UD | - | PKEY_INDEX PORT QKEY
INIT INIT | UC RC XRC_SEND XRC_RECV | - | PKEY_INDEX PORT ACCESS_FLAGS
INIT INIT | RAW_PACKET | - | -
INIT RTR | UD | - | PKEY_INDEX QKEY
INIT RTR | RAW_PACKET | - | -
INIT RTR | UC XRC_SEND | AV PATH_MTU DEST_QPN RQ_PSN | ALT_PATH ACCESS_FLAGS PKEY_INDEX
INIT RTR | RC XRC_RECV | AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ALT_PATH ACCESS_FLAGS PKEY_INDEX
RTR RESET | * | - | -
RTR ERR | * | - | -
RTR RTS | UD | SQ_PSN | CUR_STATE QKEY
RTR RTS | UC | SQ_PSN | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
RTR RTS | RC | TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RTR RTS | XRC_SEND | TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
RTR RTS | XRC_RECV | TIMEOUT SQ_PSN | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RTR RTS | RAW_PACKET | - | RATE_LIMIT
RTS RESET | * | - | -
RTS ERR | * | - | -
RTS RTS | UD | - | CUR_STATE QKEY
RTS RTS | UC XRC_SEND | - | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
RTS RTS | RC XRC_RECV | - | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
RTS RTS | RAW_PACKET | - | RATE_LIMIT
RTS SQD | UD UC RC XRC_SEND XRC_RECV | - | EN_SQD_ASYNC_NOTIFY
RTS SQD | RAW_PACKET | - | -
SQD RESET | * | - | -
SQD ERR | * | - | -
SQD RTS | UD | - | CUR_STATE QKEY
SQD RTS | UC XRC_SEND | - | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
SQD RTS | RC XRC_RECV | - | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
SQD RTS | RAW_PACKET | - | -
SQD SQD | UD | - | PKEY_INDEX QKEY
SQD SQD | RAW_PACKET | - | -
SQD SQD | UC | - | AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
SQD SQD | RC | - | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
SQD SQD | XRC_SEND | - | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
SQD SQD | XRC_RECV | - | PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
SQE RESET | * | - | -
SQE ERR | * | - | -
SQE RTS | UD | - | CUR_STATE QKEY
SQE RTS | UC | - | CUR_STATE ACCESS_FLAGS
SQE RTS | RC XRC_SEND XRC_RECV RAW_PACKET | - | -
ERR RESET | * | - | -
ERR ERR | * | - | -
`

// TestModifyQPMatchesKernel compares every type and pair of states with the kernel's table.
func TestModifyQPMatchesKernel(t *testing.T) {
	bits := map[string]ibv.QPAttrMask{}
	for bit := range 32 {
		one := ibv.QPAttrMask(1) << bit
		bits[strings.TrimPrefix(one.String(), "IBV_QP_")] = one
	}
	mask := func(words string) ibv.QPAttrMask {
		var m ibv.QPAttrMask
		for _, w := range strings.Fields(words) {
			require.True(t, w == "-" || bits[w] != 0, "%s", w)
			m |= bits[w]
		}
		return m
	}
	type move struct {
		qpt      ibv.QPType
		from, to ibv.QPState
	}
	want := map[move][2]ibv.QPAttrMask{}
	for line := range strings.Lines(strings.TrimSpace(kernelMoves)) {
		part := strings.Split(line, "|")
		require.Len(t, part, 4)
		ends := strings.Fields(part[0])
		for _, qpt := range movable {
			if types := strings.Fields(part[1]); types[0] != "*" &&
				!slices.Contains(types, strings.TrimPrefix(qpt.String(), "IBV_QPT_")) {
				continue
			}
			m := move{qpt: qpt, from: stateOf(t, ends[0]), to: stateOf(t, ends[1])}
			masks := [2]ibv.QPAttrMask{mask(part[2]), mask(part[3])}
			if m.from == m.to {
				masks[1] |= ibv.QP_STATE
			} else {
				masks[0] |= ibv.QP_STATE
			}
			require.NotContains(t, want, m, "twice")
			want[m] = masks
		}
	}
	for _, from := range states {
		for _, to := range states {
			assert.Equal(t, ibv.AnswerUnspecified, ibv.ModifyQP(ibv.QPT_DRIVER, from, to).Answer, "DRIVER %v → %v",
				from, to)
		}
	}
	for _, qpt := range movable {
		for _, from := range states {
			for _, to := range states {
				masks, is := want[move{qpt, from, to}]
				required, optional, ok := ibv.ModifyQPMask(qpt, from, to)
				assert.Equal(t, is, ok, "%v %v → %v", qpt, from, to)
				assert.Equal(t, map[bool]ibv.Answer{true: ibv.AnswerYes, false: ibv.AnswerNo}[is],
					ibv.ModifyQP(qpt, from, to).Answer, "%v %v → %v", qpt, from, to)
				assert.Equal(t, masks[0].String(), required.String(), "%v %v → %v", qpt, from, to)
				assert.Equal(t, masks[1].String(), optional.String(), "%v %v → %v", qpt, from, to)
			}
		}
	}
}

func stateOf(t *testing.T, name string) ibv.QPState {
	t.Helper()
	for _, s := range states {
		if s.String() == "IBV_QPS_"+name {
			return s
		}
	}
	t.Fatalf("no state %s", name)
	return 0
}

// TestPrivateDataOfEveryCell compares lengths by service, in the order of cmServices; 0 for none. An event has the
// length of the corresponding call.
func TestPrivateDataOfEveryCell(t *testing.T) {
	type at struct {
		event rdmacm.CMEventType
		side  rdmacm.ConnSide
	}
	active, passive := rdmacm.ConnSideActive, rdmacm.ConnSidePassive
	brings := map[at]struct {
		bytes [5]uint64
		call  rdmacm.Call
	}{
		{rdmacm.CM_EVENT_CONNECT_REQUEST, passive}: {[5]uint64{56, 92, 180, 216, 255}, rdmacm.CallConnect},
		{rdmacm.CM_EVENT_CONNECT_RESPONSE, active}: {[5]uint64{196, 196, 0, 0, 0}, rdmacm.CallAccept},
		{rdmacm.CM_EVENT_CONNECT_ERROR, active}:    {[5]uint64{196, 196, 0, 0, 255}, rdmacm.CallAccept},
		{rdmacm.CM_EVENT_ESTABLISHED, active}:      {[5]uint64{196, 196, 136, 136, 255}, rdmacm.CallAccept},
		{rdmacm.CM_EVENT_REJECTED, active}:         {[5]uint64{148, 148, 0, 0, 255}, rdmacm.CallReject},
		{rdmacm.CM_EVENT_REJECTED, passive}:        {[5]uint64{148, 148, 0, 0, 0}, rdmacm.CallReject},
		{rdmacm.CM_EVENT_UNREACHABLE, active}:      {[5]uint64{0, 0, 136, 136, 0}, rdmacm.CallReject},
	}
	for event := range rdmacm.CM_EVENT_INTERNAL + 1 {
		for _, side := range []rdmacm.ConnSide{active, passive} {
			want := brings[at{event, side}]
			for i, service := range cmServices {
				v := rdmacm.EventPrivateData(event, service, side)
				answer := rdmacm.AnswerNo
				if want.bytes[i] > 0 {
					answer = rdmacm.AnswerYes
					assert.EqualValues(t, want.bytes[i], rdmacm.PrivateDataLimit(want.call, service).Bytes, "%v on %v",
						want.call, service)
				}
				assert.Equal(t, answer, v.Answer, "%v on %v, %v", event, service, side)
				assert.EqualValues(t, want.bytes[i], v.Bytes, "%v on %v, %v", event, service, side)
			}
		}
	}
}

// answerOf maps letters of the tables below to answers.
var answerOf = map[rune]ibv.Answer{'y': ibv.AnswerYes, 'n': ibv.AnswerNo, 'c': ibv.AnswerNeedsCapability,
	'-': ibv.AnswerNotInVerb, '?': ibv.AnswerUnspecified}

// TestWCFieldOfEveryCell has a letter for each kind, in the order error, sent, fetched, received, datagram, raw packet,
// tag list, tag message. Fields that must be requested have the name of the field.
func TestWCFieldOfEveryCell(t *testing.T) {
	kinds := []ibv.WCKind{
		ibv.WCKindError, ibv.WCKindSent, ibv.WCKindFetched, ibv.WCKindReceived, ibv.WCKindDatagram, ibv.WCKindRaw,
		ibv.WCKindTagOp, ibv.WCKindTagMessage,
	}
	want := map[string][2]string{ // answers, and the suffix of the flag
		"wr_id": {"yyyyyyyy", ""}, "status": {"yyyyyyyy", ""}, "opcode": {"nyyyyyyy", ""}, "wc_flags": {"nyyyyyyy", ""},
		"vendor_err": {"ynnnnnnn", ""}, "pkey_index": {"nnnnnnnn", ""}, "byte_len": {"nnyyyyny", "BYTE_LEN"},
		"imm_data": {"nnnyynny", "IMM"}, "invalidated_rkey": {"nnnynnny", "IMM"}, "qp_num": {"yyyyyy?y", "QP_NUM"},
		"src_qp": {"nnnnynnn", "SRC_QP"}, "slid": {"nnn?ynn?", "SLID"}, "sl": {"nnn?ynn?", "SL"},
		"dlid_path_bits": {"nnn?ynn?", "DLID_PATH_BITS"}, "completion_ts": {"nccccccc", "COMPLETION_TIMESTAMP"},
		"completion_wallclock_ns": {"nccccccc", "COMPLETION_TIMESTAMP_WALLCLOCK"}, "cvlan": {"nnn??cn?", "CVLAN"},
		"flow_tag": {"nnn??yn?", "FLOW_TAG"}, "tm_info": {"nnnnnnny", "TM_INFO"},
	}
	needs := map[string]ibv.WCFlags{"imm_data": ibv.WC_WITH_IMM, "invalidated_rkey": ibv.WC_WITH_INV}
	for field := range ibv.WCFieldTMInfo + 1 {
		row, known := want[field.String()]
		require.True(t, known, "%v", field)
		for i, letter := range row[0] {
			v := ibv.WCFieldValidity(field, kinds[i])
			assert.Equal(t, answerOf[letter], v.Answer, "%v of %v", field, kinds[i])
			if letter != 'y' && letter != 'c' {
				continue
			}
			assert.Equal(t, needs[field.String()], v.Flag, "%v of %v", field, kinds[i])
			if row[1] == "" {
				assert.Zero(t, v.Request, "%v of %v", field, kinds[i])
			} else {
				assert.Equal(t, "IBV_WC_EX_WITH_"+row[1], v.Request.String(), "%v of %v", field, kinds[i])
			}
		}
	}
}

// someTypes are the queue pair types of the letters in the two tests below.
var someTypes = []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_RAW_PACKET, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV,
	ibv.QPT_DRIVER}

func TestBindMWOfEveryCell(t *testing.T) {
	for _, c := range []struct {
		mw        ibv.MWType
		path      ibv.BindMWPath
		want      string
		condition []string
	}{
		{ibv.MW_TYPE_1, ibv.BindMWVerb, "ccnncn?", []string{"IBV_DEVICE_MEM_WINDOW"}},
		{ibv.MW_TYPE_1, ibv.BindMWPostSend, "--nn-n?", nil},
		{ibv.MW_TYPE_1, ibv.BindMWWR, "--nn-n?", nil},
		{ibv.MW_TYPE_2, ibv.BindMWVerb, "nnnnnnn", nil},
		{ibv.MW_TYPE_2, ibv.BindMWPostSend, "ccnncn?",
			[]string{"IBV_DEVICE_MEM_WINDOW_TYPE_2A", "IBV_DEVICE_MEM_WINDOW_TYPE_2B"}},
		{ibv.MW_TYPE_2, ibv.BindMWWR, "ccnncn?",
			[]string{"IBV_QP_EX_WITH_BIND_MW", "IBV_DEVICE_MEM_WINDOW_TYPE_2A", "IBV_DEVICE_MEM_WINDOW_TYPE_2B"}},
	} {
		for i, letter := range c.want {
			v := ibv.BindMWValidity(c.mw, c.path, someTypes[i])
			assert.Equal(t, answerOf[letter], v.Answer, "%v %v %v", c.mw, c.path, someTypes[i])
			var named []string
			for _, word := range strings.FieldsFunc(v.Condition, func(r rune) bool { return r == ' ' || r == ',' }) {
				if strings.HasPrefix(word, "IBV_") {
					named = append(named, word)
				}
			}
			if letter == 'c' {
				assert.Equal(t, c.condition, named, "%v %v %v", c.mw, c.path, someTypes[i])
			}
		}
	}
}

// wcStatuses has for each status the side that detects it, and the states afterwards by type, for sends and receives: e
// ERR, s SQE, n none.
var wcStatuses = map[ibv.WCStatus]struct {
	occurs     bool
	detector   ibv.WCDetector
	send, recv string
}{
	ibv.WC_SUCCESS:            {true, ibv.WCDetectorNone, "nnnnnnn", "nnnnnnn"},
	ibv.WC_LOC_LEN_ERR:        {true, ibv.WCDetectorLocal, "ess?en?", "eee?ne?"},
	ibv.WC_LOC_QP_OP_ERR:      {true, ibv.WCDetectorLocal, "ess?en?", "eee?ne?"},
	ibv.WC_LOC_EEC_OP_ERR:     {false, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_LOC_PROT_ERR:       {true, ibv.WCDetectorLocal, "ess?en?", "eee?ne?"},
	ibv.WC_WR_FLUSH_ERR:       {true, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_MW_BIND_ERR:        {true, ibv.WCDetectorLocal, "esnnen?", "nnnnnn?"},
	ibv.WC_BAD_RESP_ERR:       {true, ibv.WCDetectorTransport, "ennnen?", "nnnnnn?"},
	ibv.WC_LOC_ACCESS_ERR:     {true, ibv.WCDetectorLocal, "nnnnnn?", "eennne?"},
	ibv.WC_REM_INV_REQ_ERR:    {true, ibv.WCDetectorEither, "ennnen?", "ennnne?"},
	ibv.WC_REM_ACCESS_ERR:     {true, ibv.WCDetectorEither, "ennnen?", "ennnne?"},
	ibv.WC_REM_OP_ERR:         {true, ibv.WCDetectorRemote, "ennnen?", "nnnnnn?"},
	ibv.WC_RETRY_EXC_ERR:      {true, ibv.WCDetectorTransport, "ennnen?", "nnnnnn?"},
	ibv.WC_RNR_RETRY_EXC_ERR:  {true, ibv.WCDetectorRemote, "ennnen?", "nnnnnn?"},
	ibv.WC_LOC_RDD_VIOL_ERR:   {false, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_REM_INV_RD_REQ_ERR: {true, ibv.WCDetectorRemote, "nnnnnn?", "nnnnnn?"},
	ibv.WC_REM_ABORT_ERR:      {true, ibv.WCDetectorRemote, "e???en?", "????n??"},
	ibv.WC_INV_EECN_ERR:       {false, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_INV_EEC_STATE_ERR:  {false, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_FATAL_ERR:          {true, ibv.WCDetectorProvider, "?????n?", "????n??"},
	ibv.WC_RESP_TIMEOUT_ERR:   {true, ibv.WCDetectorProvider, "?????n?", "????n??"},
	ibv.WC_GENERAL_ERR:        {true, ibv.WCDetectorProvider, "?????n?", "????n??"},
	ibv.WC_TM_ERR:             {true, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
	ibv.WC_TM_RNDV_INCOMPLETE: {true, ibv.WCDetectorLocal, "nnnnnnn", "nnnnnnn"},
}

func TestWCStatusOfEveryCell(t *testing.T) {
	for status := range ibv.WC_TM_RNDV_INCOMPLETE + 1 {
		want, known := wcStatuses[status]
		require.True(t, known, "%v", status)
		meaning := ibv.WCStatusMeaning(status)
		assert.Equal(t, want.occurs, meaning.Answer == ibv.AnswerYes, "%v", status)
		assert.Equal(t, want.detector, meaning.Detector, "%v", status)
		for queue, letters := range map[ibv.WorkQueue]string{ibv.WorkQueueSend: want.send,
			ibv.WorkQueueRecv: want.recv} {
			for i, letter := range letters {
				v := ibv.StateAfterCompletion(status, queue, someTypes[i])
				switch letter {
				case 'e', 's':
					assert.Equal(t, ibv.AnswerYes, v.Answer, "%v %v %v", status, queue, someTypes[i])
					assert.Equal(t, map[rune]ibv.QPState{'e': ibv.QPS_ERR, 's': ibv.QPS_SQE}[letter], v.State,
						"%v %v %v", status, queue, someTypes[i])
				default:
					assert.Equal(t, answerOf[letter], v.Answer, "%v %v %v", status, queue, someTypes[i])
				}
			}
		}
	}
}
