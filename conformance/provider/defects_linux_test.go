// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/defects"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// insideDefect runs a test again in a process over an adapter, once for each available release. The test reports
// whether the release has a defect in the adapter's library, according to the table of package defects.
func insideDefect(t *testing.T, on Adapter, path, name string, env ...string) (has, inside bool) {
	t.Helper()
	i := slices.IndexFunc(defects.All(), func(d defects.Defect) bool { return d.Library == on.Name && d.Name == name })
	require.GreaterOrEqual(t, i, 0, "%s %s", on.Name, name)
	if release := os.Getenv(envRelease); os.Getenv(envInside) != "" {
		return defects.All()[i].In(release), true
	}
	all := []*Emulated{emulated(t)}
	if os.Getenv(envAll) != "" {
		for _, release := range []string{"56.1", "44.0"} {
			all = append(all, emulatedFor(t, release, goruntime.GOARCH))
		}
	}
	for _, e := range all {
		again(t, e.As(on), path, append(slices.Clone(env), envRelease+"="+e.libraries.Release)...)
	}
	return false, false
}

// TestQueueSize checks that creating an extended queue does not change the caller's attributes, even if the library
// doubles the size in its copy.
func TestQueueSize(t *testing.T) {
	has, inside := insideDefect(t, IRDMA, pathIRDMA, "cq-size")
	if !inside {
		return
	}
	device, err := rdma.Open(IRDMA.Device)
	keep(t, device, err)
	attr := ibv.CQInitAttrEx{CQE: 100, WCFlags: ibv.WC_EX_WITH_BYTE_LEN}
	var entries []int32
	for range 3 {
		cq, err := device.CreateCQEx(&attr)
		keep(t, cq, err)
		entries = append(entries, cq.C().CQE)
	}
	assert.EqualValues(t, 100, attr.CQE)
	assert.Equal(t, []int32{entries[0], entries[0], entries[0]}, entries)
	cq, err := libibverbs.CreateCQEx(device.C(), &attr)
	require.NoError(t, err)
	assert.Equal(t, has, attr.CQE != 100, "libirdma changes the attributes")
	require.NoError(t, libibverbs.DestroyCQ(libibverbs.CQExToCQ(cq)))
}

// unlockedQueue creates an extended queue that libmlx5 does not lock, and n queue pairs that use it, each connected to
// itself.
func unlockedQueue(t *testing.T, n int) (cq *rdma.CQ, qps []*rdma.QP, mr *rdma.MR) {
	t.Helper()
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	mr, err = pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	keep(t, mr, err)
	cq, err = device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 1024, WCFlags: ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_QP_NUM,
		CompMask: ibv.CQ_INIT_ATTR_MASK_FLAGS, Flags: ibv.CREATE_CQ_ATTR_SINGLE_THREADED})
	keep(t, cq, err)
	for range n {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
		keep(t, qp, err)
		connectToItself(t, qp)
		qps = append(qps, qp)
	}
	return cq, qps, mr
}

// writeTo posts signaled writes with consecutive numbers.
func writeTo(t *testing.T, qp *rdma.QP, mr *rdma.MR, first, n uint64) {
	t.Helper()
	send(t, qp, func(b *rdma.SendBatch) {
		for id := range n {
			b.Write(first+id, mr.Address(), mr.RKey()).Add(mr.SGE(0, 8)).Signaled()
		}
	})
}

// TestCloseBetweenRegions checks that a program may close a queue pair after it has polled a completion of it, and
// continue to poll the queue. Freed memory is overwritten.
func TestCloseBetweenRegions(t *testing.T) {
	if _, inside := insideDefect(t, MLX5, pathC, "current-queue", "MALLOC_PERTURB_=165"); !inside {
		return
	}
	cq, qps, mr := unlockedQueue(t, 8)
	poll, err := cq.NewPollProgram(1)
	keep(t, poll, err)
	for i, qp := range qps {
		writeTo(t, qp, mr, 10*uint64(i), 2)
	}
	var ids []uint64
	for start := time.Now(); len(ids) < 2*len(qps) && time.Since(start) < 20*time.Second; {
		found, err := cq.PollProgram(poll)
		require.NoError(t, err)
		for _, c := range found {
			assert.Equal(t, ibv.WC_SUCCESS, c.Status)
			ids = append(ids, c.WRID)
			if c.WRID%10 == 1 {
				i := c.WRID / 10
				assert.Equal(t, qps[i].Num(), c.QPNum)
				require.NoError(t, qps[i].Close())
			}
		}
	}
	assert.Len(t, ids, 2*len(qps))
	slices.Sort(ids)
	assert.Len(t, slices.Compact(ids), 2*len(qps), "each once")
}

// TestPollProgramLocks checks that goroutines that call [rdma.CQ.PollProgram] concurrently read each completion once,
// although the library does not lock: libmlx5 for a single-threaded queue, libionic for any queue.
func TestPollProgramLocks(t *testing.T) {
	if !insideReleases(t, pathC) {
		return
	}
	cq, qps, mr := unlockedQueue(t, 4)
	const rounds, n = 400, 8
	var (
		seen  [rounds * n * 4]atomic.Int32
		total atomic.Int32
		done  sync.WaitGroup
	)
	deadline := time.Now().Add(time.Minute)
	over := func() bool { return t.Failed() || time.Now().After(deadline) }
	for i := range 3 {
		program, err := cq.NewPollProgram(1 + 3*i)
		keep(t, program, err)
		done.Go(func() {
			for int(total.Load()) < len(seen) && !over() {
				found, err := cq.PollProgram(program)
				assert.NoError(t, err)
				for _, c := range found {
					if assert.Less(t, c.WRID, uint64(len(seen))) {
						seen[c.WRID].Add(1)
					}
				}
				total.Add(int32(len(found)))
				goruntime.Gosched()
			}
		})
	}
	first := uint64(0)
	for range rounds {
		for _, qp := range qps {
			for int(total.Load()) < int(first)-64 && !over() {
				goruntime.Gosched()
			}
			writeTo(t, qp, mr, first, n)
			first += n
		}
	}
	done.Wait()
	for id := range seen {
		require.EqualValues(t, 1, seen[id].Load(), "completions of request %d", id)
	}
}

// TestWallclock checks that a poll returns EBUSY while the kernel updates the clock page. Older libraries lose the
// completion, and even older ones leave the queue locked.
func TestWallclock(t *testing.T) {
	locked, inside := insideDefect(t, MLX5, pathC, "wallclock-lock", "GOVERBS_EMULATED_CLOCK=written")
	if !inside {
		return
	}
	lost, _ := insideDefect(t, MLX5, pathC, "wallclock-lost")
	device, err := rdma.Open(Device)
	require.NoError(t, err) // if the queue stays locked, nothing can be closed
	cq, err := device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK})
	require.NoError(t, err)
	poll, err := cq.NewPollProgram(4)
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
	require.NoError(t, err)
	connectToItself(t, qp)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	require.NoError(t, err)
	writeTo(t, qp, mr, 1, 1)
	for start := time.Now(); err == nil && time.Since(start) < 20*time.Second; {
		var found []rdma.Completion
		found, err = poll.Poll()
		require.Empty(t, found)
	}
	require.ErrorIs(t, err, syscall.EBUSY)
	left := make(chan int, 1)
	go func() {
		n, err := cq.Poll(make([]ibv.WC, 4)) // without a clock
		assert.NoError(t, err)
		left <- n
	}()
	select {
	case n := <-left:
		assert.False(t, locked, "the queue is locked")
		assert.Equal(t, lost, n == 0, "the completion is lost")
		require.NoError(t, errors.Join(poll.Close(), qp.Close(), cq.Close(), mr.Close(), pd.Close(), device.Close()))
	case <-time.After(5 * time.Second):
		require.True(t, locked, "the next poll does not return")
		fmt.Println("--- PASS: " + t.Name()) // a goroutine is stuck in the library
		os.Exit(0)
	}
}

// TestMKeyRoom checks that a queue pair that configures memory keys has the same number of blocks for its requests with
// and without IBV_QP_EX_WITH_LOCAL_INV. Older libraries allocate too few blocks without it.
func TestMKeyRoom(t *testing.T) {
	has, inside := insideDefect(t, MLX5, pathC, "mkey-size")
	if !inside {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	cq, err := device.CreateCQ(256, nil, 0)
	keep(t, cq, err)
	blocks := func(operations ibv.QPCreateSendOpsFlags) uint32 {
		qp, err := mlx5.CreateQP(device, &ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap:      ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
			CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, PD: pd.Ptr(), SendOpsFlags: operations},
			&mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
				SendOpsFlags: mlx5dv.QP_EX_WITH_MKEY_CONFIGURE}, rdma.QueueOptions{Overcommit: true})
		keep(t, qp, err)
		out := new(mlx5dv.QP)
		obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: qp.Ptr(), Out: ibv.PtrTo(out)}}
		require.NoError(t, libmlx5.InitObj(obj, mlx5dv.OBJ_QP))
		return out.SQ.WQECnt
	}
	without, with := blocks(ibv.QP_EX_WITH_SEND), blocks(ibv.QP_EX_WITH_SEND|ibv.QP_EX_WITH_LOCAL_INV)
	assert.Equal(t, has, without < with, "%d and %d blocks", without, with)
}

// TestEFALongReceive posts a receive of 64 KiB or more. Some libraries post only the low bits of the length.
func TestEFALongReceive(t *testing.T) {
	has, inside := insideDefect(t, EFA, pathEFA, "recv-length")
	if !inside {
		return
	}
	g := newSRD(t, 0)
	long, err := g.pds[1].RegMR(make([]byte, 1<<17), ibv.ACCESS_LOCAL_WRITE)
	keep(t, long, err)
	ah, qpn, qkey := g.to(1)
	for _, length := range []uint32{1<<16 - 1, 1<<16 + 8} {
		receive(t, g.qps[1].PostRecv, long.SGE(0, length))
		send(t, g.qps[0], func(b *rdma.SendBatch) { b.Send(1).Add(g.mrs[0].SGE(0, 100)).UD(ah, qpn, qkey).Signaled() })
		wc := next(t, g.qps[1].RecvCQ())
		want := ibv.WC_SUCCESS
		if has && length >= 1<<16 {
			want = ibv.WC_LOC_LEN_ERR
		}
		assert.Equal(t, want, wc.Status, "%d bytes", length)
		next(t, g.qps[0].SendCQ())
	}
}

// TestEFAQueueMappings checks that destroying a queue with a channel unmaps all device memory. Older libraries leak a
// mapping.
func TestEFAQueueMappings(t *testing.T) {
	has, inside := insideDefect(t, EFA, pathEFA, "cq-doorbell")
	if !inside {
		return
	}
	device := openEFA(t)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	mapped := func() (n uint64) { // number of mapped bytes of the device file
		for line := range strings.Lines(read(t, "/proc/self/maps")) {
			if strings.Contains(line, "memfd:uverbs0") {
				var from, to uint64
				_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
				require.NoError(t, err)
				n += to - from
			}
		}
		return n
	}
	before := mapped()
	cq, err := device.CreateCQ(16, channel, 0)
	require.NoError(t, err)
	assert.Greater(t, mapped(), before)
	require.NoError(t, cq.Close())
	assert.Equal(t, has, mapped() > before, "a mapping is left")
}
