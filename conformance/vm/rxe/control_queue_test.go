// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

var queueControls = []control{
	{verb: "ibv_create_comp_channel", what: works, call: func(r *testbed.Testbed) error {
		return created(r, verbs.DestroyCompChannel)(verbs.CreateCompChannel(r.Context))
	}},
	{verb: "ibv_create_comp_channel", what: "no file descriptor left", call: func(r *testbed.Testbed) error {
		var old unix.Rlimit
		r.Check(unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
		r.Check(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
		err := created(r, verbs.DestroyCompChannel)(verbs.CreateCompChannel(r.Context))
		r.Check(unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		return err
	}},
	{verb: "ibv_destroy_comp_channel", what: works, call: func(r *testbed.Testbed) error {
		channel, err := verbs.CreateCompChannel(r.Context)
		r.Check(err)
		return verbs.DestroyCompChannel(channel)
	}},
	{verb: "ibv_destroy_comp_channel", what: "completion queues left", call: func(r *testbed.Testbed) error {
		channel, _ := channelled(r)
		return verbs.DestroyCompChannel(channel)
	}},
	{verb: "ibv_create_cq", what: works, call: createCQ(10, 0)},
	{verb: "ibv_create_cq", what: "no entries", call: createCQ(0, 0)},
	{verb: "ibv_create_cq", what: "fewer than no entries", call: createCQ(-1, 0)},
	{verb: "ibv_create_cq", what: "more than max_cqe", call: createCQ(1<<30, 0)},
	{verb: "ibv_create_cq", what: "no such completion vector", call: createCQ(10, 1<<20)},
	{verb: "ibv_create_cq", what: "completion vector below 0", call: createCQ(10, -1)},
	{verb: "ibv_destroy_cq", what: works, call: createCQ(10, 0)},
	{verb: "ibv_destroy_cq", what: "queue pairs left", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		r.QP(ibv.QPT_RC, cq, r.CQ(4))
		return verbs.DestroyCQ(cq)
	}},
	{verb: "ibv_create_cq_ex", what: works,
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, WCFlags: ibv.WC_STANDARD_FLAGS})},
	{verb: "ibv_create_cq_ex", what: "no entries", call: createCQEx(ibv.CQInitAttrEx{})},
	{verb: "ibv_create_cq_ex", what: "more than max_cqe", call: createCQEx(ibv.CQInitAttrEx{CQE: 1 << 30})},
	{verb: "ibv_create_cq_ex", what: "unknown completion field",
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, WCFlags: 1 << 40})},
	{verb: "ibv_create_cq_ex", what: "unknown bit in comp_mask",
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, CompMask: 1 << 20})},
	{verb: "ibv_create_cq_ex", what: "single threaded",
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, CompMask: ibv.CQ_INIT_ATTR_MASK_FLAGS,
			Flags: ibv.CREATE_CQ_ATTR_SINGLE_THREADED})},
	{verb: "ibv_create_cq_ex", what: "overrun ignored",
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, CompMask: ibv.CQ_INIT_ATTR_MASK_FLAGS,
			Flags: ibv.CREATE_CQ_ATTR_IGNORE_OVERRUN})},
	{verb: "ibv_create_cq_ex", what: "invalid parent domain",
		call: createCQEx(ibv.CQInitAttrEx{CQE: 10, CompMask: ibv.CQ_INIT_ATTR_MASK_PD})},
	{verb: "ibv_resize_cq", what: works, call: func(r *testbed.Testbed) error {
		cq := r.CQ(10)
		if err := verbs.ResizeCQ(cq, 100); err != nil {
			return err
		}
		if cq.CQE < 100 {
			return failed("fewer entries")
		}
		return verbs.ResizeCQ(cq, 5)
	}},
	{verb: "ibv_resize_cq", what: "no entries", call: func(r *testbed.Testbed) error { return verbs.ResizeCQ(r.CQ(10), 0) }},
	{verb: "ibv_resize_cq", what: "more than max_cqe",
		call: func(r *testbed.Testbed) error { return verbs.ResizeCQ(r.CQ(10), 1<<30) }},
	{verb: "ibv_resize_cq", what: "fewer than there are completions", call: func(r *testbed.Testbed) error {
		p := r.Pair(ibv.QPT_RC)
		from := r.Buffer(64, local)
		for range 4 {
			r.Recv(p.B, 1, from.SGE(0, 64))
			l := r.Sends(1)
			l.WRs[0].Opcode, l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.WR_SEND, ibv.SEND_SIGNALED, 0
			_, err := l.Post(p.A)
			r.Check(err)
			r.Check(status(r.Completion(p.ASend)))
		}
		if err := verbs.ResizeCQ(p.BRecv, 2); err != nil {
			for range 4 { // no completion is lost
				r.Check(status(r.Completion(p.BRecv)))
			}
			return err
		}
		return nil
	}},
	{verb: "ibv_req_notify_cq", what: works, call: func(r *testbed.Testbed) error {
		_, cq := channelled(r)
		return verbs.ReqNotifyCQ(cq, 0)
	}},
	{verb: "ibv_req_notify_cq", what: "no channel",
		call: func(r *testbed.Testbed) error { return verbs.ReqNotifyCQ(r.CQ(4), 0) }},
	{verb: "ibv_get_cq_event", what: works, call: func(r *testbed.Testbed) error {
		channel, cq := channelled(r)
		qp := r.QP(ibv.QPT_RC, cq, cq)
		r.Bring(qp, ibv.QPS_ERR)
		r.Check(verbs.ReqNotifyCQ(cq, 0))
		b := r.Buffer(64, local)
		l := r.Sends(1)
		l.WRs[0].Opcode, l.SGEs[0] = ibv.WR_SEND, b.SGE(0, 8)
		_, err := l.Post(qp) // the request is flushed
		r.Check(err)
		return event(r, channel, cq)
	}},
	{verb: "ibv_get_cq_event", what: "no event, and the channel does not block", call: func(r *testbed.Testbed) error {
		channel, cq := channelled(r)
		r.Check(unix.SetNonblock(int(channel.FD), true))
		return event(r, channel, cq)
	}},
	{verb: "ibv_ack_cq_events", what: works, call: func(r *testbed.Testbed) error { return verbs.AckCQEvents(r.CQ(4), 0) }},
	{verb: "ibv_ack_cq_events", what: "any", why: "it has no result"},

	{verb: "ibv_modify_qp", what: works, call: queueAccess(remote)},
	{verb: "ibv_modify_qp", what: "on demand, which does not apply to queue pairs",
		call: queueAccess(remote | ibv.ACCESS_ON_DEMAND)},
	{verb: "ibv_modify_qp", what: "zero based, which does not apply to queue pairs",
		call: queueAccess(remote | ibv.ACCESS_ZERO_BASED)},
	{verb: "ibv_modify_qp", what: "relaxed ordering, which does not apply to queue pairs",
		call: queueAccess(remote | ibv.ACCESS_RELAXED_ORDERING)},
	{verb: "ibv_modify_qp", what: "unknown access flag", call: queueAccess(remote | 1<<18)},
	{verb: "ibv_modify_qp", what: "unknown access flag beyond the optional ones", call: queueAccess(remote | 1<<30)},
	{verb: "ibv_modify_qp", what: "to RESET, with an unpolled completion",
		call: unpolled(func(qp *ibv.QP) error {
			if err := verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE); err != nil {
				return err
			}
			return verbs.DestroyQP(qp)
		})},
	{verb: "ibv_destroy_qp", what: "with an unpolled completion", call: unpolled(verbs.DestroyQP)},
	{verb: "ibv_create_qp", what: works, call: createQP(func(*ibv.QPInitAttr) {})},
	{verb: "ibv_create_qp", what: "type that the device does not support",
		call: createQP(func(a *ibv.QPInitAttr) { a.QPType = ibv.QPT_RAW_PACKET })},
	{verb: "ibv_create_qp", what: "no such type", call: createQP(func(a *ibv.QPInitAttr) { a.QPType = 77 })},
	{verb: "ibv_create_qp", what: "no completion queue",
		why: "the library does not check the queue: the program crashes"},
	{verb: "ibv_create_qp", what: "more send work requests than max_qp_wr",
		call: createQP(func(a *ibv.QPInitAttr) { a.Cap.MaxSendWR = 1 << 30 })},
	{verb: "ibv_create_qp", what: "more receive work requests than max_qp_wr",
		call: createQP(func(a *ibv.QPInitAttr) { a.Cap.MaxRecvWR = 1 << 30 })},
	{verb: "ibv_create_qp", what: "more send entries than max_sge",
		call: createQP(func(a *ibv.QPInitAttr) { a.Cap.MaxSendSGE = 1 << 16 })},
	{verb: "ibv_create_qp", what: "more receive entries than max_sge",
		call: createQP(func(a *ibv.QPInitAttr) { a.Cap.MaxRecvSGE = 1 << 16 })},
	{verb: "ibv_create_qp", what: "more inline data than the device takes",
		call: createQP(func(a *ibv.QPInitAttr) { a.Cap.MaxInlineData = 1 << 20 })},
	{verb: "ibv_create_qp_ex", what: works, call: createQPEx(func(*ibv.QPInitAttrEx) {})},
	{verb: "ibv_create_qp_ex", what: "no protection domain",
		call: createQPEx(func(a *ibv.QPInitAttrEx) { a.CompMask &^= ibv.QP_INIT_ATTR_PD })},
	{verb: "ibv_create_qp_ex", what: "unknown bit in comp_mask",
		call: createQPEx(func(a *ibv.QPInitAttrEx) { a.CompMask |= 1 << 30 })},
	{verb: "ibv_create_qp_ex", what: "create flags", call: createQPEx(func(a *ibv.QPInitAttrEx) {
		a.CompMask, a.CreateFlags = a.CompMask|ibv.QP_INIT_ATTR_CREATE_FLAGS, ibv.QP_CREATE_SCATTER_FCS
	})},
	{verb: "ibv_create_qp_ex", what: "send operation not for the type", call: createQPEx(func(a *ibv.QPInitAttrEx) {
		a.CompMask, a.SendOpsFlags = a.CompMask|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, ibv.QP_EX_WITH_TSO
	})},
	{verb: "ibv_create_qp_ex", what: "headers for large sends", call: createQPEx(func(a *ibv.QPInitAttrEx) {
		a.CompMask, a.MaxTSOHeader = a.CompMask|ibv.QP_INIT_ATTR_MAX_TSO_HEADER, 64
	})},
	{verb: "ibv_query_qp", what: works, call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		return verbs.QueryQP(r.QP(ibv.QPT_RC, cq, cq), new(ibv.QPAttr), ibv.QP_STATE|ibv.QP_CAP, new(ibv.QPInitAttr))
	}},
	{verb: "ibv_query_qp", what: "unknown attribute", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		return verbs.QueryQP(r.QP(ibv.QPT_RC, cq, cq), new(ibv.QPAttr), 1<<30, new(ibv.QPInitAttr))
	}},
	{verb: "ibv_query_qp_data_in_order", what: works, call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		answer, err := verbs.QueryQPDataInOrder(r.QP(ibv.QPT_RC, cq, cq), ibv.WR_RDMA_WRITE, 0)
		if err == nil && answer != 0 {
			return failed("the device guarantees an order")
		}
		return err
	}},
	{verb: "ibv_query_qp_data_in_order", what: "any",
		why: "without information it returns that nothing is guaranteed"},
	{verb: "ibv_destroy_qp", what: works, call: createQP(func(*ibv.QPInitAttr) {})},
	{verb: "ibv_destroy_qp", what: "in a multicast group", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		qp := r.QP(ibv.QPT_UD, cq, cq)
		r.Bring(qp, ibv.QPS_RTS)
		group := multicast(r)
		r.Check(verbs.AttachMcast(qp, group, 0))
		r.Defer(func() { r.Check(verbs.DetachMcast(qp, group, 0)) })
		return verbs.DestroyQP(qp)
	}},
	{verb: "ibv_destroy_qp", what: "a window is bound on it",
		why: "the kernel waits until the window is gone, in a state that cannot be interrupted"},
}

func createCQ(entries, vector int) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		return created(r, verbs.DestroyCQ)(verbs.CreateCQ(r.Context, entries, 0, nil, vector))
	}
}

func createCQEx(attr ibv.CQInitAttrEx) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		return created(r,
			func(cq *ibv.CQEx) error { return verbs.DestroyCQ(verbs.CQExToCQ(cq)) })(verbs.CreateCQEx(r.Context, &attr))
	}
}

func createQP(change func(*ibv.QPInitAttr)) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		cq := ibv.PtrTo(r.CQ(4))
		attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq, RecvCQ: cq, Cap: testbed.Caps}
		change(attr)
		return created(r, verbs.DestroyQP)(verbs.CreateQP(r.PD, attr))
	}
}

func createQPEx(change func(*ibv.QPInitAttrEx)) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		cq := ibv.PtrTo(r.CQ(4))
		attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq, RecvCQ: cq, Cap: testbed.Caps,
			CompMask: ibv.QP_INIT_ATTR_PD, PD: ibv.PtrTo(r.PD)}
		change(attr)
		return created(r, verbs.DestroyQP)(verbs.CreateQPEx(r.Context, attr))
	}
}

// channelled returns a completion queue with a completion channel.
func channelled(r *testbed.Testbed) (*ibv.CompChannel, *ibv.CQ) {
	channel, err := verbs.CreateCompChannel(r.Context)
	r.Check(err)
	r.Defer(func() { r.Check(verbs.DestroyCompChannel(channel)) })
	cq, err := verbs.CreateCQ(r.Context, 10, 0xabcd, channel, 0)
	r.Check(err)
	r.Defer(func() { r.Check(verbs.DestroyCQ(cq)) })
	return channel, cq
}

// event reads an event of a queue from its channel.
func event(r *testbed.Testbed, channel *ibv.CompChannel, of *ibv.CQ) error {
	got, context := &testbed.Records[ibv.Ptr[ibv.CQ]](r, 1)[0], &testbed.Records[uintptr](r, 1)[0]
	if err := testbed.Within("a completion event",
		func() error { return verbs.GetCQEvent(channel, got, context) }); err != nil {
		return err
	}
	r.Check(verbs.AckCQEvents(of, 1))
	if *got != ibv.PtrTo(of) || *context != 0xabcd {
		return failed("an event of another queue")
	}
	return nil
}

// queueAccess moves a queue pair to INIT with access flags.
func queueAccess(access ibv.AccessFlags) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		return verbs.ModifyQP(r.QP(ibv.QPT_RC, cq, cq), &ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: testbed.PortNum,
			QPAccessFlags: access}, ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS)
	}
}

// unpolled calls f with a queue pair that has an unpolled receive completion, and returns the number of completions
// after the call.
func unpolled(f func(*ibv.QP) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		sends, recvs := r.CQ(4), r.CQ(4)
		from := r.QP(ibv.QPT_RC, sends, sends)
		to, err := verbs.CreateQP(r.PD, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(recvs),
			RecvCQ: ibv.PtrTo(recvs), Cap: testbed.Caps})
		r.Check(err)
		r.Connect(from, to)
		r.Recv(to, 1, r.Buffer(64, local).SGE(0, 64))
		l := r.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.WR_SEND, ibv.SEND_SIGNALED, 0
		_, err = l.Post(from)
		r.Check(err)
		r.Check(status(r.Completion(sends)))
		r.Check(f(to))
		for n := 0; ; n++ {
			_, received, err := testbed.Poll(recvs, nothingMore)
			r.Check(err)
			if !received {
				return failed(fmt.Sprintf("%d completions", n))
			}
		}
	}
}
