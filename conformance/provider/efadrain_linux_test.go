// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/efa"
)

// TestEFADrain checks that a drain of an EFA queue pair ends when all requests have completed, including those that
// wait indefinitely for a receiver, that the queue pair can then be used again, and that draining fails if requests are
// not counted.
func TestEFADrain(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	for name, create := range map[string]func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error){
		"srd": func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error) { return createSRD(pd, cq, 0) },
		"ud": func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error) {
			return pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_UD, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: room},
				rdma.QueueOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newDatagrams(t, create)
			a := g.qps[0]
			ah, qpn, qkey := g.to(1) // without posted receives
			for range 10 {
				receive(t, a.PostRecv, g.mrs[0].SGE(0, 100), g.mrs[0].SGE(0, 100))
				for id := range uint64(5) {
					send(t, a, func(b *rdma.SendBatch) {
						b.Send(id).Add(g.mrs[0].SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
					})
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				require.NoError(t, a.Drain(ctx))
				cancel()
				wcs := make([]ibv.WC, 10)
				n, err := a.SendCQ().Poll(wcs)
				require.NoError(t, err)
				assert.Equal(t, 7, n, "Drain returns after all completions")
				assert.EqualValues(t, room.MaxSendWR, a.SendQueue().Free())
				assert.EqualValues(t, room.MaxRecvWR, a.RecvQueue().Free())
				require.NoError(t, a.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
				require.NoError(t, a.Ready())
			}
		})
	}
	g := newSRD(t, 0)
	free, err := efa.CreateDriverQP(g.pds[0], &ibv.QPInitAttr{QPType: ibv.QPT_DRIVER, SendCQ: g.qps[0].SendCQ().Ptr(),
		RecvCQ: g.qps[0].SendCQ().Ptr(), Cap: room}, efadv.QP_DRIVER_TYPE_SRD, rdma.QueueOptions{Unchecked: true})
	keep(t, free, err)
	require.NoError(t, free.Ready())
	err = free.Drain(t.Context())
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "an unchecked queue pair does not count its requests")
}
