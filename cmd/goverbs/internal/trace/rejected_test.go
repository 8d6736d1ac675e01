// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// extended creates checked, connected queue pairs that support programs of sends and writes.
func (r *testbed) extended() (a, b *rdma.QP) {
	create := func(e *end) *rdma.QP {
		attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(), PD: e.pd.Ptr(),
			Cap:          ibv.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16},
			CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
			SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_RDMA_WRITE}
		return must(e.device.CreateQPEx(attr, rdma.QueueOptions{}))(r.T)
	}
	a, b = create(r.a), create(r.b)
	require.NoError(r, a.Connect(must(b.Endpoint())(r.T)))
	require.NoError(r, b.Connect(must(a.Endpoint())(r.T)))
	return a, b
}

// rejectedPost is a post that the library's checks reject, with a part of the reason.
type rejectedPost struct {
	fault
	because string
}

var rejectedPosts = []rejectedPost{
	rejectedProgram("an empty program", "invalid-request", "the program is empty",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) {}),
	{fault{"program of another queue pair", "invalid-request", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		a, b := r.extended()
		p := must(a.NewWRProgram())(t)
		p.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey())
		require.Error(t, b.PostProgram(p))
	}}, "and the queue of QP"},
	rejectedProgram("datagram without an address handle", "invalid-request", "needs an address handle",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) { p.Send(1).UD(0, 1, 1) }),
	rejectedProgram("program with too many inline bytes", "invalid-request", "inline",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) { p.Send(1).Inline(make([]byte, 4096)) }),
	rejectedProgram("program larger than the queue", "queue-full", "3",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) {
			for i := range 3 {
				p.Send(uint64(i)).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
			}
		}),
	rejectedProgram("program in the wrong state", "wrong-state", "RESET",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) {
			require.NoError(r, a.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			p.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
		}),
	rejectedProgram("program with a function that the queue pair lacks", "not-supported", "ibv_wr_flush",
		func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP) { p.Flush(1, 0, 0, 8, 0, 0) }),
	{fault{"an empty batch", "invalid-request", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		a, _ := r.extended()
		_, err := a.PostSend(r.a.batch)
		require.Error(t, err)
	}}, "the batch is empty"},
}

// rejectedProgram returns a fault with a program of requests that a check rejects.
func rejectedProgram(name, cause, because string, build func(r *testbed, p *rdma.WRProgram, a, b *rdma.QP)) rejectedPost {
	return rejectedPost{fault{name, cause, func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		a, b := r.extended()
		p := must(a.NewWRProgram())(t)
		build(r, p, a, b)
		require.Error(t, a.PostProgram(p))
	}}, because}
}

// TestRejectedPosts checks that rejected posts are traced and explained.
func TestRejectedPosts(t *testing.T) {
	if guest() != "" {
		t.Skip("checks are independent of the device")
	}
	for _, f := range rejectedPosts {
		found := Explain(traced(t, f.name))
		if assert.NotEmpty(t, found, f.name) {
			assert.Equal(t, f.cause, found[0].Cause, f.name)
			assert.Contains(t, found[0].Why, f.because, f.name)
		}
	}
}

// highRegion is a region above 4 GiB.
var highRegion = write("a region above 4 GiB", "remote-range", func(r *testbed) (uint64, uint32) {
	mr := must(r.b.pd.RegAddress(uintptr(r.b.mr.Address()), 4096, 0x1234_5678_9000, all))(r.T)
	return mr.Address() + 4090, mr.RKey()
})

// TestHighAddresses checks 64-bit addresses, on 32-bit machines, too.
func TestHighAddresses(t *testing.T) {
	if guest() != "" {
		t.Skip("tests only the software device")
	}
	found := Explain(traced(t, highRegion.name))
	require.NotEmpty(t, found)
	assert.Equal(t, highRegion.cause, found[0].Cause)
	assert.Contains(t, found[0].Why, "4096 bytes at 0x123456789000")
}

// TestOwnDisconnect checks that rdma_disconnect counts as the reason of ERR and of the requests flushed afterwards, and
// that nothing is reported for them.
func TestOwnDisconnect(t *testing.T) {
	qp := uint32(17)
	of := func(at uint64, e Event) *Event { e.T = at; return &e }
	back := func(at uint64) *Event {
		return of(at, Event{Verb: "ibv_poll_cq", WCs: []Completion{{ID: 1, Status: "WR_FLUSH_ERR", QP: qp}}})
	}
	create := of(1, Event{Verb: "rdma_create_qp_ex", Type: "RC", CMID: 5, QP: &qp})
	leave := of(4, Event{Verb: "rdma_disconnect", CMID: 5})
	destroy := of(9, Event{Verb: "ibv_destroy_qp", QP: &qp})
	assert.Empty(t, Explain(&Trace{Events: []*Event{create, leave, back(5), destroy}}))
	found := Explain(&Trace{Events: []*Event{create, leave, back(5)}})
	require.Len(t, found, 1)
	assert.Equal(t, "moved-to-error", found[0].Cause)
	found = Explain(&Trace{Events: []*Event{create, back(3), leave, destroy}})
	require.Len(t, found, 1)
	assert.Equal(t, "flushed", found[0].Cause, "before the disconnect")
}

// TestNoDevices checks that missing kernel support is reported once, and only if the program opens no other device.
func TestNoDevices(t *testing.T) {
	list := &Event{Verb: "ibv_get_device_list", Errno: 38, Error: "function not implemented"}
	open := &Event{Verb: "ibv_open_device", Device: "soft0"}
	failed := &Event{Verb: "ibv_open_device", Device: "soft0", Errno: 1}
	all := Explain(&Trace{Events: []*Event{list, list, failed}})
	require.Len(t, all, 2)
	assert.Equal(t, "no-devices", all[0].Cause)
	assert.Empty(t, Explain(&Trace{Events: []*Event{list, list, open, list}}))
	assert.Empty(t, Explain(&Trace{Events: []*Event{open, list}}))
	assert.Len(t, Explain(&Trace{Events: []*Event{list}}, &Trace{Events: []*Event{open}}), 1, "another program's")
	denied := &Event{Verb: "ibv_get_device_list", Errno: 1, Error: "operation not permitted"}
	assert.Len(t, Explain(&Trace{Events: []*Event{denied, open}}), 1)
}
