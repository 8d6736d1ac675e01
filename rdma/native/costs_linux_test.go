// SPDX-License-Identifier: BSD-2-Clause

package native_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// TestGuestCosts compares the time of calls through package native with that through rdma-core, both from Go, in turn.
// GOVERBS_SPEED=1 runs it. Commands of package native are ioctls, which the kernel takes longer to decode than the
// write(2) by which rdma-core's rxe posts, but which also work after the process has changed its user.
func TestGuestCosts(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("GOVERBS_SPEED=1 measures")
	}
	open(t) // skips outside of a guest
	backends := []runtime.Backend{runtime.Native, must(native.Open())}
	costs := make([][]cost, len(backends))
	for i, b := range backends {
		costs[i] = costsOf(t, b, 7490+i)
	}
	for i, c := range costs[0] {
		var times [2][]time.Duration
		const rounds = 7
		for range rounds {
			for b := range backends {
				start := time.Now()
				for range c.times {
					costs[b][i].call()
				}
				times[b] = append(times[b], time.Since(start)/time.Duration(c.times))
			}
		}
		for b := range times {
			slices.Sort(times[b])
		}
		ratio := float64(times[1][0]) / float64(times[0][0])
		fmt.Printf("%-32s rdma-core %9v (median %9v)  native %9v (median %9v)  ratio %.2f, at most %.1f\n", c.name,
			times[0][0], times[0][rounds/2], times[1][0], times[1][rounds/2], ratio, c.most)
		assert.LessOrEqual(t, ratio, c.most, c.name)
	}
}

// cost is a measured call.
type cost struct {
	name  string
	times int     // calls in a round
	most  float64 // ratio of package native's time to rdma-core's
	call  func()
}

// costsOf returns the calls on a backend's device.
func costsOf(t *testing.T, b runtime.Backend, port int) []cost {
	d, err := rdma.OpenOn(b, os.Getenv("GOVERBS_DEVICE"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	p := connected(t, d)
	sends := must(rdma.NewSendBatch(1, 1, 64))
	t.Cleanup(func() { sends.Close() })
	sends.Write(2, p.bmr.Address(), p.bmr.RKey()).Add(p.amr.SGE(0, 64)).Signaled()
	pd, cq := p.a.PD(), p.a.SendCQ()
	memory := make([]byte, 4096)
	var wc [1]ibv.WC

	config := stream.Config{Backend: b}
	ctx, cancel := context.WithCancel(t.Context())
	to := netip.AddrPortFrom(netip.MustParseAddr(os.Getenv("GOVERBS_ADDRESS")), uint16(port)).String()
	l, err := (&stream.ListenConfig{Config: config}).Listen(ctx, to)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		l.Close()
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return []cost{
		{"an empty poll", 20000, 1.2, func() {
			_, err := cq.Poll(wc[:])
			require.NoError(t, err)
		}},
		{"post and poll of a 64-byte write", 300, 1.1, func() {
			n, err := p.a.PostSend(sends)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			for n = 0; n == 0; {
				n, err = cq.Poll(wc[:])
				require.NoError(t, err)
			}
			require.NoError(t, rdma.CompletionErr(&wc[0]))
		}},
		{"a queue pair", 30, 1.2, func() {
			qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
			require.NoError(t, err)
			require.NoError(t, qp.Close())
		}},
		{"a region of 4 KiB", 300, 1.2, func() {
			mr, err := pd.RegMR(memory, access)
			require.NoError(t, err)
			require.NoError(t, mr.Close())
		}},
		{"a stream", 5, 1.2, func() {
			c, err := (&stream.Dialer{Config: config}).Dial(ctx, to)
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}},
	}
}
