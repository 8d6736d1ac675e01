// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// TestAsyncEvents checks that all events need an acknowledgement, and that the function that waits for it destroys the
// object of the event.
func TestAsyncEvents(t *testing.T) {
	waits := map[ibv.AsyncElement]string{
		ibv.AsyncElementCQ: "ibv_destroy_cq", ibv.AsyncElementQP: "ibv_destroy_qp",
		ibv.AsyncElementSRQ: "ibv_destroy_srq",
		ibv.AsyncElementWQ:  "ibv_destroy_wq", ibv.AsyncElementPort: "nothing", ibv.AsyncElementDevice: "nothing",
	}
	of := map[ibv.AsyncElement][]ibv.EventType{}
	for event := range ibv.EVENT_DEVICE_SPEED_CHANGE + 1 {
		v := ibv.AsyncEventMeaning(event)
		assert.Equal(t, ibv.AnswerYes, v.Answer, "%v", event)
		assert.Contains(t, v.Source, "ibv_get_async_event.3")
		assert.Equal(t, waits[v.Element], v.Waits, "%v", event)
		assert.NotEmpty(t, v.Meaning, "%v", event)
		assert.NotEmpty(t, v.Action, "%v", event)
		of[v.Element] = append(of[v.Element], event)
	}
	assert.Equal(t, []ibv.EventType{
		ibv.EVENT_QP_FATAL, ibv.EVENT_QP_REQ_ERR, ibv.EVENT_QP_ACCESS_ERR, ibv.EVENT_COMM_EST, ibv.EVENT_SQ_DRAINED,
		ibv.EVENT_PATH_MIG,
		ibv.EVENT_PATH_MIG_ERR, ibv.EVENT_QP_LAST_WQE_REACHED,
	}, of[ibv.AsyncElementQP])
	assert.Equal(t, []ibv.EventType{ibv.EVENT_CQ_ERR}, of[ibv.AsyncElementCQ])
	assert.Equal(t, []ibv.EventType{ibv.EVENT_SRQ_ERR, ibv.EVENT_SRQ_LIMIT_REACHED}, of[ibv.AsyncElementSRQ])
	assert.Equal(t, []ibv.EventType{ibv.EVENT_WQ_FATAL}, of[ibv.AsyncElementWQ])
	assert.Equal(t, []ibv.EventType{ibv.EVENT_DEVICE_FATAL, ibv.EVENT_DEVICE_SPEED_CHANGE}, of[ibv.AsyncElementDevice])
	assert.Len(t, of[ibv.AsyncElementPort], 7)
	assert.Equal(t, ibv.AsyncSeverityFatal, ibv.AsyncEventMeaning(ibv.EVENT_DEVICE_FATAL).Severity)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.AsyncEventMeaning(99).Answer)
}

// TestCMEvents checks that the states of successive events match, along the sequences of rdma_cm.7.
func TestCMEvents(t *testing.T) {
	for event := range rdmacm.CM_EVENT_INTERNAL {
		v := rdmacm.EventMeaning(event)
		assert.Equal(t, rdmacm.AnswerYes, v.Answer, "%v", event)
		assert.NotEmpty(t, v.Before, "%v", event)
		assert.NotEmpty(t, v.After, "%v", event)
		assert.NotEmpty(t, v.Next, "%v", event)
		if strings.HasSuffix(event.String(), "_ERROR") {
			assert.Contains(t, v.Status, "errno", "%v", event)
		}
	}
	assert.Equal(t, rdmacm.AnswerNo, rdmacm.EventMeaning(rdmacm.CM_EVENT_INTERNAL).Answer)
	for _, c := range []struct{ first, then rdmacm.CMEventType }{
		{rdmacm.CM_EVENT_CONNECT_REQUEST, rdmacm.CM_EVENT_ESTABLISHED},
		{rdmacm.CM_EVENT_CONNECT_RESPONSE, rdmacm.CM_EVENT_ESTABLISHED},
		{rdmacm.CM_EVENT_ESTABLISHED, rdmacm.CM_EVENT_DISCONNECTED},
		{rdmacm.CM_EVENT_DISCONNECTED, rdmacm.CM_EVENT_TIMEWAIT_EXIT},
		{rdmacm.CM_EVENT_ADDR_RESOLVED, rdmacm.CM_EVENT_MULTICAST_JOIN},
	} {
		assert.Contains(t, rdmacm.EventMeaning(c.then).Before, rdmacm.EventMeaning(c.first).After[0], "%v, then %v",
			c.first, c.then)
	}
	request := rdmacm.EventMeaning(rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, rdmacm.EventSidePassive, request.Side)
	assert.Equal(t, []rdmacm.IDState{rdmacm.IDStateNew}, request.Before)
	assert.Equal(t, []rdmacm.IDState{rdmacm.IDStateConnect}, request.After)
	assert.Equal(t, rdmacm.EventParamUD, rdmacm.EventMeaning(rdmacm.CM_EVENT_MULTICAST_JOIN).Param)
}

// TestPrivateData checks that the private data of a call arrives with the other side's event.
func TestPrivateData(t *testing.T) {
	services := []rdmacm.Service{rdmacm.ServiceIB, rdmacm.ServiceIBNative, rdmacm.ServiceUD, rdmacm.ServiceUDNative,
		rdmacm.ServiceIWARP}
	for i, service := range services {
		datagram := service == rdmacm.ServiceUD || service == rdmacm.ServiceUDNative
		refused := rdmacm.CM_EVENT_REJECTED
		if datagram {
			refused = rdmacm.CM_EVENT_UNREACHABLE
		}
		for call, c := range map[rdmacm.Call]struct {
			event rdmacm.CMEventType
			side  rdmacm.ConnSide
			want  []uint32
		}{
			rdmacm.CallConnect: {rdmacm.CM_EVENT_CONNECT_REQUEST, rdmacm.ConnSidePassive,
				[]uint32{56, 92, 180, 216, 255}},
			rdmacm.CallAccept: {rdmacm.CM_EVENT_ESTABLISHED, rdmacm.ConnSideActive, []uint32{196, 196, 136, 136, 255}},
			rdmacm.CallReject: {refused, rdmacm.ConnSideActive, []uint32{148, 148, 136, 136, 255}},
		} {
			event := rdmacm.EventPrivateData(c.event, service, c.side)
			assert.Equal(t, rdmacm.AnswerYes, event.Answer, "%v on %v", c.event, service)
			assert.EqualValues(t, c.want[i], event.Bytes, "%v on %v", c.event, service)
			assert.EqualValues(t, c.want[i], rdmacm.PrivateDataLimit(call, service).Bytes, "%v on %v", call, service)
		}
		assert.Equal(t, rdmacm.AnswerNo,
			rdmacm.EventPrivateData(rdmacm.CM_EVENT_ESTABLISHED, service, rdmacm.ConnSidePassive).Answer)
		assert.Equal(t, rdmacm.AnswerNo, rdmacm.EventPrivateData(rdmacm.CM_EVENT_ADDR_RESOLVED, service,
			rdmacm.ConnSideActive).Answer)
	}
}

// TestFactsDoNotAllocate queries every table of facts.
func TestFactsDoNotAllocate(t *testing.T) {
	var v ibv.Validity
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		v, _ = ibv.CheckAccess(ibv.AccessRegMR, localWrite|remoteWrite|onDemand)
		v = ibv.AccessFlag(ibv.AccessRegMR, remoteWrite).Validity
		v = ibv.AccessOfQP(ibv.QPT_RC).Validity
		v = ibv.AccessRequired(ibv.AccessRegDMMR).Validity
		v = ibv.BindMWValidity(ibv.MW_TYPE_2, ibv.BindMWPostSend, ibv.QPT_RC)
		v = ibv.InvalidateMWValidity(ibv.MW_TYPE_2, ibv.InvalidateMWLocalInv)
		v = ibv.SRQOpValidity(ibv.SRQT_TM, ibv.SRQPostOps)
		v = ibv.SRQAttachValidity(ibv.SRQT_TM, ibv.QPT_RC)
		_ = ibv.SRQAttachQPTypes(ibv.SRQT_BASIC)
		v = ibv.SendCompletion(ibv.WR_SEND).Validity
		v = ibv.RecvCompletion(ibv.WR_SEND).Validity
		v = ibv.SRQOpsCompletion(ibv.WR_TAG_ADD).Validity
		v = ibv.TMCompletion(ibv.TMMessageMatched).Validity
		v = ibv.WCKindOf(ibv.WC_RECV, ibv.QPT_UD).Validity
		v = ibv.WCFieldValidity(ibv.WCFieldImmData, ibv.WCKindReceived).Validity
		v = ibv.WCStatusMeaning(ibv.WC_RETRY_EXC_ERR).Validity
		v = ibv.StateAfterCompletion(ibv.WC_LOC_PROT_ERR, ibv.WorkQueueSend, ibv.QPT_UD).Validity
		v = ibv.AsyncEventMeaning(ibv.EVENT_CQ_ERR).Validity
		v = rdmacm.EventMeaning(rdmacm.CM_EVENT_ESTABLISHED).Validity
		v = rdmacm.EventPrivateData(rdmacm.CM_EVENT_ESTABLISHED, rdmacm.ServiceIB, rdmacm.ConnSideActive).Validity
		v = rdmacm.PrivateDataLimit(rdmacm.CallConnect, rdmacm.ServiceIB).Validity
	}))
	_ = v
}
