// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// queried lists the attributes that ibv_query_qp returns, as text. Sequence numbers are relative to the initial one;
// "-" is 0 before it is set.
var queried = []struct {
	name string
	text func(q *query, a *ibv.QPAttr, init *ibv.QPInitAttr) string
}{
	{"qp_state", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return trim(a.QPState.String()) }},
	{"cur_qp_state", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return trim(a.CurQPState.String()) }},
	{"sq_psn", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return since(a.SQPSN) }},
	{"rq_psn", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return since(a.RQPSN) }},
	{"dest_qp_num", func(q *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return named(a.DestQPNum, map[uint32]string{q.pair.A.QPNum: "peer", q.pair.B.QPNum: "peer"})
	}},
	{"access", func(q *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return named(uint32(a.QPAccessFlags), map[uint32]string{uint32(q.Access): "all"})
	}},
	{"qkey", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return named(a.QKey, map[uint32]string{testbed.QKey: "own"})
	}},
	{"path_mtu", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(uint32(a.PathMTU)) }},
	{"path_mig_state", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return fmt.Sprint(uint32(a.PathMigState))
	}},
	{"port_num", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(a.PortNum) }},
	{"pkey_index", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(a.PKeyIndex) }},
	{"rd_atomic", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return fmt.Sprint(a.MaxRdAtomic, " ", a.MaxDestRdAtomic)
	}},
	{"min_rnr_timer", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(a.MinRNRTimer) }},
	{"timeout", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(a.Timeout) }},
	{"retries", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		if testbed.Lossy() && a.RetryCnt == 7 { // set by the testbed
			a.RetryCnt = 2
		}
		return fmt.Sprint(a.RetryCnt, " ", a.RNRRetry)
	}},
	{"sqd", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return fmt.Sprint(a.EnSQDAsyncNotify, " ", a.SQDraining)
	}},
	{"ah_attr", func(q *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return q.path(&a.AHAttr) }},
	{"alt", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string {
		return fmt.Sprint(a.AltPKeyIndex, " ", a.AltPortNum, " ", a.AltTimeout, " ", a.AltAHAttr == ibv.AHAttr{})
	}},
	{"rate_limit", func(_ *query, a *ibv.QPAttr, _ *ibv.QPInitAttr) string { return fmt.Sprint(a.RateLimit) }},
	{"init", func(q *query, a *ibv.QPAttr, i *ibv.QPInitAttr) string {
		return fmt.Sprint(trim(i.QPType.String()), " ", i.SQSigAll, " ", i.Cap == a.Cap, " ", i.QPContext,
			" ", i.SRQ)
	}},
}

// firstPSN is the initial packet sequence number of each direction of a testbed's queue pair.
const firstPSN = 77

func since(psn uint32) string {
	if psn == 0 {
		return "-"
	}
	return fmt.Sprint(int32(psn) - firstPSN)
}

func named(v uint32, names map[uint32]string) string {
	if name, ok := names[v]; ok {
		return name
	}
	return fmt.Sprint(v)
}

// query has two connected queue pairs to query.
type query struct {
	*testbed.Testbed
	pair          *testbed.Pair
	kind          ibv.QPType
	ah            *ibv.AH
	local, remote *testbed.Buffer
}

func (q *query) path(a *ibv.AHAttr) string {
	if *a == (ibv.AHAttr{}) {
		return "zeros"
	}
	g := &a.GRH
	gid, index := "other GID", "other index"
	if g.DGID == q.GID {
		gid = "peer"
	} else if g.DGID == (ibv.GID{}) {
		gid = "no GID"
	}
	if g.SGIDIndex == q.Index {
		index = "own"
	} else if g.SGIDIndex == 0 {
		index = "0"
	}
	return strings.Join([]string{gid, index, fmt.Sprint("hop limit ", g.HopLimit), fmt.Sprint("class ", g.TrafficClass),
		fmt.Sprint("label ", g.FlowLabel), fmt.Sprint("global ", a.IsGlobal), fmt.Sprint("port ", a.PortNum),
		fmt.Sprint("sl ", a.SL), fmt.Sprint("dlid ", a.DLID)}, ", ")
}

// attributesOf returns the columns of a queue pair's attributes.
func (q *query) attributesOf(qp *ibv.QP) (columns []string) {
	attr, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	q.Check(verbs.QueryQP(qp, attr, ibv.QP_STATE, init))
	for _, one := range queried {
		columns = append(columns, one.text(q, attr, init))
	}
	return columns
}

// do posts a signaled request of length bytes and waits for its completion.
func (q *query) do(op ibv.WROpcode, length int) {
	if op == ibv.WR_SEND {
		q.Recv(q.pair.B, 7, q.remote.SGE(4096, 4096))
	}
	l := q.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = op, ibv.SEND_SIGNALED, q.local.SGE(0, length)
	switch {
	case q.kind == ibv.QPT_UD:
		*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(q.ah), RemoteQPN: q.pair.B.QPNum, RemoteQKey: testbed.QKey}
	case op == ibv.WR_ATOMIC_FETCH_AND_ADD:
		*l.WRs[0].WR.Atomic() = ibv.SendAtomic{RemoteAddr: q.remote.Address(0), RKey: q.remote.MR.RKey, CompareAdd: 1}
	default:
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: q.remote.Address(0), RKey: q.remote.MR.RKey}
	}
	_, err := l.Post(q.pair.A)
	q.Check(err)
	q.Check(status(q.Completion(q.pair.ASend)))
	if op == ibv.WR_SEND {
		q.Check(status(q.Completion(q.pair.BRecv)))
	}
}

func (q *query) modify(qp *ibv.QP, attr ibv.QPAttr, mask ibv.QPAttrMask) {
	q.Check(verbs.ModifyQP(qp, &attr, mask))
}

// TestQueryQP measures the attributes that ibv_query_qp returns in each state and after traffic.
func TestQueryQP(t *testing.T) {
	r := testbed.Open(t)
	table := results.Table{Columns: []string{"qp_type", "when", "queue_pair"}, Keys: 3}
	for _, one := range queried {
		table.Columns = append(table.Columns, one.name)
	}
	for _, kind := range creatable {
		t.Run(trim(kind.String()), func(t *testing.T) {
			sub := r.For(t)
			q := &query{Testbed: sub, kind: kind, local: sub.Buffer(8192, sub.Access), remote: sub.Buffer(8192, sub.Access)}
			q.pair = &testbed.Pair{ASend: r.CQ(16), ARecv: r.CQ(16), BSend: r.CQ(16), BRecv: r.CQ(16)}
			q.pair.A, q.pair.B = sub.QP(kind, q.pair.ASend, q.pair.ARecv), sub.QP(kind, q.pair.BSend, q.pair.BRecv)
			asked := func(when, which string, qp *ibv.QP) {
				table.Rows = append(table.Rows, append([]string{trim(kind.String()), when, which},
					q.attributesOf(qp)...))
			}
			a, b := q.pair.A, q.pair.B
			asked("created", "sender", a)
			q.Init(a)
			asked("INIT", "sender", a)
			q.RTR(a, b.QPNum)
			asked("RTR", "sender", a)
			q.RTS(a)
			asked("RTS", "sender", a)
			q.Init(b)
			q.RTR(b, a.QPNum)
			q.RTS(b)
			runBoth := func(when string) {
				asked(when, "sender", a)
				asked(when, "receiver", b)
			}
			if kind == ibv.QPT_UD {
				q.ah = q.Handle()
			}
			for range 3 {
				q.do(ibv.WR_SEND, 16)
			}
			runBoth("3 sends")
			if kind != ibv.QPT_UD {
				q.do(ibv.WR_SEND, 2048+16)
				runBoth("a send of 3 packets")
				q.do(ibv.WR_RDMA_WRITE, 1024)
				if kind == ibv.QPT_UC { // the peer gets no completion
					q.do(ibv.WR_SEND, 16)
				}
				runBoth("a write")
			}
			if kind == ibv.QPT_UD {
				q.do(ibv.WR_SEND, 1024)
				runBoth("a send of 1024 bytes")
			}
			if kind == ibv.QPT_RC {
				q.do(ibv.WR_RDMA_READ, 2048+16)
				runBoth("a read of 3 packets")
				q.do(ibv.WR_ATOMIC_FETCH_AND_ADD, 8)
				runBoth("an atomic")
				q.do(ibv.WR_SEND, 16)
				runBoth("a send after an atomic")
				q.modify(b, ibv.QPAttr{MinRNRTimer: 9}, ibv.QP_MIN_RNR_TIMER)
			}
			if kind == ibv.QPT_UD {
				q.modify(b, ibv.QPAttr{QKey: testbed.QKey + 1}, ibv.QP_QKEY)
			} else {
				q.modify(b, ibv.QPAttr{QPAccessFlags: ibv.ACCESS_LOCAL_WRITE}, ibv.QP_ACCESS_FLAGS)
			}
			asked("modified in RTS", "receiver", b)
			q.modify(a, ibv.QPAttr{QPState: ibv.QPS_SQD, EnSQDAsyncNotify: 1},
				ibv.QP_STATE|ibv.QP_EN_SQD_ASYNC_NOTIFY)
			require.Eventually(t, func() bool {
				attr := new(ibv.QPAttr)
				q.Check(verbs.QueryQP(a, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
				return attr.SQDraining == 0
			}, opTimeout, nothingMore/50)
			asked("SQD", "sender", a)
			if kind == ibv.QPT_RC {
				q.modify(a, ibv.QPAttr{Timeout: 15, RetryCnt: 3, RNRRetry: 4, MaxRdAtomic: 1, MaxDestRdAtomic: 1},
					ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|
						ibv.QP_MAX_DEST_RD_ATOMIC)
				asked("modified in SQD", "sender", a)
			}
			q.Move(a, ibv.QPS_RTS)
			asked("RTS again", "sender", a)
			q.Move(a, ibv.QPS_ERR)
			asked("ERR", "sender", a)
			q.Move(a, ibv.QPS_RESET)
			asked("RESET", "sender", a)
			q.Init(a)
			asked("INIT again", "sender", a)
		})
	}
	check(t, "query_qp", table)
}
