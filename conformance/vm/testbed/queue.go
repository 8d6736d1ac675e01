// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// CQ creates a completion queue.
func (r *Testbed) CQ(entries int) *ibv.CQ {
	r.t.Helper()
	cq, err := verbs.CreateCQ(r.Context, entries, 0, nil, 0)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyCQ(cq)) })
	return cq
}

// QuietTime returns how long to wait for something that may not happen. It is short on a software device, where
// responses arrive during the post, unless d is at least half a second, which is meant for timeouts.
func QuietTime(d time.Duration) time.Duration {
	if os.Getenv(wire.EnvGuest) == Soft && d < 500*time.Millisecond {
		return d / 25
	}
	return d
}

// Within calls wait, which waits for an event, and returns an error that names the event if it does not occur within a
// minute.
func Within(event string, wait func() error) error {
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("no %s within a minute", event)
	}
}

// Poll polls for a completion until the timeout, and returns false if there is none. It sleeps between polls, so that a
// guest with one processor makes progress. It makes a minimum number of polls, so that the timeout is longer on a busy
// machine, where the goroutines of a software device, or the kernel of a guest, run as late as this one.
func Poll(cq *ibv.CQ, timeout time.Duration) (ibv.WC, bool, error) {
	wc := new(ibv.WC)
	wait := QuietTime(timeout)
	least := int(min(timeout/pollsOfKernel, wait/(100*time.Microsecond)))
	deadline := time.Now().Add(wait)
	for polls := 1; ; polls++ {
		n, err := verbs.PollCQ(cq, 1, wc)
		if err != nil || n == 1 {
			return *wc, n == 1, err
		}
		if polls >= least && time.Now().After(deadline) {
			if err = Elapse(timeout); err == nil {
				n, err = verbs.PollCQ(cq, 1, wc)
			}
			return *wc, n == 1, err
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// pollsOfKernel is the timeout for which a poll is made at least, so that a guest which the host does not schedule has
// time to work. A poll and its sleep take longer in an emulated guest.
const pollsOfKernel = 300 * time.Microsecond

// Completion waits for a completion and fails the test if there is none.
func (r *Testbed) Completion(cq *ibv.CQ) ibv.WC {
	r.t.Helper()
	wc, ok, err := Poll(cq, 5*time.Second)
	require.NoError(r.t, err)
	if r.Patient && !ok {
		for ctx := GuestTime(r.t, time.Minute); !ok && ctx.Err() == nil; {
			wc, ok, err = Poll(cq, time.Second)
			require.NoError(r.t, err)
		}
	}
	require.True(r.t, ok, "no completion")
	return wc
}

// Caps are sufficient capacities for these tests.
var Caps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

// QP creates a queue pair, which is in state RESET.
func (r *Testbed) QP(kind ibv.QPType, send, recv *ibv.CQ) *ibv.QP {
	r.t.Helper()
	qp, err := verbs.CreateQP(r.PD, &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(send), RecvCQ: ibv.PtrTo(recv),
		Cap: Caps})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyQP(qp)) })
	return qp
}

// QKey is the Q_Key of every UD queue pair.
const QKey = 0x11111111

// AH describes the path to the testbed's port.
func (r *Testbed) AH() ibv.AHAttr {
	return ibv.AHAttr{PortNum: PortNum, IsGlobal: 1, GRH: ibv.GlobalRoute{DGID: r.GID, SGIDIndex: r.Index, HopLimit: 1}}
}

// Init moves a queue pair from RESET to INIT.
func (r *Testbed) Init(qp *ibv.QP) {
	r.t.Helper()
	attr := &ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: PortNum, QPAccessFlags: r.Access, QKey: QKey}
	mask := ibv.QP_STATE | ibv.QP_PKEY_INDEX | ibv.QP_PORT
	if qp.QPType == ibv.QPT_UD {
		mask |= ibv.QP_QKEY
	} else {
		mask |= ibv.QP_ACCESS_FLAGS
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// RTR moves a queue pair from INIT to RTR. A connected one is connected to the queue pair peer.
func (r *Testbed) RTR(qp *ibv.QP, peer uint32) {
	r.t.Helper()
	attr := &ibv.QPAttr{
		QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024, DestQPNum: peer, RQPSN: 77, MaxDestRdAtomic: 4, MinRNRTimer: 1,
		AHAttr: r.AH(),
	}
	mask := ibv.QP_STATE
	if qp.QPType != ibv.QPT_UD {
		mask |= ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN
	}
	if qp.QPType == ibv.QPT_RC {
		mask |= ibv.QP_MAX_DEST_RD_ATOMIC | ibv.QP_MIN_RNR_TIMER
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// RTS moves a queue pair from RTR to RTS. Retries are few and short, so that failures are reported soon, except for a
// patient testbed.
func (r *Testbed) RTS(qp *ibv.QP) {
	r.t.Helper()
	attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 2, RNRRetry: 2, MaxRdAtomic: 4}
	if Lossy() { // retransmission takes no real time
		attr.RetryCnt = 7
	}
	if r.Patient {
		attr.Timeout, attr.RetryCnt, attr.RNRRetry = PeerAckTimeout, 7, 7 // unlimited if there is no receive
	}
	mask := ibv.QP_STATE | ibv.QP_SQ_PSN
	if qp.QPType == ibv.QPT_RC {
		mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// State queries a queue pair's state.
func (r *Testbed) State(qp *ibv.QP) ibv.QPState {
	r.t.Helper()
	attr := new(ibv.QPAttr)
	require.NoError(r.t, verbs.QueryQP(qp, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
	return attr.QPState
}

// Pair is two queue pairs on one device, connected to each other, with a completion queue for each direction of each.
type Pair struct {
	A, B                       *ibv.QP
	ASend, ARecv, BSend, BRecv *ibv.CQ
}

// Pair creates two queue pairs and moves them to RTS.
func (r *Testbed) Pair(kind ibv.QPType) *Pair {
	r.t.Helper()
	p := &Pair{ASend: r.CQ(16), ARecv: r.CQ(16), BSend: r.CQ(16), BRecv: r.CQ(16)}
	p.A, p.B = r.QP(kind, p.ASend, p.ARecv), r.QP(kind, p.BSend, p.BRecv)
	r.Connect(p.A, p.B)
	return p
}

// Connect moves two queue pairs from RESET to RTS, connected to each other.
func (r *Testbed) Connect(a, b *ibv.QP) {
	r.t.Helper()
	if IWARP() {
		r.connectManaged(a, b)
		return
	}
	for _, ends := range [][2]*ibv.QP{{a, b}, {b, a}} {
		r.Init(ends[0])
		r.RTR(ends[0], ends[1].QPNum)
		r.RTS(ends[0])
	}
}

// Recv posts one receive.
func (r *Testbed) Recv(qp *ibv.QP, id uint64, sge ibv.SGE) {
	r.t.Helper()
	sges, wr, bad := Records[ibv.SGE](r, 1), &Records[ibv.RecvWR](r, 1)[0], &Records[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	sges[0] = sge
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostRecv(qp, wr, bad))
}

// List is a list of linked send work requests outside the Go heap. sges are the entries of all of them.
type List struct {
	WRs  []ibv.SendWR
	SGEs []ibv.SGE
	bad  *ibv.Ptr[ibv.SendWR]
}

// Sends returns a list of n work requests with one SGE each. WRIDs count from 1.
func (r *Testbed) Sends(n int) *List {
	r.t.Helper()
	l := &List{WRs: Records[ibv.SendWR](r, n), SGEs: Records[ibv.SGE](r, n),
		bad: &Records[ibv.Ptr[ibv.SendWR]](r, 1)[0]}
	for i := range l.WRs {
		l.WRs[i] = ibv.SendWR{WRID: uint64(i + 1), SGList: ibv.PtrTo(&l.SGEs[i]), NumSGE: 1}
		if i+1 < n {
			l.WRs[i].Next = ibv.PtrTo(&l.WRs[i+1])
		}
	}
	return l
}

// Post posts the list. bad is the index of the rejected work request, or -1.
func (l *List) Post(qp *ibv.QP) (bad int, err error) {
	*l.bad = 0
	err = verbs.PostSend(qp, &l.WRs[0], l.bad)
	return l.Bad(), err
}

// Bad returns the index of the work request that bad_wr points to, or -1.
func (l *List) Bad() int {
	for i := range l.WRs {
		if *l.bad == ibv.PtrTo(&l.WRs[i]) {
			return i
		}
	}
	return -1
}

// Arguments returns the arguments of ibv_post_send after the queue pair.
func (l *List) Arguments() (wr, bad uintptr) {
	return uintptr(unsafe.Pointer(&l.WRs[0])), uintptr(unsafe.Pointer(l.bad))
}

// Window allocates a type 2 memory window.
func (r *Testbed) Window() *ibv.MW {
	r.t.Helper()
	mw, err := verbs.AllocMW(r.PD, ibv.MW_TYPE_2)
	require.NoError(r.t, err)
	// a bound window is deallocated first, since destroying the queue pair would wait for it
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeallocMW(mw)) })
	return mw
}

// Bind turns wr into a request that binds a window to a complete buffer, and returns the next key of the window.
func Bind(wr *ibv.SendWR, mw *ibv.MW, b *Buffer) uint32 {
	key := verbs.IncRKey(mw.RKey)
	wr.Opcode = ibv.WR_BIND_MW
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(mw), RKey: key, BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(b.MR), Addr: b.Address(0), Length: uint64(len(b.Bytes)), MWAccessFlags: ibv.ACCESS_REMOTE_WRITE |
			ibv.ACCESS_REMOTE_READ,
	}}
	return key
}

// Bound allocates a window, binds it on a queue pair in RTS, whose send completions go to cq, and returns its key.
func (r *Testbed) Bound(qp *ibv.QP, cq *ibv.CQ, b *Buffer) uint32 {
	r.t.Helper()
	return r.BindOn(qp, cq, r.Window(), b)
}

// BindOn binds a window on a queue pair in RTS, whose send completions go to cq, and returns its key.
func (r *Testbed) BindOn(qp *ibv.QP, cq *ibv.CQ, mw *ibv.MW, b *Buffer) uint32 {
	r.t.Helper()
	l := r.Sends(1)
	key := Bind(&l.WRs[0], mw, b)
	l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.SEND_SIGNALED, 0
	_, err := l.Post(qp)
	require.NoError(r.t, err)
	require.Equal(r.t, ibv.WC_SUCCESS, r.Completion(cq).Status, "binding a window")
	return key
}

// SRQ creates a shared receive queue.
func (r *Testbed) SRQ(size uint32) *ibv.SRQ {
	r.t.Helper()
	srq, err := verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: size, MaxSGE: 1}})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroySRQ(srq)) })
	return srq
}

// SharingQP creates a queue pair with a shared receive queue.
func (r *Testbed) SharingQP(kind ibv.QPType, cq *ibv.CQ, srq *ibv.SRQ) *ibv.QP {
	r.t.Helper()
	qp, err := verbs.CreateQP(r.PD, &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		SRQ: ibv.PtrTo(srq), Cap: Caps})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyQP(qp)) })
	return qp
}

// RecvSRQ posts one receive to a shared queue.
func (r *Testbed) RecvSRQ(srq *ibv.SRQ, id uint64, sge ibv.SGE) {
	r.t.Helper()
	sges, wr, bad := Records[ibv.SGE](r, 1), &Records[ibv.RecvWR](r, 1)[0], &Records[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	sges[0] = sge
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostSRQRecv(srq, wr, bad))
}

// Handle creates an address handle for the testbed's port.
func (r *Testbed) Handle() *ibv.AH {
	r.t.Helper()
	attr := r.AH()
	ah, err := verbs.CreateAH(r.PD, &attr)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyAH(ah)) })
	return ah
}

// Bring moves a queue pair from RESET to a state, connected to itself.
func (r *Testbed) Bring(qp *ibv.QP, to ibv.QPState) {
	r.t.Helper()
	if to == ibv.QPS_RESET {
		return
	}
	r.Init(qp)
	if to == ibv.QPS_INIT {
		return
	}
	if to == ibv.QPS_ERR {
		r.Move(qp, to)
		return
	}
	r.RTR(qp, qp.QPNum)
	if to == ibv.QPS_RTR {
		return
	}
	r.RTS(qp)
	if to == ibv.QPS_SQD {
		r.Move(qp, to)
		r.drained(qp)
	}
}

// drained waits until a queue pair in SQD has drained its send queue. Newer kernels reject transitions before that.
func (r *Testbed) drained(qp *ibv.QP) {
	r.t.Helper()
	attr := new(ibv.QPAttr)
	require.Eventually(r.t, func() bool {
		require.NoError(r.t, verbs.QueryQP(qp, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		return attr.SQDraining == 0
	}, 2*time.Second, time.Millisecond, "the send queue does not drain")
}

// Move changes only the state of a queue pair.
func (r *Testbed) Move(qp *ibv.QP, to ibv.QPState) {
	r.t.Helper()
	require.NoError(r.t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: to}, ibv.QP_STATE))
}
