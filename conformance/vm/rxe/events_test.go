// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// occurrence is a cause that may raise asynchronous events.
type occurrence struct {
	what string
	// object of the events: *ibv.CQ, *ibv.QP, *ibv.SRQ; nil for the port
	of func(r *testbed.Testbed, s *testbed.Spare) (element any)
	// an event that no kernel raises, and the reason
	event ibv.EventType
	why   string
}

var occurrences = []occurrence{
	{what: "more completions than the queue holds", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p := &testbed.Pair{ASend: r.CQ(1), ARecv: r.CQ(1), BSend: r.CQ(1), BRecv: r.CQ(64)}
		p.A, p.B = r.QP(ibv.QPT_RC, p.ASend, p.ARecv), r.QP(ibv.QPT_RC, p.BSend, p.BRecv)
		r.Connect(p.A, p.B)
		b := r.Buffer(64, local)
		for range int(p.ASend.CQE) + 1 {
			r.Recv(p.B, 1, b.SGE(0, 64))
			write(r, p.A, ibv.WR_SEND, b.SGE(0, 8), 0, 0)
		}
		return p.ASend
	}},
	{what: "a message before the transition to RTS", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p := &testbed.Pair{ASend: r.CQ(8), ARecv: r.CQ(8), BSend: r.CQ(8), BRecv: r.CQ(8)}
		p.A, p.B = r.QP(ibv.QPT_RC, p.ASend, p.ARecv), r.QP(ibv.QPT_RC, p.BSend, p.BRecv)
		b := r.Buffer(64, local)
		r.Init(p.B)
		r.RTR(p.B, p.A.QPNum)
		r.Init(p.A)
		r.RTR(p.A, p.B.QPNum)
		r.RTS(p.A)
		r.Recv(p.B, 1, b.SGE(0, 64))
		write(r, p.A, ibv.WR_SEND, b.SGE(0, 8), 0, 0)
		r.Check(status(r.Completion(p.BRecv)))
		return p.B
	}},
	{what: "a write under an unknown key", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b := r.Pair(ibv.QPT_RC), r.Buffer(64, remote)
		write(r, p.A, ibv.WR_RDMA_WRITE, b.SGE(0, 8), b.Address(0), b.MR.RKey^0xff00)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "a write that the queue pair does not allow", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b := &testbed.Pair{ASend: r.CQ(8), ARecv: r.CQ(8), BSend: r.CQ(8), BRecv: r.CQ(8)}, r.Buffer(64, remote)
		p.A = r.QP(ibv.QPT_RC, p.ASend, p.ARecv)
		own := *r
		own.Access = local
		p.B = own.QP(ibv.QPT_RC, p.BSend, p.BRecv)
		own.Connect(p.A, p.B)
		write(r, p.A, ibv.WR_RDMA_WRITE, b.SGE(0, 8), b.Address(0), b.MR.RKey)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "more concurrent reads than the queue pair accepts", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b := &testbed.Pair{ASend: r.CQ(8), ARecv: r.CQ(8), BSend: r.CQ(8), BRecv: r.CQ(8)}, r.Buffer(64, remote)
		p.A, p.B = r.QP(ibv.QPT_RC, p.ASend, p.ARecv), r.QP(ibv.QPT_RC, p.BSend, p.BRecv)
		r.Init(p.B)
		attr := &ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024, DestQPNum: p.A.QPNum, RQPSN: 77,
			MinRNRTimer: 1, AHAttr: r.AH()}
		r.Check(verbs.ModifyQP(p.B, attr,
			ibv.QP_STATE|ibv.QP_AV|ibv.QP_PATH_MTU|ibv.QP_DEST_QPN|ibv.QP_RQ_PSN|ibv.QP_MAX_DEST_RD_ATOMIC|
				ibv.QP_MIN_RNR_TIMER))
		r.Init(p.A)
		r.RTR(p.A, p.B.QPNum)
		r.RTS(p.A)
		write(r, p.A, ibv.WR_RDMA_READ, b.SGE(0, 8), b.Address(8), b.MR.RKey)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "a message longer than the receive", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b := r.Pair(ibv.QPT_RC), r.Buffer(64, local)
		r.Recv(p.B, 1, b.SGE(0, 4))
		write(r, p.A, ibv.WR_SEND, b.SGE(0, 8), 0, 0)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "an invalidation of an unknown key", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b, l := r.Pair(ibv.QPT_RC), r.Buffer(64, local), r.Sends(1)
		r.Recv(p.B, 1, b.SGE(0, 64))
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND_WITH_INV, ibv.SEND_SIGNALED, b.SGE(0, 8)
		*l.WRs[0].InvalidateRKey() = b.MR.RKey ^ 0xff00
		_, err := l.Post(p.A)
		r.Check(err)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "a receive into a read-only region", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p, b, only := r.Pair(ibv.QPT_RC), r.Buffer(64, local), r.Buffer(64, 0)
		r.Recv(p.B, 1, only.SGE(0, 64))
		write(r, p.A, ibv.WR_SEND, b.SGE(0, 8), 0, 0)
		r.Completion(p.ASend)
		return p.B
	}},
	{what: "ERR of a queue pair with a shared receive queue", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		qp := r.SharingQP(ibv.QPT_RC, r.CQ(8), r.SRQ(8))
		r.Bring(qp, ibv.QPS_RTS)
		r.Move(qp, ibv.QPS_ERR)
		return qp
	}},
	{what: "fewer shared receives than the limit", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		srq, cq, b := r.SRQ(8), r.CQ(8), r.Buffer(64, local)
		r.RecvSRQ(srq, 1, b.SGE(0, 64))
		r.RecvSRQ(srq, 2, b.SGE(0, 64))
		r.Check(verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 2}, ibv.SRQ_LIMIT))
		send := r.CQ(8)
		from, to := r.QP(ibv.QPT_RC, send, send), r.SharingQP(ibv.QPT_RC, cq, srq)
		r.Connect(from, to)
		write(r, from, ibv.WR_SEND, b.SGE(0, 8), 0, 0)
		r.Check(status(r.Completion(cq)))
		return srq
	}},
	{what: "SQD with notification", of: func(r *testbed.Testbed, _ *testbed.Spare) any {
		p := r.Pair(ibv.QPT_RC)
		r.Check(verbs.ModifyQP(p.A, &ibv.QPAttr{QPState: ibv.QPS_SQD, EnSQDAsyncNotify: 1},
			ibv.QP_STATE|ibv.QP_EN_SQD_ASYNC_NOTIFY))
		return p.A
	}},
	{what: "the network device goes down", of: func(r *testbed.Testbed, s *testbed.Spare) any {
		r.Check(s.SetLink(false))
		return nil
	}},
	{what: "the network device goes down and up", of: func(r *testbed.Testbed, s *testbed.Spare) any {
		r.Check(s.SetLink(false))
		r.Check(s.SetLink(true))
		return nil
	}},
	{what: "a new address", of: func(_ *testbed.Testbed, s *testbed.Spare) any {
		s.AddAddress(net.IPv4(10, 79, 0, 1))
		return nil
	}},
	{what: "the MTU of the network device changes", of: func(r *testbed.Testbed, s *testbed.Spare) any {
		r.Check(s.SetMTU(3000))
		return nil
	}},
	{event: ibv.EVENT_QP_REQ_ERR, why: noEvent},
	{event: ibv.EVENT_QP_FATAL, why: noEvent},
	{event: ibv.EVENT_COMM_EST, why: noEvent},
	{event: ibv.EVENT_PATH_MIG, why: "Soft-RoCE has no alternate paths"},
	{event: ibv.EVENT_PATH_MIG_ERR, why: "Soft-RoCE has no alternate paths"},
	{event: ibv.EVENT_LID_CHANGE, why: "RoCE has no LIDs"},
	{event: ibv.EVENT_SM_CHANGE, why: "RoCE has no subnet manager"},
	{event: ibv.EVENT_CLIENT_REREGISTER, why: "RoCE has no subnet manager"},
	{event: ibv.EVENT_PKEY_CHANGE, why: "Soft-RoCE has one P_Key, which does not change"},
	{event: ibv.EVENT_SRQ_ERR, why: "a program cannot break a shared receive queue"},
	{event: ibv.EVENT_WQ_FATAL, why: "Soft-RoCE has no separate work queues"},
	{event: ibv.EVENT_DEVICE_FATAL, why: "Soft-RoCE does not go while it is open: removed-KERNEL.csv"},
	{event: ibv.EVENT_DEVICE_SPEED_CHANGE, why: "the speed of a dummy device does not change"},
}

const noEvent = "none of the listed causes raises it"

// TestEvents measures which causes raise which events. Events that cannot occur are listed with the reason.
func TestEvents(t *testing.T) {
	home := testbed.Open(t)
	table := results.Table{Columns: []string{"occurrence", "events", "not_provoked"}, Keys: 1}
	for _, o := range occurrences {
		if o.of == nil {
			table.Rows = append(table.Rows, []string{trim(o.event.String()), "-", o.why})
			continue
		}
		t.Run(o.what, func(t *testing.T) {
			spare := home.For(t).Spare()
			r := spare.Open()
			require.NoError(t, unix.SetNonblock(int(r.Context.AsyncFD), true))
			events(t, r, nil) // discard earlier events
			element := o.of(r, spare)
			require.NoError(t, testbed.Elapse(time.Second))
			table.Rows = append(table.Rows, []string{o.what, events(t, r, element), "-"})
		})
	}
	check(t, "events", table)
}

// events reads pending events and returns their distinct names in order. Events of an object must refer to element.
func events(t *testing.T, r *testbed.Testbed, element any) (names string) {
	t.Helper()
	event := &testbed.Records[ibv.AsyncEvent](r, 1)[0]
	for wait := time.Now().Add(testbed.QuietTime(2 * unsignalled)); time.Now().Before(wait); {
		err := verbs.GetAsyncEvent(r.Context, event)
		if err != nil {
			require.Equal(t, "EAGAIN", errnoName(err))
			time.Sleep(time.Millisecond)
			continue
		}
		name := trim(event.EventType.String())
		switch of := element.(type) {
		case *ibv.CQ:
			if event.EventType == ibv.EVENT_QP_FATAL { // of a queue pair that uses that completion queue
				break
			}
			assert.Equal(t, ibv.PtrTo(of), *event.Element.CQ(), name)
		case *ibv.QP:
			assert.Equal(t, ibv.PtrTo(of), *event.Element.QP(), name)
		case *ibv.SRQ:
			assert.Equal(t, ibv.PtrTo(of), *event.Element.SRQ(), name)
		default:
			assert.EqualValues(t, testbed.PortNum, *event.Element.PortNum(), name)
		}
		require.NoError(t, verbs.AckAsyncEvent(event))
		if names == "" {
			names = name
		} else if last := names[max(0, len(names)-len(name)):]; last != name {
			names += " " + name
		}
	}
	if names == "" {
		return "none"
	}
	return names
}

// write posts one signaled work request.
func write(r *testbed.Testbed, qp *ibv.QP, opcode ibv.WROpcode, sge ibv.SGE, remote uint64, rkey uint32) {
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = opcode, ibv.SEND_SIGNALED, sge
	*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}
	_, err := l.Post(qp)
	r.Check(err)
	time.Sleep(2 * time.Millisecond)
}

// TestDeviceRemoved measures the effect of removing an open device, which varies. After the device is closed, it no
// longer exists, and a device that was listed earlier cannot be opened.
func TestDeviceRemoved(t *testing.T) {
	home := testbed.Open(t)
	table := results.Table{Columns: []string{"question", "answer"}, Keys: 1}
	note := func(question, answer string) { table.Rows = append(table.Rows, []string{question, answer}) }
	spare := home.Spare()
	removed := make(chan error, 1)
	t.Run("open", func(t *testing.T) {
		r := spare.OpenFor(t)
		require.NoError(t, unix.SetNonblock(int(r.Context.AsyncFD), true))
		events(t, r, nil)
		p, b, l := r.Pair(ibv.QPT_RC), r.Buffer(64, local), r.Sends(1)
		r.Recv(p.B, 1, b.SGE(0, 64))
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND, ibv.SEND_SIGNALED, b.SGE(0, 8)
		go func() { removed <- spare.Remove() }()
		select {
		case err := <-removed:
			removed <- err
			note("the device is removed while it is open", "yes")
		case <-time.After(time.Second):
			note("the device is removed while it is open", "when it is closed")
		}
		note("events", events(t, r, nil))
		note("ibv_query_port", errnoName(verbs.QueryPort(r.Context, testbed.PortNum, new(ibv.PortAttr))))
		note("ibv_alloc_pd", errnoName(created(r, verbs.DeallocPD)(verbs.AllocPD(r.Context))))
		_, err := l.Post(p.A)
		note("ibv_post_send", errnoName(err))
		wc, received, err := testbed.Poll(p.ASend, opTimeout/4)
		require.NoError(t, err)
		note("completion", completion(wc, received)[0])
	})
	select {
	case err := <-removed:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the device still exists after it was closed")
	}
	_, err := netlink.RdmaLinkByName(spare.Name)
	assert.Error(t, err, "removed")
	check(t, "removed", table)
}
