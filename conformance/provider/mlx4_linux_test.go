// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// insideMLX4 runs a test again in a process over an emulated mlx4 adapter. In that process it returns true.
func insideMLX4(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	again(t, emulated(t).As(MLX4), pathMLX4)
	return false
}

// mlx4Tests lists the mlx4 tests to run over each release. For the primary release, the tests run directly.
var mlx4Tests = []string{"TestObjects", "TestDatagrams", "TestSharedReceives", "TestFailure", "TestResized",
	"TestInlineSegments", "TestWindows", "TestXRC"}

// mlx4Suite runs mlx4Tests over a release.
func mlx4Suite(t *testing.T, e *Emulated) {
	t.Helper()
	program := testProgram(t, e, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := e.As(MLX4).Command(ctx, program, "-test.v", "-test.timeout=100s",
		"-test.run=^("+strings.Join(mlx4Tests, "|")+")$")
	cmd.Env = append(cmd.Env, envInside+"="+pathMLX4)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range mlx4Tests {
		assert.Contains(t, string(out), "--- PASS: "+test+" (")
	}
}

// TestResized resizes a completion queue with unpolled completions at every position of its ring.
func TestResized(t *testing.T) {
	if !insideMLX4(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(63, channel, 0)
	keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
	keep(t, qp, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	keep(t, mr, err)
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
	write := func(n int) {
		for range n {
			send(t, qp, func(b *rdma.SendBatch) {
				b.Write(1, mr.Address(), mr.RKey()).Add(mr.SGE(500, 1)).Signaled()
			})
		}
	}
	poll := func(n int) {
		for range n {
			wc := next(t, cq)
			require.NoError(t, rdma.CompletionErr(&wc))
			require.Equal(t, ibv.WC_RDMA_WRITE, wc.Opcode)
		}
	}
	for round := range 70 {
		mr.Bytes()[0], mr.Bytes()[500] = 0, byte(1+round)
		write(1 + round%7)
		require.Eventually(t, func() bool { return mr.Bytes()[0] == byte(1+round) }, 30*time.Second, time.Millisecond)
		poll(round % 3 % (1 + round%7))
		require.NoError(t, cq.Resize([]int{255, 63, 127}[round%3]))
		poll(1 + round%7 - round%3%(1+round%7))
		write(2)
		poll(2)
	}
}

// TestInlineSegments checks that inline data is split at the cache lines of the queue.
func TestInlineSegments(t *testing.T) {
	if !insideMLX4(t) {
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, func(p rdma.QPParts) (*rdma.QP, error) {
		p.Cap = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 400}
		return device.NewRC(p)
	}, rdma.QPParts{})
	data := make([]byte, 400)
	for i := range data {
		data[i] = byte(i*7 + 1)
	}
	b, err := rdma.NewSendBatch(1, 4, 400)
	keep(t, b, err)
	for n := 1; n <= len(data); n++ {
		clear(mrs[1].Bytes())
		b.Reset()
		b.Write(uint64(n), mrs[1].Address(), mrs[1].RKey()).Inline(data[:n]).Signaled()
		_, err := qps[0].PostSend(b)
		require.NoError(t, err)
		wc := next(t, qps[0].SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
		require.True(t, bytes.Equal(data[:n], mrs[1].Bytes()[:n]), "%d bytes", n)
		require.Zero(t, mrs[1].Bytes()[n], "after %d bytes", n)
	}
}

// TestWindows binds a type 2 window, writes through it, and invalidates it from either side.
func TestWindows(t *testing.T) {
	if !insideMLX4(t) {
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
	window, err := qps[1].PD().AllocMW(ibv.MW_TYPE_2)
	keep(t, window, err)
	region, err := qps[1].RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_MW_BIND)
	require.NoError(t, err)
	key := window.NextRKey()
	done := func(qp *rdma.QP, status ibv.WCStatus) {
		t.Helper()
		wc := next(t, qp.SendCQ())
		require.Equal(t, status, wc.Status)
	}
	bind := func() {
		key = window.NextRKey()
		send(t, qps[1], func(b *rdma.SendBatch) {
			b.BindMW(1, window.Ptr(), key, ibv.MWBindInfo{MR: region.Ptr(), Addr: region.Address() + 8, Length: 8,
				MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}).Signaled()
		})
		done(qps[1], ibv.WC_SUCCESS)
	}
	write := func(at uint64) {
		send(t, qps[0], func(b *rdma.SendBatch) {
			b.Write(2, at, key).Inline([]byte("window")).Signaled()
		})
	}
	bind()
	write(region.Address() + 8)
	done(qps[0], ibv.WC_SUCCESS)
	assert.Equal(t, "window", string(region.Bytes()[8:14]))
	send(t, qps[1], func(b *rdma.SendBatch) { b.LocalInv(3, key).Signaled() })
	done(qps[1], ibv.WC_SUCCESS)
	bind()
	receive(t, qps[1].PostRecv, mrs[1].SGE(0, size))
	send(t, qps[0], func(b *rdma.SendBatch) { b.SendInv(4, key).Inline([]byte("away")).Signaled() })
	done(qps[0], ibv.WC_SUCCESS)
	wc := next(t, qps[1].RecvCQ())
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.NotZero(t, wc.WCFlags&ibv.WC_WITH_INV)
	write(region.Address() + 8)
	done(qps[0], ibv.WC_REM_ACCESS_ERR)
}
