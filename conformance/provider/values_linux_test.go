// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestValues checks that a PollProgram reads the same values from each successful or failed completion through libmlx5
// and through the data path in Go.
func TestValues(t *testing.T) {
	if os.Getenv(envInside) != "" {
		insideValues(t)
		return
	}
	releases := []*Emulated{emulated(t)}
	if os.Getenv(envAll) != "" {
		for _, release := range []string{"56.1", "44.0"} {
			releases = append(releases, emulatedFor(t, release, goruntime.GOARCH))
		}
	}
	for _, e := range releases {
		seed := strconv.FormatUint(uint64(rand.Uint32()), 10)
		var texts []string
		for _, path := range []string{pathC, pathGo} {
			results := filepath.Join(t.TempDir(), "results")
			again(t, e, path, envSeed+"="+seed, envResults+"="+results)
			texts = append(texts, read(t, results))
		}
		require.Equal(t, texts[0], texts[1], "seed %s: completions through libmlx5 %s, and through Go", seed,
			e.libraries.Release)
		assert.Greater(t, strings.Count(texts[0], "\n"), 100)
	}
}

func insideValues(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 32)
	require.NoError(t, err)
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	v := &values{rand: rand.New(rand.NewPCG(seed, 0)), device: openDevice(t)}
	for range 8 {
		v.queuePair(t, out)
	}
}

// values generates random completions.
type values struct {
	rand   *rand.Rand
	device *rdma.Device
	qp     *rdma.QP
	mr     *rdma.MR
	polls  *rdma.PollProgram
}

// queuePair generates completions of a queue pair that is connected to itself. The last of them fail.
func (v *values) queuePair(t *testing.T, out *os.File) {
	cq, err := v.device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 64, WCFlags: ibv.WC_STANDARD_FLAGS})
	require.NoError(t, err)
	v.polls, err = cq.NewPollProgram(3) // fewer than in a round
	require.NoError(t, err)
	v.qp, err = v.device.NewRC(rdma.QPParts{CQ: cq,
		Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16}})
	require.NoError(t, err)
	connectToItself(t, v.qp)
	v.mr, err = v.qp.RegMR(make([]byte, 4*size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
		ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_ATOMIC)
	require.NoError(t, err)
	for range 10 {
		v.round(t, out, false)
	}
	v.round(t, out, true)
	require.NoError(t, v.qp.Close())
	require.NoError(t, v.polls.Close())
	require.NoError(t, cq.Close())
}

// round posts a list and writes its completions in the order of their wr_ids.
func (v *values) round(t *testing.T, out *os.File, fails bool) {
	const most = 4
	n := 1 + v.rand.IntN(most)
	want := n
	at := make([]ibv.SGE, most)
	for i := range at {
		at[i] = v.mr.SGE(uint64(size+i*128), 128)
	}
	send(t, v.qp, func(b *rdma.SendBatch) {
		remote, key := v.mr.SGE(2*size, 8).Addr, v.mr.RKey()
		for i := range n {
			from, imm := v.mr.SGE(0, uint32(1+v.rand.IntN(128))), ibv.BE32(v.rand.Uint32())
			id := uint64(i)
			if fails && i == n-1 {
				b.Write(id, remote, key+1).Add(from).Signaled()
				continue
			}
			switch v.rand.IntN(7) {
			case 0:
				receive(t, v.qp.PostRecv, at[i])
				want++
				b.Send(id).Add(from).Signaled()
			case 1:
				receive(t, v.qp.PostRecv, at[i])
				want++
				b.SendImm(id, imm).Add(from).Signaled()
			case 2:
				receive(t, v.qp.PostRecv, at[i])
				want++
				b.WriteImm(id, remote, key, imm).Inline([]byte("inline")).Signaled()
			case 3:
				b.Write(id, remote, key).Add(from).Signaled()
			case 4:
				b.Read(id, remote, key).Add(from).Signaled()
			case 5:
				b.FetchAdd(id, remote, key, 1).Add(v.mr.SGE(0, 8)).Signaled()
			case 6:
				b.CompareSwap(id, remote, key, 1, 2).Add(v.mr.SGE(0, 8)).Signaled()
			}
		}
		if fails {
			receive(t, v.qp.PostRecv, at[0]) // will be flushed
			want++
		}
	})
	var all []rdma.Completion
	require.Eventually(t, func() bool {
		found, err := v.qp.SendCQ().PollProgram(v.polls)
		require.NoError(t, err)
		all = append(all, found...)
		return len(all) >= want
	}, 30*time.Second, 10*time.Microsecond)
	require.Len(t, all, want)
	slices.SortStableFunc(all, func(a, b rdma.Completion) int { return cmp.Compare(a.WRID, b.WRID) })
	type plain rdma.Completion // without methods, so that every field is printed
	for _, c := range all {
		c.QPNum -= v.qp.Num()
		_, err := fmt.Fprintf(out, "%+v\n", plain(c))
		require.NoError(t, err)
	}
}
