// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// TestForeignEvent checks that a wait returns even if C code has armed the completion queue and left the event in the
// channel. An mlx5 adapter sends no further event until libmlx5 has read that one.
func TestForeignEvent(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathC)
		again(t, emulated(t), pathNative)
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
	cq := qps[0].SendCQ()
	write := func() {
		send(t, qps[0], func(b *rdma.SendBatch) {
			b.Write(1, mrs[1].Address(), mrs[1].RKey()).Add(mrs[0].SGE(0, 8)).Signaled()
		})
	}
	wcs := make([]ibv.WC, 4)
	for range 5 {
		require.NoError(t, verbs.ReqNotifyCQ(cq.C(), 0))
		write()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		n, err := cq.WaitBusy(ctx, wcs)
		cancel()
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		time.Sleep(20 * time.Millisecond) // the event arrives after the completion
		time.AfterFunc(50*time.Millisecond, write)
		wc := next(t, cq)
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}
