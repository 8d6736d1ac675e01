// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestExtendedQueues polls an extended queue to its end, where ibv_next_poll returns ENOENT and ibv_end_poll follows,
// and checks that each completion appears once and that messages are complete. Soft-RoCE's library of release 44.0
// fails both.
func TestExtendedQueues(t *testing.T) {
	const tests = "-test.run=^(TestExtendedQueueHasEachCompletionOnce|TestProgramsPollOneQueueAtOnce|" +
		"TestProgramData)$"
	all := []*Emulated{emulated(t)}
	if os.Getenv(envAll) != "" {
		for _, release := range []string{"56.1", "44.0"} {
			all = append(all, emulatedFor(t, release, goruntime.GOARCH))
		}
	}
	for _, e := range all {
		program := testProgram(t, e, "../vm/objects")
		for path, adapter := range map[string]*Emulated{
			pathC: e, pathGo: e, pathMLX4: e.As(MLX4), pathERDMA: e.As(ERDMA),
		} {
			t.Run(e.libraries.Release+"/"+path, func(t *testing.T) {
				least := 1 // libmlx4 does not support extended queue pairs
				if path == pathERDMA {
					least = -1 // liberdma does not support extended queues
				}
				runSuite(t, adapter, path, least, program, tests)
			})
		}
	}
}

// TestEFAExtendedQueues tests extended queues with EFA datagrams.
func TestEFAExtendedQueues(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newDatagrams(t, func(pd *rdma.PD, _ *rdma.CQ) (*rdma.QP, error) {
		cq, err := pd.Device().CreateCQEx(&ibv.CQInitAttrEx{CQE: 64,
			WCFlags: ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_QP_NUM})
		keep(t, cq, err)
		return pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_UD, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: room},
			rdma.QueueOptions{})
	})
	a, b := g.qps[0], g.qps[1]
	polls := map[*rdma.CQ]*rdma.PollProgram{}
	for _, qp := range g.qps {
		p, err := qp.SendCQ().NewPollProgram(4)
		keep(t, p, err)
		polls[qp.SendCQ()] = p
	}
	// completions polls the given completions and checks that there are no others.
	completions := func(cq *rdma.CQ, want ...uint64) {
		t.Helper()
		var ids []uint64
		for deadline := time.Now().Add(time.Minute); len(ids) < len(want); {
			require.False(t, time.Now().After(deadline), "%v of %v arrived", ids, want)
			found, err := cq.PollProgram(polls[cq])
			require.NoError(t, err)
			for _, c := range found {
				require.Equal(t, ibv.WC_SUCCESS, c.Status)
				ids = append(ids, c.WRID)
			}
		}
		require.Equal(t, want, ids)
		for range 100 {
			found, err := cq.PollProgram(polls[cq])
			require.NoError(t, err)
			require.Empty(t, found)
		}
	}
	for range 50 { // often enough to exceed the queue sizes
		receive(t, b.PostRecv, g.mrs[1].SGE(0, size), g.mrs[1].SGE(0, size))
		send(t, a, func(batch *rdma.SendBatch) {
			for id := range uint64(2) {
				batch.Send(id).Add(g.mrs[0].SGE(0, 10)).UD(g.ahs[0].Ptr(), b.Num(), key).Signaled()
			}
		})
		completions(a.SendCQ(), 0, 1)
		completions(b.RecvCQ(), 100, 101)
	}
}
