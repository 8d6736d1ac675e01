// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package wq

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
)

// long is a path that is none of C's functions by its type, so that posts and polls by it never go the short way.
type long struct{ Path }

// TestShortWay: the short way of posts and polls, which C's functions alone have, takes and refuses what the long way
// does, and gives back the same slots.
func TestShortWay(t *testing.T) {
	d := native(t)
	rapid.Check(t, func(t *rapid.T) {
		d.qp.State, d.qp.QPType = ibv.QPS_RTS, ibv.QPT_RC
		o := nativeOptions("system")
		o.Cap.MaxSendWR, o.Cap.MaxSendSGE = rapid.Uint32Range(1, 200).Draw(t, "capacity"), 2
		o.Cap.MaxInlineData, o.MaxMessage = 16, 100
		o.SQSigAll = rapid.Bool().Draw(t, "sq_sig_all")
		var queues [2]*SendQueue
		var cqs [2]*CompletionQueue
		for i := range queues {
			q, err := NewSendQueue(&d.qp, o)
			require.NoError(t, err)
			cq, err := NewCompletionQueue(&d.cq, o)
			require.NoError(t, err)
			cq.Track(0x12, q, nil)
			queues[i], cqs[i] = q, cq
		}
		cqs[1].path = long{cqs[1].path}
		cqs[1].usual()
		queues[1].path = long{queues[1].path}
		queues[1].refuseNow(nil)
		queues[1].begin(queues[0].posted.Load())
		b, err := NewSendBatch(130, 2, 0)
		require.NoError(t, err)
		defer b.Close()
		next := uint64(0)
		var pending []int // completions of each list that was posted, which both queues have
		wcs := make([]ibv.WC, 130)
		defer func() {
			for n := 1; n > 0; {
				n, _ = cqs[0].Poll(wcs)
			}
		}()
		usually := func(usual, other ibv.SendFlags) *rapid.Generator[ibv.SendFlags] {
			return rapid.Map(rapid.IntRange(0, 5), func(n int) ibv.SendFlags {
				if n == 0 {
					return other
				}
				return usual
			})
		}
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				b.Reset()
				completions := 0
				n := rapid.SampledFrom([]int{1, 1, 1, 2, 3, 64, 65, 130}).Draw(t, "length")
				signalled := rapid.SampledFrom([]ibv.SendFlags{0, ibv.SEND_SIGNALED}).Draw(t, "signalled")
				for i := range n {
					next++
					r := b.Write(next, 0, 0).SGE(0, rapid.SampledFrom([]uint32{8, 8, 16, 17, 100, 101}).Draw(t, "bytes"), 0)
					if i > 3 && n < 64 || i > 60 && i < 70 || n == 1 {
						r.Flags(usually(signalled, signalled^ibv.SEND_SIGNALED).Draw(t, "flag"))
						r.Flags(usually(0, ibv.SEND_INLINE).Draw(t, "inline"))
						r.Flags(usually(0, 1<<20).Draw(t, "unknown"))
						switch rapid.IntRange(0, 9).Draw(t, "shape") {
						case 0:
							r.SGE(0, 90, 0)
						case 1:
							b.WR(i).Opcode = rapid.Map(rapid.Uint32Range(0, 17), func(op uint32) ibv.WROpcode {
								return ibv.WROpcode(op)
							}).Draw(t, "opcode")
						}
					} else {
						r.Flags(signalled)
					}
					completions += int(b.WR(i).SendFlags & ibv.SEND_SIGNALED / ibv.SEND_SIGNALED)
				}
				d.qp.State = rapid.SampledFrom([]ibv.QPState{ibv.QPS_RTS, ibv.QPS_RTS, ibv.QPS_RTS, ibv.QPS_INIT}).
					Draw(t, "state")
				_, short := queues[0].Post(b)
				_, full := queues[1].Post(b)
				assert.Equal(t, full, short)
				if short == nil && completions > 0 {
					pending = append(pending, completions)
				}
			},
			"poll": func(t *rapid.T) {
				if len(pending) == 0 {
					return
				}
				for _, cq := range cqs {
					n, err := cq.Poll(wcs[:pending[0]])
					require.NoError(t, err)
					require.Equal(t, pending[0], n)
				}
				pending = pending[1:]
			},
			"refuse": func(t *rapid.T) {
				b.Reset()
				b.Write(1<<64-1, 0, 0).SGE(0, 8, 0).Flags(ibv.SEND_SIGNALED)
				d.qp.State = ibv.QPS_RTS
				_, short := queues[0].Post(b)
				_, full := queues[1].Post(b)
				assert.Equal(t, full, short)
			},
			"": func(t *rapid.T) {
				require.Equal(t, queues[1].Free(), queues[0].Free())
				require.Equal(t, queues[1].posted.Load(), queues[0].posted.Load())
			},
		})
	})
}
