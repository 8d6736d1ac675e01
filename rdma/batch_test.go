// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// polling is a path that finds nothing, and tells of each poll.
type polling func()

func (p polling) Poll(*ibv.CQ, []ibv.WC) int32 { p(); return 0 }
func (polling) Arm(*ibv.CQ, bool) int32        { return 0 }

func (polling) PostSend(*ibv.QP, *ibv.SendWR, *ibv.Ptr[ibv.SendWR]) int32     { return 0 }
func (polling) PostRecv(*ibv.QP, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32     { return 0 }
func (polling) PostSRQRecv(*ibv.SRQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 { return 0 }
func (polling) PostWQRecv(*ibv.WQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32   { return 0 }

func sendBatch(t testing.TB, requests, sges, inline int) *SendBatch {
	b, err := NewSendBatch(requests, sges, inline)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func recvBatch(t testing.TB, requests, sges int) *RecvBatch {
	b, err := NewRecvBatch(requests, sges)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// TestUnsignalledSendsThatFillTheQueue: what docs/guide-libibverbs.md says to do.
func TestUnsignalledSendsThatFillTheQueue(t *testing.T) {
	const n = 4
	post := func(slots uint32, o QueueOptions, last func(SendRequest) SendRequest) error {
		pd := softPD(t)
		cq, err := pd.Device().CreateCQ(64, nil, 0)
		keep(t, cq, err)
		attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: slots, MaxSendSGE: 1}}
		qp, err := pd.CreateQP(attr, o)
		keep(t, qp, err)
		own, err := qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, qp.Connect(own))
		b := sendBatch(t, n, 1, 0)
		for i := range n {
			if r := b.Write(uint64(i), 0, 0); i == n-1 {
				last(r)
			}
		}
		posted, err := qp.PostSend(b)
		if err == nil {
			assert.Equal(t, n, posted)
		}
		return err
	}
	silent := func(r SendRequest) SendRequest { return r }
	assert.ErrorContains(t, post(n, QueueOptions{}, silent), "set IBV_SEND_SIGNALED on at least one")
	assert.NoError(t, post(n, QueueOptions{}, SendRequest.Signaled))
	assert.NoError(t, post(n+1, QueueOptions{}, silent))
	assert.NoError(t, post(n, QueueOptions{Unchecked: true}, silent))
}
