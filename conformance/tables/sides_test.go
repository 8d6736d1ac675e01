// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// cmSides are the sides according to rdma_get_cm_event.3 and the kernel.
var cmSides = map[rdmacm.CMEventType]rdmacm.EventSide{
	rdmacm.CM_EVENT_ADDR_RESOLVED: rdmacm.EventSideActive, rdmacm.CM_EVENT_ADDR_ERROR: rdmacm.EventSideActive,
	rdmacm.CM_EVENT_ROUTE_RESOLVED: rdmacm.EventSideActive, rdmacm.CM_EVENT_ROUTE_ERROR: rdmacm.EventSideActive,
	rdmacm.CM_EVENT_CONNECT_REQUEST: rdmacm.EventSidePassive, rdmacm.CM_EVENT_CONNECT_RESPONSE: rdmacm.EventSideActive,
	rdmacm.CM_EVENT_CONNECT_ERROR: rdmacm.EventSideBoth, rdmacm.CM_EVENT_UNREACHABLE: rdmacm.EventSideActive,
	rdmacm.CM_EVENT_REJECTED: rdmacm.EventSideBoth, rdmacm.CM_EVENT_ESTABLISHED: rdmacm.EventSideBoth,
	rdmacm.CM_EVENT_DISCONNECTED: rdmacm.EventSideBoth, rdmacm.CM_EVENT_DEVICE_REMOVAL: rdmacm.EventSideBoth,
	rdmacm.CM_EVENT_MULTICAST_JOIN:  rdmacm.EventSideMulticast,
	rdmacm.CM_EVENT_MULTICAST_ERROR: rdmacm.EventSideMulticast,
	rdmacm.CM_EVENT_ADDR_CHANGE:     rdmacm.EventSideBoth, rdmacm.CM_EVENT_TIMEWAIT_EXIT: rdmacm.EventSideBoth,
	rdmacm.CM_EVENT_ADDRINFO_RESOLVED: rdmacm.EventSideActive, rdmacm.CM_EVENT_ADDRINFO_ERROR: rdmacm.EventSideActive,
	rdmacm.CM_EVENT_USER: rdmacm.EventSideNone, rdmacm.CM_EVENT_INTERNAL: rdmacm.EventSideNone,
}

var cmServices = []rdmacm.Service{rdmacm.ServiceIB, rdmacm.ServiceIBNative, rdmacm.ServiceUD, rdmacm.ServiceUDNative,
	rdmacm.ServiceIWARP}

// TestCMEventSides checks which sides get each event, consistently with the table of private data.
func TestCMEventSides(t *testing.T) {
	for event := range rdmacm.CM_EVENT_INTERNAL + 1 {
		want, known := cmSides[event]
		side := rdmacm.EventMeaning(event).Side
		assert.True(t, known, "%v", event)
		assert.Equal(t, want, side, "%v", event)
		reached := map[rdmacm.ConnSide]bool{
			rdmacm.ConnSideActive:  side == rdmacm.EventSideActive || side == rdmacm.EventSideBoth,
			rdmacm.ConnSidePassive: side == rdmacm.EventSidePassive || side == rdmacm.EventSideBoth,
		}
		for at, reaches := range reached {
			denied := true
			for _, service := range cmServices {
				v := rdmacm.EventPrivateData(event, service, at)
				if v.Answer == rdmacm.AnswerYes {
					assert.True(t, reaches, "%v brings data to the %v", event, at)
				}
				connected := service == rdmacm.ServiceIB || service == rdmacm.ServiceIBNative
				denied = denied && (!connected || v.Reason == "the event does not occur on this side")
			}
			if reaches {
				assert.False(t, denied, "%v reaches the %v", event, at)
			}
		}
	}
	for _, service := range []rdmacm.Service{rdmacm.ServiceIB, rdmacm.ServiceIBNative, rdmacm.ServiceIWARP} {
		v := rdmacm.EventPrivateData(rdmacm.CM_EVENT_CONNECT_ERROR, service, rdmacm.ConnSidePassive)
		assert.Equal(t, rdmacm.AnswerNo, v.Answer)
		assert.NotContains(t, v.Source, "rdma_get_cm_event.3", "the page contradicts")
		assert.Contains(t, v.Note, "rdma_get_cm_event.3")
	}
	assert.Contains(t, rdmacm.EventMeaning(rdmacm.CM_EVENT_CONNECT_ERROR).Note, "caller only")
}

// TestAbortedUnspecified checks that IBV_WC_REM_ABORT_ERR, whose occurrence no source specifies, is excluded only for
// types without it.
func TestAbortedUnspecified(t *testing.T) {
	for _, c := range []struct {
		qpt        ibv.QPType
		send, recv ibv.Answer
	}{
		{ibv.QPT_RC, ibv.AnswerYes, ibv.AnswerUnspecified}, {ibv.QPT_XRC_SEND, ibv.AnswerYes, ibv.AnswerNo},
		{ibv.QPT_XRC_RECV, ibv.AnswerNo, ibv.AnswerUnspecified},
		{ibv.QPT_UC, ibv.AnswerUnspecified, ibv.AnswerUnspecified},
		{ibv.QPT_UD, ibv.AnswerUnspecified, ibv.AnswerUnspecified},
		{ibv.QPT_RAW_PACKET, ibv.AnswerUnspecified, ibv.AnswerUnspecified},
	} {
		assert.Equal(t, c.send, ibv.StateAfterCompletion(ibv.WC_REM_ABORT_ERR, ibv.WorkQueueSend, c.qpt).Answer, "%v",
			c.qpt)
		assert.Equal(t, c.recv, ibv.StateAfterCompletion(ibv.WC_REM_ABORT_ERR, ibv.WorkQueueRecv, c.qpt).Answer, "%v",
			c.qpt)
	}
	assert.NotContains(t, ibv.StateAfterCompletion(ibv.WC_RETRY_EXC_ERR, ibv.WorkQueueSend, ibv.QPT_UD).Source, "rxe")
}
