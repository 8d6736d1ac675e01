// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// mistake is a connected RC pair with buffers, on which one mistake is made.
type mistake struct {
	*testbed.Testbed
	pair          *testbed.Pair
	local, remote *testbed.Buffer
}

// send returns a list of n signaled sends of 16 bytes each.
func (m *mistake) send(n int) *testbed.List {
	l := m.Sends(n)
	for i := range l.WRs {
		l.WRs[i].Opcode, l.WRs[i].SendFlags = ibv.WR_SEND, ibv.SEND_SIGNALED
		l.SGEs[i] = m.local.SGE(0, moved)
	}
	return l
}

// remoteOp returns a list of one request that accesses the start of the remote buffer.
func (m *mistake) remoteOp(o ibv.WROpcode, offset, length int) *testbed.List {
	l := m.send(1)
	l.WRs[0].Opcode = o
	l.SGEs[0].Length = uint32(length)
	if o == ibv.WR_ATOMIC_FETCH_AND_ADD {
		*l.WRs[0].WR.Atomic() = ibv.SendAtomic{RemoteAddr: m.remote.Address(0) + uint64(offset), RKey: m.remote.MR.RKey,
			CompareAdd: 1}
	} else {
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: m.remote.Address(0) + uint64(offset), RKey: m.remote.MR.RKey}
	}
	return l
}

func (m *mistake) recv(length int) { m.Recv(m.pair.B, 7, m.remote.SGE(0, length)) }

// replaceSender replaces the sender with a queue pair in the given state, connected to itself.
func (m *mistake) replaceSender(state ibv.QPState) {
	m.pair.A = m.QP(ibv.QPT_RC, m.pair.ASend, m.pair.ARecv)
	m.Bring(m.pair.A, state)
}

// addTooManySGEs gives work request i of a list one SGE more than the queue pair supports.
func (m *mistake) addTooManySGEs(l *testbed.List, i int) {
	n := int(m.caps().MaxSendSGE) + 1
	sges := testbed.Records[ibv.SGE](m.Testbed, n)
	for k := range sges {
		sges[k] = m.local.SGE(0, 1)
	}
	l.WRs[i].SGList, l.WRs[i].NumSGE = ibv.PtrTo(&sges[0]), int32(n)
}

// caps returns the sender's actual capacities, which providers round up.
func (m *mistake) caps() ibv.QPCap {
	init := new(ibv.QPInitAttr)
	if err := verbs.QueryQP(m.pair.A, new(ibv.QPAttr), ibv.QP_CAP, init); err != nil {
		panic(err)
	}
	return init.Cap
}

// mistakes lists the mistakes. A checked queue rejects those with a rule before the call; the others depend on keys,
// regions or the peer.
var mistakes = []struct {
	name string
	rule bool
	make func(m *mistake) *testbed.List
}{
	{"nothing wrong", false, func(m *mistake) *testbed.List { m.recv(64); return m.send(1) }},
	{"bad lkey", false, func(m *mistake) *testbed.List { m.recv(64); l := m.send(1); l.SGEs[0].LKey ^= 0xff00; return l }},
	{"local address out of range", false,
		func(m *mistake) *testbed.List { m.recv(64); l := m.send(1); l.SGEs[0].Addr += bufferLen - 8; return l }},
	{"bad rkey", false, func(m *mistake) *testbed.List {
		l := m.remoteOp(ibv.WR_RDMA_WRITE, 0, moved)
		l.WRs[0].WR.RDMA().RKey ^= 0xff00
		return l
	}},
	{"remote address out of range", false,
		func(m *mistake) *testbed.List { return m.remoteOp(ibv.WR_RDMA_WRITE, bufferLen-8, moved) }},
	{"read from remote address out of range", false,
		func(m *mistake) *testbed.List { return m.remoteOp(ibv.WR_RDMA_READ, bufferLen-8, moved) }},
	{"write to a region without remote write", false, func(m *mistake) *testbed.List {
		m.remote = m.Buffer(bufferLen, ibv.ACCESS_LOCAL_WRITE)
		return m.remoteOp(ibv.WR_RDMA_WRITE, 0, moved)
	}},
	{"no receive posted", false, func(m *mistake) *testbed.List { return m.send(1) }},
	{"peer gone", false, func(m *mistake) *testbed.List { m.Move(m.pair.B, ibv.QPS_RESET); return m.send(1) }},
	{"receive too short", false, func(m *mistake) *testbed.List { m.recv(moved - 1); return m.send(1) }},
	{"receive into a bad lkey", false, func(m *mistake) *testbed.List {
		sge := m.remote.SGE(0, 64)
		sge.LKey ^= 0xff00
		m.Recv(m.pair.B, 7, sge)
		return m.send(1)
	}},
	{"more than the send queue holds", true, func(m *mistake) *testbed.List {
		l := m.send(int(m.caps().MaxSendWR) + 3)
		for i := range l.WRs {
			m.recv(64)
			if i == 15 {
				break
			}
		}
		return l
	}},
	{"second of three has too many SGEs", true, func(m *mistake) *testbed.List {
		m.recv(64)
		l := m.send(3)
		m.addTooManySGEs(l, 1)
		return l
	}},
	{"too many " +
		"SGEs", true, func(m *mistake) *testbed.List { m.recv(64); l := m.send(1); m.addTooManySGEs(l, 0); return l }},
	{"too much inline data", true, func(m *mistake) *testbed.List {
		m.recv(512)
		l := m.send(1)
		l.WRs[0].SendFlags |= ibv.SEND_INLINE
		l.SGEs[0].Length = m.caps().MaxInlineData + 1
		return l
	}},
	{"atomic not aligned to 8", true,
		func(m *mistake) *testbed.List { return m.remoteOp(ibv.WR_ATOMIC_FETCH_AND_ADD, 4, 8) }},
	{"atomic of 4 bytes", true, func(m *mistake) *testbed.List { return m.remoteOp(ibv.WR_ATOMIC_FETCH_AND_ADD, 0, 4) }},
	{"atomic of 16 bytes", true, func(m *mistake) *testbed.List { return m.remoteOp(ibv.WR_ATOMIC_FETCH_AND_ADD, 0, 16) }},
	{"unknown opcode", true,
		func(m *mistake) *testbed.List { l := m.send(1); l.WRs[0].Opcode = 255; return l }},
	{"opcode not for the queue pair's type", true,
		func(m *mistake) *testbed.List { l := m.send(1); l.WRs[0].Opcode = ibv.WR_TSO; return l }},
	{"builder-only opcode", true,
		func(m *mistake) *testbed.List { l := m.send(1); l.WRs[0].Opcode = ibv.WR_ATOMIC_WRITE; return l }},
	{"unknown send flag", true,
		func(m *mistake) *testbed.List { m.recv(64); l := m.send(1); l.WRs[0].SendFlags |= 1 << 20; return l }},
	{"send flag not for the opcode", true, func(m *mistake) *testbed.List {
		l := m.remoteOp(ibv.WR_RDMA_READ, 0, moved)
		l.WRs[0].SendFlags |= ibv.SEND_INLINE
		return l
	}},
	{"message longer than max_msg_sz, and than its region", true, func(m *mistake) *testbed.List {
		return m.remoteOp(ibv.WR_RDMA_WRITE, 0, int(m.Port.MaxMsgSz)+1)
	}},
	{"datagram longer than the MTU", true, func(m *mistake) *testbed.List {
		m.pair = m.Pair(ibv.QPT_UD)
		m.local, m.remote = m.Buffer(8192, local), m.Buffer(8192, local)
		m.recv(8192)
		l := m.send(1)
		l.SGEs[0].Length = m.mtu() + 1
		*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(m.Handle()), RemoteQPN: m.pair.B.QPNum, RemoteQKey: testbed.QKey}
		return l
	}},
	{"send in RESET", true, func(m *mistake) *testbed.List { m.replaceSender(ibv.QPS_RESET); return m.send(1) }},
	{"send in INIT", true, func(m *mistake) *testbed.List { m.replaceSender(ibv.QPS_INIT); return m.send(1) }},
	{"send in RTR", true, func(m *mistake) *testbed.List { m.replaceSender(ibv.QPS_RTR); return m.send(1) }},
	{"two sends in ERR", false, func(m *mistake) *testbed.List { m.Move(m.pair.A, ibv.QPS_ERR); return m.send(2) }},
}

// TestMistakes records the result of each mistake: the error of the post, the completions of both sides in order, the
// states afterwards, and the error of a checked queue.
func TestMistakes(t *testing.T) {
	r := testbed.Open(t)
	b := newBuffers(r)
	table := results.Table{Columns: []string{"mistake", "post", "bad_wr", "sent", "received", "qp_state", "checked"},
		Keys: 1}
	for _, c := range mistakes {
		t.Run(c.name, func(t *testing.T) {
			stage := func() *mistake {
				m := &mistake{Testbed: r.For(t), local: b.local, remote: b.remote}
				m.pair = m.Pair(ibv.QPT_RC)
				return m
			}
			checked := stage()
			reason := checked.rejection(t, c.make(checked))
			assert.Equal(t, c.rule, reason != passes, reason)
			m := stage()
			l := c.make(m)
			bad, err := l.Post(m.pair.A)
			place := "none"
			if bad >= 0 {
				place = strconv.Itoa(bad)
			}
			first := opTimeout
			if err != nil && bad == 0 {
				first = nothingMore
			}
			sent := all(t, m.pair.ASend, first)
			received := all(t, m.pair.BRecv, more)
			table.Rows = append(table.Rows,
				[]string{c.name, errnoName(err), place, sent, received, trim(m.State(m.pair.A).String()), reason})
		})
	}
	check(t, "mistakes", table)
}

const passes = "passes"

// rejection returns the error of a checked queue for a list, with the work request that it names. Lists that violate no
// rule are posted.
func (m *mistake) rejection(t *testing.T, l *testbed.List) string {
	t.Helper()
	qp := m.pair.A
	o := rdma.QueueOptions{Cap: m.caps(), MaxMessage: m.Port.MaxMsgSz}
	if qp.QPType == ibv.QPT_UD {
		o.MaxMessage = m.mtu()
	}
	q, err := rdma.NewSendQueue(qp, o)
	require.NoError(t, err)
	batch, err := rdma.NewSendBatch(len(l.WRs), int(o.Cap.MaxSendSGE)+1, 0)
	require.NoError(t, err)
	defer batch.Close()
	for i := range l.WRs {
		request := batch.Send(l.WRs[i].WRID)
		if l.WRs[i].NumSGE > 0 {
			for _, sge := range unsafe.Slice(l.WRs[i].SGList.Deref(), l.WRs[i].NumSGE) {
				request.Add(sge)
			}
		}
		w := batch.WR(i)
		own := *w
		*w = l.WRs[i]
		w.Next, w.SGList = own.Next, own.SGList
	}
	posted, err := q.Post(batch)
	if err == nil {
		return passes
	}
	var refused *rdma.PostError
	require.ErrorAs(t, err, &refused)
	require.NotEmpty(t, refused.Reason, "the provider rejected it: %v", err)
	assert.Zero(t, posted)
	assert.Equal(t, "none", all(t, m.pair.ASend, nothingMore), "nothing was posted")
	reason := addresses.ReplaceAllString(refused.Reason, "ADDRESS")
	return fmt.Sprintf("WR %d: %s: %s", refused.Index, reason, errnoName(refused))
}

// addresses matches memory addresses, which vary between runs.
var addresses = regexp.MustCompile(`0x[0-9a-f]{8,}`)

// mtu returns the maximum size of a datagram.
func (m *mistake) mtu() uint32 { return 128 << m.Port.ActiveMTU }

// more is how long to wait for another completion of the same list.
const more = 100 * time.Millisecond

// all returns the statuses of the completions, with repeated ones abbreviated as 3*SUCCESS. It waits longer for the
// first one.
func all(t *testing.T, cq *ibv.CQ, wait time.Duration) string {
	t.Helper()
	var statuses []string
	for {
		wc, received := poll(t, cq, wait)
		if !received {
			break
		}
		statuses = append(statuses, trim(wc.Status.String()))
		wait = more
	}
	if statuses == nil {
		return "none"
	}
	var runs []string
	for i := 0; i < len(statuses); {
		n := 1
		for i+n < len(statuses) && statuses[i+n] == statuses[i] {
			n++
		}
		if n == 1 {
			runs = append(runs, statuses[i])
		} else {
			runs = append(runs, strconv.Itoa(n)+"*"+statuses[i])
		}
		i += n
	}
	return strings.Join(runs, " ")
}

// TestRecvInStates records in which states receives can be posted, and whether they are flushed.
func TestRecvInStates(t *testing.T) {
	r := testbed.Open(t)
	b := newBuffers(r)
	table := results.Table{Columns: []string{"qp_state", "post", "bad_wr", "received"}, Keys: 1}
	for _, state := range states {
		t.Run(trim(state.String()), func(t *testing.T) {
			sub := r.For(t)
			cq := sub.CQ(16)
			qp := sub.QP(ibv.QPT_RC, cq, cq)
			sub.Bring(qp, state)
			if state == ibv.QPS_ERR {
				// the kernel flushes posted receives shortly after it enters the state, and the provider does not
				// notify it of receives
				time.Sleep(nothingMore)
			}
			sges, wr, bad := testbed.Records[ibv.SGE](sub, 1), &testbed.Records[ibv.RecvWR](sub, 1)[0],
				&testbed.Records[ibv.Ptr[ibv.RecvWR]](sub, 1)[0]
			sges[0] = b.local.SGE(0, 64)
			*wr = ibv.RecvWR{WRID: 5, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
			err := verbs.PostRecv(qp, wr, bad)
			place := "none"
			if *bad == ibv.PtrTo(wr) {
				place = "0"
			}
			wait := nothingMore
			if state == ibv.QPS_ERR {
				wait = opTimeout / 4
			}
			table.Rows = append(table.Rows, []string{trim(state.String()), errnoName(err), place, all(t, cq, wait)})
		})
	}
	check(t, "post_recv", table)
}
