// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
)

// loopback is a data path in Go that completes every request, except those with wr_id refuse, which it rejects.
type loopback struct {
	done  []ibv.WC
	armed []bool
}

const refuse = 99

func (l *loopback) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	for w := list; w != nil; w = w.Next.Deref() {
		if w.WRID == refuse {
			*bad = ibv.PtrTo(w)
			return int32(syscall.ENOMEM)
		}
		if w.SendFlags&ibv.SEND_SIGNALED != 0 {
			l.done = append(l.done, ibv.WC{WRID: w.WRID, QPNum: qp.QPNum, Opcode: ibv.WC_SEND})
		}
	}
	return 0
}

func (l *loopback) receive(qpNum uint32, list *ibv.RecvWR) int32 {
	for w := list; w != nil; w = w.Next.Deref() {
		l.done = append(l.done, ibv.WC{WRID: w.WRID, QPNum: qpNum, Opcode: ibv.WC_RECV})
	}
	return 0
}

func (l *loopback) PostRecv(qp *ibv.QP, list *ibv.RecvWR, _ *ibv.Ptr[ibv.RecvWR]) int32 {
	return l.receive(qp.QPNum, list)
}

func (l *loopback) PostSRQRecv(_ *ibv.SRQ, list *ibv.RecvWR, _ *ibv.Ptr[ibv.RecvWR]) int32 {
	return l.receive(0x12, list)
}

func (l *loopback) PostWQRecv(_ *ibv.WQ, list *ibv.RecvWR, _ *ibv.Ptr[ibv.RecvWR]) int32 {
	return l.receive(0x12, list)
}

func (l *loopback) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	n := copy(wcs, l.done)
	l.done = l.done[n:]
	return int32(n)
}

func (l *loopback) Arm(_ *ibv.CQ, solicitedOnly bool) int32 {
	l.armed = append(l.armed, solicitedOnly)
	return 0
}

// A Path serves posts, polls and arming of checked and unchecked queues. The functions in the device's context are not
// called and may be missing.
func TestPathInGo(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(4, 1, 0), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			d.context.Ops = ibv.ContextOps{}
			l := &loopback{}
			o.Path = l
			send := sendQueue(t, d, o)
			recv, err := NewRecvQueue(&d.qp, o)
			require.NoError(t, err)
			shared, err := NewSharedRecvQueue(&d.srq, o)
			require.NoError(t, err)
			cq, err := NewCompletionQueue(&d.cq, o)
			require.NoError(t, err)
			cq.Track(0x12, send, recv)
			b, r := sendBatch(t, 4, 1, 0), recvBatch(t, 4, 1)
			wcs := make([]ibv.WC, 8)
			for round := range uint64(5) {
				posted, err := send.Post(writes(b, 10*round, 4))
				require.NoError(t, err)
				require.Equal(t, 4, posted)
				r.Reset()
				r.Recv(10*round + 5)
				_, err = recv.Post(r)
				require.NoError(t, err)
				n, err := cq.Poll(wcs)
				require.NoError(t, err)
				require.Equal(t, 2, n)
				require.Equal(t, []uint64{10*round + 3, 10*round + 5}, []uint64{wcs[0].WRID, wcs[1].WRID})
			}
			r.Reset()
			r.Recv(7)
			_, err = shared.Post(r)
			require.NoError(t, err)
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			require.NoError(t, cq.ReqNotify(true))
			assert.Equal(t, []bool{true}, l.armed)

			posted, err := send.Post(writes(b, refuse-1, 3))
			assert.Equal(t, 1, posted)
			var e *PostError
			require.True(t, errors.As(err, &e))
			assert.Equal(t, PostError{Verb: "ibv_post_send", QPNum: 0x12, QPType: ibv.QPT_RC, Index: 1,
				WRID: refuse, Errno: syscall.ENOMEM}, *e)
			assert.Equal(t, provider.Software, send.Provider())
		})
	}
}
