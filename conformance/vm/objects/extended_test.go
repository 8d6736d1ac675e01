// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// extendedPair is a pair of connected queue pairs with a common extended completion queue.
type extendedPair struct {
	cq   *rdma.CQ
	a, b *rdma.QP
	mr   *rdma.MR
}

func newExtendedPair(t testing.TB, o rdma.QueueOptions, channel bool) *extendedPair {
	t.Helper()
	d := open(t)
	attr := &ibv.CQInitAttrEx{CQE: 256, WCFlags: ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_QP_NUM}
	if channel {
		c, err := d.CreateCompChannel()
		attr.Channel = keep(t, c, err).Ptr()
	}
	cq, err := d.CreateCQEx(attr)
	if errors.Is(err, rdma.ErrNotSupported) || errors.Is(err, syscall.EOPNOTSUPP) {
		t.Skip("the provider has no extended queues: ", err)
	}
	p := &extendedPair{cq: keep(t, cq, err)}
	pd, err := d.AllocPD()
	keep(t, pd, err)
	for _, qp := range []**rdma.QP{&p.a, &p.b} {
		created, err := d.NewRC(rdma.QPParts{PD: pd, CQ: cq, Options: o})
		*qp = keep(t, created, err)
	}
	for _, ends := range [][2]*rdma.QP{{p.a, p.b}, {p.b, p.a}} {
		peer, err := ends[1].Endpoint()
		require.NoError(t, err)
		require.NoError(t, ends[0].Connect(peer))
	}
	mr, err := pd.RegMR(make([]byte, 4096), all)
	p.mr = keep(t, mr, err)
	return p
}

// writes returns a batch of RDMA writes with consecutive WRIDs from first.
func (p *extendedPair) writes(t testing.TB, first uint64, n int) *rdma.SendBatch {
	t.Helper()
	b, err := rdma.NewSendBatch(n, 1, 0)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	for i := range n {
		b.Write(first+uint64(i), p.mr.Address(), p.mr.RKey()).Add(p.mr.SGE(64, 64)).Signaled()
	}
	return b
}

// TestExtendedQueueHasEachCompletionOnce checks that each way to poll an extended queue returns every completion
// exactly once and nothing else.
func TestExtendedQueueHasEachCompletionOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.QuietTime(2*time.Minute))
	defer cancel()
	type poll func() ([]uint64, error)
	variants := map[string]func(t *testing.T, p *extendedPair, program *rdma.PollProgram) poll{
		"PollProgram": func(t *testing.T, p *extendedPair, program *rdma.PollProgram) poll {
			return func() ([]uint64, error) { return idsOf(p.cq.PollProgram(program)) }
		},
		"WaitProgram": func(t *testing.T, p *extendedPair, program *rdma.PollProgram) poll {
			return func() ([]uint64, error) { return idsOf(p.cq.WaitProgram(ctx, program)) }
		},
		"Program.Poll": func(t *testing.T, p *extendedPair, program *rdma.PollProgram) poll {
			return func() ([]uint64, error) { return idsOf(program.Poll()) }
		},
		"Poll": func(t *testing.T, p *extendedPair, _ *rdma.PollProgram) poll {
			wcs := make([]ibv.WC, 8)
			return func() ([]uint64, error) {
				n, err := p.cq.Poll(wcs)
				return idsIn(wcs[:n]), err
			}
		},
		"Wait": func(t *testing.T, p *extendedPair, _ *rdma.PollProgram) poll {
			wcs := make([]ibv.WC, 8)
			return func() ([]uint64, error) {
				n, err := p.cq.Wait(ctx, wcs)
				return idsIn(wcs[:n]), err
			}
		},
		"All": func(t *testing.T, p *extendedPair, _ *rdma.PollProgram) poll {
			next, stop := iter.Pull2(p.cq.All(ctx))
			t.Cleanup(stop)
			return func() ([]uint64, error) {
				wc, err, _ := next()
				return []uint64{wc.WRID}, err
			}
		},
	}
	for name, variant := range variants {
		for _, unchecked := range []bool{false, true} {
			if name == "Program.Poll" && !unchecked {
				continue // does not release slots
			}
			t.Run(fmt.Sprintf("%s/unchecked=%v", name, unchecked), func(t *testing.T) {
				waits := name == "Wait" || name == "WaitProgram"
				p := newExtendedPair(t, rdma.QueueOptions{Unchecked: unchecked}, waits)
				for _, most := range []int{1, 3, 8} {
					program, err := p.cq.NewPollProgram(most)
					keep(t, program, err)
					poll := variant(t, p, program)
					for _, n := range []int{1, 2, 3, 8, 9, 16, 1} {
						p.check(t, n, poll)
					}
				}
			})
		}
	}
}

// check posts requests, polls their completions, and keeps polling for longer than the queue has entries.
func (p *extendedPair) check(t *testing.T, n int, poll func() ([]uint64, error)) {
	t.Helper()
	_, err := p.a.PostSend(p.writes(t, 100, n))
	require.NoError(t, err)
	var ids []uint64
	for deadline := time.Now().Add(time.Minute); len(ids) < n; {
		require.False(t, time.Now().After(deadline), "%d completions of %d requests in a minute", len(ids), n)
		found, err := poll()
		require.NoError(t, err)
		ids = append(ids, found...)
	}
	for i, id := range ids {
		require.EqualValues(t, 100+i, id, "%d completions of %d requests", len(ids), n)
	}
	wcs := make([]ibv.WC, 1)
	for range 300 {
		n, err := p.cq.Poll(wcs)
		require.NoError(t, err)
		require.Zero(t, n, "a completion without a request: %+v", wcs[0])
	}
}

// TestProgramsPollOneQueueAtOnce polls an extended queue from programs of several goroutines, which only the provider's
// lock serializes, and checks that no completion is lost or read twice.
func TestProgramsPollOneQueueAtOnce(t *testing.T) {
	p := newExtendedPair(t, rdma.QueueOptions{Unchecked: true}, false)
	const rounds, n, room = 100, 16, 48
	var (
		seen  [rounds * n]atomic.Int32
		total atomic.Int32
		done  sync.WaitGroup
	)
	deadline := time.Now().Add(testbed.QuietTime(time.Minute))
	over := func() bool { return t.Failed() || time.Now().After(deadline) }
	for i := range 3 {
		program, err := p.cq.NewPollProgram(1 + 3*i)
		keep(t, program, err)
		done.Go(func() {
			for total.Load() < rounds*n && !over() {
				ids, err := idsOf(program.Poll())
				assert.NoError(t, err)
				for _, id := range ids {
					if assert.Less(t, id, uint64(len(seen))) {
						seen[id].Add(1)
					}
				}
				total.Add(int32(len(ids)))
				runtime.Gosched()
			}
		})
	}
	for round := range rounds {
		for int(total.Load()) < round*n-(room-n) && !over() {
			runtime.Gosched()
		}
		_, err := p.a.PostSend(p.writes(t, uint64(round*n), n))
		require.NoError(t, err)
	}
	done.Wait()
	for id := range seen {
		require.EqualValues(t, 1, seen[id].Load(), "completions of request %d", id)
	}
}

// TestProgramData checks the data of messages sent by a program, whose entries may have different lengths, be changed,
// or be inline.
func TestProgramData(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	cq, err := d.CreateCQ(256, nil, 0)
	keep(t, cq, err)
	var ends [2]*rdma.QP
	for i := range ends {
		qp, err := d.CreateQPEx(&ibv.QPInitAttrEx{
			QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(), Cap: testbed.Caps,
			CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
			SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_RDMA_WRITE,
		}, rdma.QueueOptions{})
		if errors.Is(err, rdma.ErrNotSupported) || errors.Is(err, syscall.EOPNOTSUPP) {
			t.Skip("the provider has no extended queue pairs: ", err)
		}
		ends[i] = keep(t, qp, err)
	}
	for i := range ends {
		peer, err := ends[1-i].Endpoint()
		require.NoError(t, err)
		require.NoError(t, ends[i].Connect(peer))
	}
	const half = 2048
	memory := make([]byte, 2*half)
	mr, err := pd.RegMR(memory, all)
	keep(t, mr, err)
	for i := range half {
		mr.Bytes()[i] = byte(i*7 + 1)
	}
	recvs, err := rdma.NewRecvBatch(1, 1)
	keep(t, recvs, err)
	completion := func() ibv.WC {
		wcs := make([]ibv.WC, 1)
		for deadline := time.Now().Add(time.Minute); ; {
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			require.False(t, time.Now().After(deadline), "no completion within a minute")
			if n > 0 {
				return wcs[0]
			}
		}
	}
	// sent runs a program that sends one message and compares the received data.
	sent := func(p *rdma.WRProgram, want []byte, text string) {
		t.Helper()
		clear(mr.Bytes()[half:])
		recvs.Reset()
		recvs.Recv(1).Add(mr.SGE(half, half))
		_, err := ends[1].PostRecv(recvs)
		require.NoError(t, err)
		require.NoError(t, ends[0].PostProgram(p))
		for range 2 {
			wc := completion()
			require.NoError(t, rdma.CompletionErr(&wc), text)
			if wc.WRID == 1 {
				assert.EqualValues(t, len(want), wc.ByteLen, text)
			}
		}
		assert.Equal(t, want, mr.Bytes()[half:][:len(want)], text)
		assert.Zero(t, mr.Bytes()[half+len(want)], text)
	}
	p, err := ends[0].NewWRProgram()
	require.NoError(t, err)
	for _, lengths := range [][]int{{64}, {64, 64}, {8, 16, 24}, {24, 16, 8}, {100, 0, 3, 1}} {
		for _, inline := range []bool{false, true} {
			if inline && lengths[0] == 100 {
				continue // exceeds the queue pair's limit
			}
			p.Reset()
			r := p.Send(2).Signaled()
			var want []byte
			at := 5
			for _, n := range lengths {
				if piece := mr.Bytes()[at:][:n]; inline {
					r.Inline(piece[:n/2])
					want = append(want, piece[:n/2]...)
				} else {
					r.Add(mr.SGE(uint64(at), uint32(n)))
					want = append(want, piece...)
				}
				at += n + 3
			}
			text := fmt.Sprintf("entries of %v bytes, inline: %v", lengths, inline)
			for range 3 {
				sent(p, want, text)
			}
			if !inline && len(lengths) == 1 {
				r.SetSGE(mr.Address()+9, 31, mr.LKey())
				sent(p, mr.Bytes()[9:][:31], "a changed entry")
			}
		}
	}
}

// TestProgramsWithoutEquivalentList checks that a program is rejected if it is not equivalent to any list of work
// requests, since Soft-RoCE's library would mishandle it.
func TestProgramsWithoutEquivalentList(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	cq, err := d.CreateCQ(256, nil, 0)
	keep(t, cq, err)
	qp, err := d.CreateQPEx(&ibv.QPInitAttrEx{
		QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(), Cap: testbed.Caps,
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_ATOMIC_WRITE,
	}, rdma.QueueOptions{})
	if errors.Is(err, rdma.ErrNotSupported) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EINVAL) {
		t.Skip("the provider has no atomic writes: ", err)
	}
	keep(t, qp, err)
	if qp.SendQueue().Provider() != "rxe" {
		t.Skip("the provider is not Soft-RoCE's")
	}
	peer, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(peer))
	p, err := qp.NewWRProgram()
	require.NoError(t, err)
	p.Send(1).Inline([]byte("text")).Signaled()
	p.AtomicWrite(2, 64, 1, [8]byte{}).Signaled()
	for range 2 {
		err = qp.PostProgram(p)
		require.ErrorIs(t, err, rdma.ErrNotSupported)
		require.ErrorContains(t, err, "post atomic writes and flushes in a program without them")
	}
	wcs := make([]ibv.WC, 1)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, int(qp.Cap().MaxSendWR), qp.SendQueue().Free())
}

func idsOf(all []rdma.Completion, err error) (ids []uint64, _ error) {
	for _, c := range all {
		if c.Status != ibv.WC_SUCCESS {
			return ids, fmt.Errorf("completion %d: %v", c.WRID, c.Status)
		}
		ids = append(ids, c.WRID)
	}
	return ids, err
}

func idsIn(wcs []ibv.WC) (ids []uint64) {
	for _, wc := range wcs {
		ids = append(ids, wc.WRID)
	}
	return ids
}
