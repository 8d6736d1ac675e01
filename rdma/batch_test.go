// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// polling is a path that calls a function on each poll and never has completions.
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

// TestUnsignalledSendsThatFillTheQueue follows the advice in docs/guide-libibverbs.md.
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
		local, err := qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, qp.Connect(local))
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

// TestWaitForUnsignalled: the error of a wait mentions unsignaled requests only if some are outstanding.
func TestWaitForUnsignalled(t *testing.T) {
	cq, qp := ownPeer(t)
	b := sendBatch(t, 2, 1, 0)
	wcs := make([]ibv.WC, 1)
	wait := func() (errs []error) {
		for _, wait := range []func(context.Context, []ibv.WC) (int, error){cq.Wait, cq.WaitBusy} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := wait(ctx, wcs)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			errs = append(errs, err)
		}
		return errs
	}
	for _, err := range wait() {
		assert.NotContains(t, err.Error(), "signalled")
	}
	b.Write(1, 0, 0)
	_, err := qp.PostSend(b)
	require.NoError(t, err)
	for _, err := range wait() {
		assert.ErrorContains(t, err, fmt.Sprintf("1 requests of QP %#x are unsignaled and complete only "+
			"if they fail: set Signaled", qp.Num()))
	}
	b.Reset()
	b.Write(2, 0, 0).Signaled()
	_, err = qp.PostSend(b)
	require.NoError(t, err)
	_, err = cq.Wait(t.Context(), wcs)
	require.NoError(t, err)
	for _, err := range wait() {
		assert.NotContains(t, err.Error(), "signalled", "the signaled request completes both")
	}
}

// ownPeer returns a queue pair connected to itself, and its completion queue with a channel.
func ownPeer(t *testing.T) (*CQ, *QP) {
	pd := softPD(t)
	channel, err := pd.Device().CreateCompChannel()
	keep(t, channel, err)
	cq, err := pd.Device().CreateCQ(64, channel, 0)
	keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{})
	keep(t, qp, err)
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
	return cq, qp
}
