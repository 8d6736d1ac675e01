// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// insideERDMA runs a test again in a process over an emulated erdma adapter. In that process it returns true.
func insideERDMA(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	again(t, emulated(t).As(ERDMA), pathERDMA)
	return false
}

// insideAll is like insideMLX and also runs liberdma.
func insideAll(t *testing.T) bool {
	t.Helper()
	return insideMLX(t) || insideERDMA(t)
}

// erdmaTests lists the erdma tests to run over each release. For the primary release, the tests run directly.
var erdmaTests = []string{"TestObjects", "TestERDMAData", "TestERDMAFailures", "TestERDMADrain"}

// erdmaSuite runs erdmaTests over a release.
func erdmaSuite(t *testing.T, e *Emulated) {
	t.Helper()
	program := testProgram(t, e, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := e.As(ERDMA).Command(ctx, program, "-test.v", "-test.timeout=100s",
		"-test.run=^("+strings.Join(erdmaTests, "|")+")$")
	cmd.Env = append(cmd.Env, envInside+"="+pathERDMA)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range erdmaTests {
		assert.Contains(t, string(out), "--- PASS: "+test+" (")
	}
}

// TestERDMAData sends inline data of every length, atomics and immediate data many times around the ring, so that
// requests wrap around its end.
func TestERDMAData(t *testing.T) {
	if !insideERDMA(t) {
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, func(p rdma.QPParts) (*rdma.QP, error) {
		p.Cap = ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}
		return device.NewRC(p)
	}, rdma.QPParts{})
	local, peer := mrs[0], mrs[1]
	done := func(cq *rdma.CQ, opcode ibv.WCOpcode) ibv.WC {
		t.Helper()
		wc := next(t, cq)
		require.NoError(t, rdma.CompletionErr(&wc))
		require.Equal(t, opcode, wc.Opcode)
		return wc
	}
	for n := range 65 {
		data := bytes.Repeat([]byte{byte(n + 1)}, n)
		clear(peer.Bytes())
		send(t, qps[0], func(b *rdma.SendBatch) { b.Write(1, peer.Address(), peer.RKey()).Inline(data).Signaled() })
		done(qps[0].SendCQ(), ibv.WC_RDMA_WRITE)
		require.Equal(t, data, peer.Bytes()[:n])
		require.Zero(t, peer.Bytes()[n])
		receive(t, qps[1].PostRecv, peer.SGE(size, size))
		send(t, qps[0], func(b *rdma.SendBatch) {
			b.SendImm(2, ibv.ToBE32(uint32(n))).Inline(data).Signaled()
		})
		done(qps[0].SendCQ(), ibv.WC_SEND)
		wc := done(qps[1].RecvCQ(), ibv.WC_RECV)
		require.EqualValues(t, n, wc.ImmData().Host())
		require.EqualValues(t, n, wc.ByteLen)
		require.Equal(t, data, peer.Bytes()[size:][:n])
	}
	receive(t, qps[1].PostRecv, peer.SGE(size, size))
	send(t, qps[0], func(b *rdma.SendBatch) {
		b.WriteImm(3, peer.Address(), peer.RKey(), ibv.ToBE32(7)).Add(local.SGE(0, 100)).Signaled()
	})
	done(qps[0].SendCQ(), ibv.WC_RDMA_WRITE)
	wc := done(qps[1].RecvCQ(), ibv.WC_RECV_RDMA_WITH_IMM)
	assert.EqualValues(t, 7, wc.ImmData().Host())
	clear(peer.Bytes())
	peer.Bytes()[0] = 5
	send(t, qps[0], func(b *rdma.SendBatch) {
		b.CompareSwap(4, peer.Address(), peer.RKey(), 5, 9).Add(local.SGE(8, 8)).Signaled()
		b.FetchAdd(5, peer.Address(), peer.RKey(), 2).Add(local.SGE(16, 8)).Signaled()
	})
	done(qps[0].SendCQ(), ibv.WC_COMP_SWAP)
	done(qps[0].SendCQ(), ibv.WC_FETCH_ADD)
	assert.Equal(t, []byte{5, 9, 11}, []byte{local.Bytes()[8], local.Bytes()[16], peer.Bytes()[0]})
}

// TestERDMAFailures checks that a failed request and the requests after it complete with errors, and that failures at a
// receiver also complete there.
func TestERDMAFailures(t *testing.T) {
	if !insideERDMA(t) {
		return
	}
	device := openDevice(t)
	for name, failed := range map[string]struct {
		request func(b *rdma.SendBatch, local, peer *rdma.MR)
		status  ibv.WCStatus
	}{
		"a write beyond the region": {func(b *rdma.SendBatch, own, peer *rdma.MR) {
			b.Write(1, peer.SGE(2*size-1, 1).Addr, peer.RKey()).Add(own.SGE(0, 2)).Signaled()
		}, ibv.WC_REM_ACCESS_ERR},
		"data with a wrong key": {func(b *rdma.SendBatch, localAddr, _ *rdma.MR) {
			b.Send(1).SGE(localAddr.Address(), 1, localAddr.LKey()^1).Signaled()
		}, ibv.WC_LOC_ACCESS_ERR},
		"no receive": {func(b *rdma.SendBatch, own, _ *rdma.MR) { b.Send(1).Add(own.SGE(0, 1)).Signaled() },
			ibv.WC_RETRY_EXC_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
			send(t, qps[0], func(b *rdma.SendBatch) {
				failed.request(b, mrs[0], mrs[1])
				b.Send(2).Add(mrs[0].SGE(0, 1)).Signaled()
			})
			for i, status := range []ibv.WCStatus{failed.status, ibv.WC_WR_FLUSH_ERR} {
				wc := next(t, qps[0].SendCQ())
				assert.Equal(t, status, wc.Status)
				assert.EqualValues(t, i+1, wc.WRID)
			}
		})
	}
}

// TestERDMADrain checks that a drain of an erdma queue pair ends when all requests, including those that wait
// indefinitely for a receiver, have completed or succeeded unsignaled; that a second drain has no effect; and that
// draining fails if requests are not counted.
func TestERDMADrain(t *testing.T) {
	if !insideERDMA(t) {
		return
	}
	device := openDevice(t)
	for _, waits := range []bool{false, true} {
		qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16,
			MaxSendSGE: 1, MaxRecvSGE: 1}})
		a, local, peer := qps[0], mrs[0], mrs[1]
		receive(t, a.PostRecv, local.SGE(size, 10), local.SGE(size, 10))
		send(t, a, func(b *rdma.SendBatch) {
			b.Write(1, peer.SGE(0, 4).Addr, peer.RKey()).Add(local.SGE(0, 4)).Signaled()
			if waits {
				b.Send(2).Add(local.SGE(0, 4)).Signaled() // not received
			}
			b.Write(3, peer.SGE(4, 4).Addr, peer.RKey()).Add(local.SGE(4, 4))
			b.Write(4, peer.SGE(8, 4).Addr, peer.RKey()).Add(local.SGE(8, 4))
		})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			require.NoError(t, a.Drain(ctx))
			cancel()
			assert.EqualValues(t, 16, a.SendQueue().Free())
			assert.EqualValues(t, 16, a.RecvQueue().Free())
		}
		wcs := make([]ibv.WC, 16)
		n, err := a.RecvCQ().Poll(wcs)
		require.NoError(t, err)
		done := map[uint64]ibv.WCStatus{}
		for _, wc := range wcs[:n] {
			done[wc.WRID] = wc.Status
		}
		assert.Len(t, done, n, "each completes once")
		want := map[uint64]ibv.WCStatus{100: ibv.WC_WR_FLUSH_ERR, 101: ibv.WC_WR_FLUSH_ERR, 1: done[1]}
		if waits {
			want[2] = done[2] // all retries may have been used up by then
			assert.Contains(t, []ibv.WCStatus{ibv.WC_WR_FLUSH_ERR, ibv.WC_RETRY_EXC_ERR}, done[2])
		}
		for _, id := range []uint64{3, 4} { // flushed requests complete even if unsignaled
			if _, flushed := done[id]; flushed || waits {
				want[id] = ibv.WC_WR_FLUSH_ERR
			}
		}
		assert.Equal(t, want, done, "no completion for the marker")
		assert.ErrorIs(t, a.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE), syscall.EOPNOTSUPP)
	}
	qps, _ := pair(t, device, device.NewRC, rdma.QPParts{Options: rdma.QueueOptions{Unchecked: true}})
	require.ErrorContains(t, qps[0].Drain(t.Context()), "an unchecked queue pair does not count its requests")
}
