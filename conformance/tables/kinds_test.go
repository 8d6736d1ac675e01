// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// TestWCKindOfEveryCell has a letter for each of someTypes: s sent, f fetched, r received, d datagram, w raw packet, l
// tag list, m tag message.
func TestWCKindOfEveryCell(t *testing.T) {
	kinds := map[rune]ibv.WCKind{
		's': ibv.WCKindSent, 'f': ibv.WCKindFetched, 'r': ibv.WCKindReceived, 'd': ibv.WCKindDatagram,
		'w': ibv.WCKindRaw,
		'l': ibv.WCKindTagOp, 'm': ibv.WCKindTagMessage,
	}
	for op, letters := range map[ibv.WCOpcode]string{
		ibv.WC_SEND: "sssssn?", ibv.WC_RDMA_WRITE: "ssnnsn?", ibv.WC_BIND_MW: "ssnnsn?", ibv.WC_LOCAL_INV: "ssnnsn?",
		ibv.WC_RDMA_READ: "fnnnfn?", ibv.WC_COMP_SWAP: "fnnnfn?", ibv.WC_FETCH_ADD: "fnnnfn?", ibv.WC_FLUSH: "snnnsn?",
		ibv.WC_ATOMIC_WRITE: "snnnsn?", ibv.WC_TSO: "nnssnn?", ibv.WC_RECV: "rrdwnr?",
		ibv.WC_RECV_RDMA_WITH_IMM: "rrnnnr?",
		ibv.WC_TM_ADD:             "lnnnnn?", ibv.WC_TM_DEL: "lnnnnn?", ibv.WC_TM_SYNC: "lnnnnn?",
		ibv.WC_TM_RECV:   "mnnnnn?",
		ibv.WC_TM_NO_TAG: "mnnnnn?",
		ibv.WC_DRIVER1:   "???????", ibv.WC_DRIVER2: "???????", ibv.WC_DRIVER3: "???????",
	} {
		for i, letter := range letters {
			v := ibv.WCKindOf(op, someTypes[i])
			if kind, yes := kinds[letter]; yes {
				assert.Equal(t, ibv.AnswerYes, v.Answer, "%v on %v", op, someTypes[i])
				assert.Equal(t, kind, v.Kind, "%v on %v", op, someTypes[i])
				continue
			}
			assert.Equal(t, answerOf[letter], v.Answer, "%v on %v", op, someTypes[i])
			assert.Equal(t, ibv.WCKindError, v.Kind, "%v on %v", op, someTypes[i])
		}
	}
}

// TestAsyncSeverities checks which events are fatal, errors or warnings; all others are informational.
func TestAsyncSeverities(t *testing.T) {
	want := map[ibv.EventType]ibv.AsyncSeverity{ibv.EVENT_DEVICE_FATAL: ibv.AsyncSeverityFatal}
	for _, e := range []ibv.EventType{
		ibv.EVENT_CQ_ERR, ibv.EVENT_QP_FATAL, ibv.EVENT_QP_REQ_ERR, ibv.EVENT_QP_ACCESS_ERR, ibv.EVENT_SRQ_ERR,
		ibv.EVENT_WQ_FATAL,
	} {
		want[e] = ibv.AsyncSeverityError
	}
	for _, e := range []ibv.EventType{
		ibv.EVENT_PATH_MIG, ibv.EVENT_PATH_MIG_ERR, ibv.EVENT_PORT_ERR, ibv.EVENT_LID_CHANGE, ibv.EVENT_PKEY_CHANGE,
		ibv.EVENT_CLIENT_REREGISTER, ibv.EVENT_GID_CHANGE,
	} {
		want[e] = ibv.AsyncSeverityWarning
	}
	for event := range ibv.EVENT_DEVICE_SPEED_CHANGE + 1 {
		severity, named := want[event]
		if !named {
			severity = ibv.AsyncSeverityInfo
		}
		assert.Equal(t, severity, ibv.AsyncEventMeaning(event).Severity, "%v", event)
	}
}

// TestCMEventParams checks which member of param is valid, and that events with private data have one.
func TestCMEventParams(t *testing.T) {
	want := map[rdmacm.CMEventType]rdmacm.EventParam{
		rdmacm.CM_EVENT_CONNECT_REQUEST: rdmacm.EventParamConn, rdmacm.CM_EVENT_CONNECT_RESPONSE: rdmacm.EventParamConn,
		rdmacm.CM_EVENT_CONNECT_ERROR: rdmacm.EventParamConn, rdmacm.CM_EVENT_ESTABLISHED: rdmacm.EventParamConn,
		rdmacm.CM_EVENT_UNREACHABLE:     rdmacm.EventParamPrivateData,
		rdmacm.CM_EVENT_REJECTED:        rdmacm.EventParamPrivateData,
		rdmacm.CM_EVENT_MULTICAST_JOIN:  rdmacm.EventParamUD,
		rdmacm.CM_EVENT_MULTICAST_ERROR: rdmacm.EventParamPrivateData,
		rdmacm.CM_EVENT_USER:            rdmacm.EventParamArg,
	}
	require.Len(t, want, 9)
	for event := range rdmacm.CM_EVENT_INTERNAL + 1 {
		param := rdmacm.EventMeaning(event).Param
		assert.Equal(t, want[event], param, "%v", event)
		for _, service := range cmServices {
			for _, side := range []rdmacm.ConnSide{rdmacm.ConnSideActive, rdmacm.ConnSidePassive} {
				if rdmacm.EventPrivateData(event, service, side).Answer == rdmacm.AnswerYes {
					assert.NotEqual(t, rdmacm.EventParamNone, param, "%v", event)
				}
			}
		}
	}
}
