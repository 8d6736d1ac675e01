// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// post posts a list of requests. One of them may be malformed.
func (p *program) post() {
	q, n := p.anyQP(), p.draw("requests", 1, 3)
	if q == nil || p.mayWait(q, n) {
		return
	}
	malformed := -1
	if p.rarely("malformed") {
		malformed = p.draw("which", 0, n-1)
	}
	var first, last *ibv.SendWR
	var wrs []*ibv.SendWR
	taken, want := 0, error(nil)
	for i := range n {
		key := p.last[q]
		wr, s := p.request(q, false)
		if i == malformed {
			switch p.draw("kind of malformation", 0, 2) {
			case 0:
				wr.Opcode = ibv.WR_ATOMIC_WRITE
			case 1:
				wr.NumSGE = refSGEs + 1
				wr.SGList = ibv.PtrTo(&offHeap[ibv.SGE](p.testbed, refSGEs+1)[0])
			case 2:
				wr.SendFlags |= 1 << 20
			}
		}
		switch {
		case want != nil:
		case q.posted-q.retired >= refDepth:
			want = syscall.ENOMEM
		case i == malformed:
			want = syscall.EINVAL
		default:
			s.position = q.posted
			q.posted++
			taken++
			q.sends = append(q.sends, s)
		}
		if want != nil {
			p.last[q] = key
		}
		if wrs = append(wrs, wr); first == nil {
			first = wr
		} else {
			last.Next = ibv.PtrTo(wr)
		}
		last = wr
	}
	bad := &offHeap[ibv.Ptr[ibv.SendWR]](p.testbed, 1)[0]
	err := verbs.PostSend(p.qps[q], first, bad)
	if want != nil {
		require.ErrorIs(p.rt, err, want)
		require.Equal(p.rt, ibv.PtrTo(wrs[taken]), *bad, "bad_wr")
	} else {
		require.NoError(p.rt, err)
	}
	p.run()
}

// receive posts one receive or, to a shared receive queue of XRC, several.
func (p *program) receive() {
	q, n := p.anyQP(), 1
	if q == nil {
		return
	}
	if q.kind == ibv.QPT_XRC_SEND || q.kind == ibv.QPT_XRC_RECV {
		n = p.draw("receives", 1, 4)
	}
	for range n {
		p.receiveOne(q)
	}
}

func (p *program) receiveOne(q *refQP) {
	device := q.device
	pieces := append(p.pieces("receive", 120), refPiece{offset: p.draw("offset", 0, refSize-60), length: 60})
	if pieces = pieces[max(0, len(pieces)-refSGEs):]; p.rarely("short") {
		pieces = pieces[:len(pieces)-1]
	}
	if q.kind != ibv.QPT_RC || q.recvs.shared { // if the queue has room, and the pieces do not overlap
		pieces = []refPiece{{offset: p.draw("offset", 0, refSize-110), length: 110}}
	}
	p.id++
	recv := refRecv{p.id, pieces}
	var err error
	queue := q.recvs
	if q.kind == ibv.QPT_XRC_SEND || q.kind == ibv.QPT_XRC_RECV {
		device = 1
		to := p.xrc[p.draw("shared queue", 0, len(p.xrc)-1)]
		queue = to.queue
		err = p.recvShared(to.srq, p.id, p.sges(device, pieces))
	} else if queue.shared {
		err = p.recvShared(p.shared, p.id, p.sges(q.device, pieces))
	} else {
		err = p.tryRecv(p.qps[q], p.id, p.sges(q.device, pieces)...)
	}
	if queue.posted-queue.retired == refDepth {
		require.ErrorIs(p.rt, err, syscall.ENOMEM)
		return
	}
	require.NoError(p.rt, err)
	queue.posted++
	queue.recvs = append(queue.recvs, recv)
	if q.state == ibv.QPS_ERR {
		q.flush()
	}
	p.run()
}

// run executes all requests that are ready, on both sides. A sender that waits for a receive retries after
// min_rnr_timer; its peer may wait for that.
func (p *program) run() {
	if p.lossy {
		p.settle()
		return
	}
	p.world.run()
	p.fabric.Advance(4 * 40 * time.Microsecond) // programNotReady
}

func (p *program) recvShared(srq *ibv.SRQ, id uint64, sges []ibv.SGE) error {
	wr, bad := &offHeap[ibv.RecvWR](p.testbed, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](p.testbed, 1)[0]
	copied := offHeap[ibv.SGE](p.testbed, len(sges))
	copy(copied, sges)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return verbs.PostSRQRecv(srq, wr, bad)
}

// touch writes to memory. Inline data of posted requests must not change.
func (p *program) touch() {
	d, at := p.draw("device", 0, 1), p.draw("offset", 0, refSize-16)
	for i := range 16 {
		v := byte(p.id) ^ byte(i)<<3
		p.areas[d][refGuard+at+i], p.world.devices[d].main[at+i] = v, v
	}
}

// modify moves a queue pair to ERR, or from SQE to RTS.
func (p *program) modify() {
	q := p.anyQP()
	switch {
	case q == nil:
	case q.state == ibv.QPS_SQE && p.draw("recover", 0, 3) > 0:
		require.NoError(p.rt, verbs.ModifyQP(p.qps[q], &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
		q.state = ibv.QPS_RTS
	case p.rarely("to ERR"):
		require.NoError(p.rt, verbs.ModifyQP(p.qps[q], &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		q.breakDown()
		p.run()
	}
}

// destroy destroys a queue pair. Its pending requests are dropped; its completions can still be polled.
func (p *program) destroy() {
	q := p.anyQP()
	if q == nil || !p.rarely("destroy") {
		return
	}
	err := verbs.DestroyQP(p.qps[q])
	if q.key != 0 {
		require.ErrorIs(p.rt, err, syscall.EBUSY, "a window is bound to the region")
		return
	}
	require.NoError(p.rt, err)
	q.destroyed, q.sends = true, nil
	p.run()
}
