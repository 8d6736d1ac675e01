// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// srdStorm is the shared state of goroutines that each create SRD queue pairs one after another and send to all current
// ones, some of which may be destroyed at the same time.
type srdStorm struct {
	*datagrams
	t                        *testing.T
	numbers                  [4]atomic.Uint32
	sent, heard, undelivered atomic.Int64
}

// TestSRDStorm creates and destroys queue pairs in several goroutines, and sends to those of the others. It checks that
// every request completes once, and that no message arrives that was not sent.
func TestSRDStorm(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	last := 300 * time.Millisecond
	if os.Getenv(envAll) != "" {
		last = 20 * time.Second
	}
	s := &srdStorm{datagrams: newSRD(t, 0), t: t}
	deadline := time.Now().Add(last)
	var all sync.WaitGroup
	for i := range s.numbers {
		all.Go(func() {
			for r := rand.New(rand.NewPCG(rand.Uint64(), uint64(i))); time.Now().Before(deadline) && !t.Failed(); {
				s.once(i, r)
			}
		})
	}
	all.Wait()
	assert.NotZero(t, s.heard.Load())
	assert.LessOrEqual(t, s.heard.Load(), s.sent.Load())
	t.Logf("%d sent, %d received, %d without receiver", s.sent.Load(), s.heard.Load(), s.undelivered.Load())
}

// TestSRDStormRaces is TestSRDStorm with the race detector.
func TestSRDStormRaces(t *testing.T) {
	slow(t)
	e := emulated(t).As(EFA)
	racing := filepath.Join(dir, "srdstormrace.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-race", "-vet=off", "-o", racing, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := e.Command(t.Context(), racing, "-test.v", "-test.run=^TestSRDStorm$", "-test.timeout=5m")
	cmd.Env = append(cmd.Env, envInside+"="+pathEFA, envRelease+"="+e.libraries.Release)
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestSRDStorm (")
	assert.NotContains(t, string(out), "DATA RACE")
	t.Logf("%s", out)
}

// once runs the life cycle of one queue pair.
func (s *srdStorm) once(i int, r *rand.Rand) {
	channel, err := s.device.CreateCompChannel()
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, channel.Close()) }()
	cq, err := s.device.CreateCQ(256, channel, 0)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, cq.Close()) }()
	qp, err := createSRD(s.pds[0], cq, 0)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, qp.Close()) }()
	s.ready(s.t, qp, 1)
	at := make([]ibv.SGE, 16)
	for j := range at {
		at[j] = s.mrs[0].SGE(0, size)
	}
	receive(s.t, qp.PostRecv, at...)
	s.numbers[i].Store(qp.Num())
	waiting := map[uint64]bool{}
	for id := uint64(1000); id < 1050; id++ {
		to := s.numbers[r.IntN(len(s.numbers))].Load()
		n := uint32(1 + r.IntN(500))
		send(s.t, qp, func(b *rdma.SendBatch) {
			b.Send(id).Add(s.mrs[0].SGE(0, n)).UD(s.ahs[0].Ptr(), to, key).Signaled()
		})
		waiting[id] = true
		s.sent.Add(1)
		for len(waiting) > r.IntN(8) {
			s.complete(qp, cq, waiting)
		}
	}
	for len(waiting) > 0 {
		s.complete(qp, cq, waiting)
	}
	s.numbers[i].Store(0)
}

// complete polls completions and replaces completed receives.
func (s *srdStorm) complete(qp *rdma.QP, cq *rdma.CQ, waiting map[uint64]bool) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	wcs := make([]ibv.WC, 4)
	n, err := cq.Wait(ctx, wcs)
	require.NoError(s.t, err)
	for _, wc := range wcs[:n] {
		if wc.WRID < 1000 {
			s.heard.Add(1)
			receive(s.t, qp.PostRecv, s.mrs[0].SGE(0, size))
			continue
		}
		assert.True(s.t, waiting[wc.WRID], "request %d completed twice", wc.WRID)
		delete(waiting, wc.WRID)
		switch wc.Status {
		case ibv.WC_SUCCESS, ibv.WC_RNR_RETRY_EXC_ERR:
		case ibv.WC_REM_INV_RD_REQ_ERR:
			s.undelivered.Add(1)
		default:
			assert.Fail(s.t, "unknown request", "%v", errors.Join(rdma.CompletionErr(&wc)))
		}
	}
}
