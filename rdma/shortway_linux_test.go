// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// slowPath hides the type of C's path, so that posts and polls never use the fast path.
type slowPath struct{ Path }

// TestFastPath compares the fast path of posts and polls, which only C's functions have, with the general path: both
// accept and reject the same requests and release the same slots.
func TestFastPath(t *testing.T) {
	d, opcode := native(t), nativeOpcode(t)
	defer func() { *opcode = ibv.WC_SEND }()
	rapid.Check(t, func(t *rapid.T) {
		d.qp.State, d.qp.QPType = ibv.QPS_RTS, ibv.QPT_RC
		o := nativeOptions("system")
		o.Cap.MaxSendWR, o.Cap.MaxSendSGE = rapid.SampledFrom([]uint32{1, 2, 3, 5, 64, 200}).Draw(t, "capacity"), 2
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
		cqs[1].path = slowPath{cqs[1].path}
		cqs[1].updatePlain()
		if rapid.Bool().Draw(t, "path has PostOne") {
			queues[1].path = &quickPath{Path: &sameQP{queues[1].path, &d.qp}}
			queues[1].useLock()
		} else {
			queues[1].path = slowPath{queues[1].path}
			queues[1].setRefusal(nil)
		}
		queues[1].start(queues[0].posted.Load())
		b, err := NewSendBatch(130, 2, 0)
		require.NoError(t, err)
		defer b.Close()
		next, repeat := uint64(0), rapid.Bool().Draw(t, "ids repeat")
		var pending []int // number of completions of each list posted to both queues
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
				completions, varied := 0, rapid.Bool().Draw(t, "varied")
				n := rapid.SampledFrom([]int{1, 1, 1, 1, 1, 1, 2, 3, 64, 65, 130}).Draw(t, "length")
				signalled := rapid.SampledFrom([]ibv.SendFlags{0, ibv.SEND_SIGNALED}).Draw(t, "signalled")
				for i := range n {
					id := next
					if next++; repeat {
						id = rapid.Uint64Range(0, 2).Draw(t, "id")
					}
					bytes := rapid.SampledFrom([]uint32{8, 8, 16, 17, 100, 101}).Draw(t, "bytes")
					r := b.Write(id, 0, 0).SGE(0, bytes, 0)
					if varied && (n < 64 || i > 60 && i < 70) {
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
				first := rapid.IntRange(0, 1).Draw(t, "first") // a rejected batch does not use the fast path
				_, short := queues[first].Post(b)
				_, full := queues[1-first].Post(b)
				assert.Equal(t, full, short)
				if short == nil && completions > 0 {
					pending = append(pending, completions)
				}
			},
			"poll": func(t *rapid.T) {
				if len(pending) == 0 {
					return
				}
				*opcode = rapid.SampledFrom([]ibv.WCOpcode{ibv.WC_SEND, ibv.WC_SEND, ibv.WC_RECV}).Draw(t, "opcode")
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

// nativeOpcode returns the opcode of the native device's completions.
func nativeOpcode(t testing.TB) *ibv.WCOpcode {
	l, err := nativeDevice()
	require.NoError(t, err)
	address, err := l.Symbol("device_opcode")
	require.NoError(t, err)
	return ibv.Ptr[ibv.WCOpcode](address).Deref()
}

// TestFastPathOnlyForSends: the fast path of polls handles only completions of sends. Completions of a shared receive
// queue, and those that drains wait for, use the general path.
func TestFastPathOnlyForSends(t *testing.T) {
	d, opcode := native(t), nativeOpcode(t)
	defer func() { *opcode = ibv.WC_SEND }()
	send, err := NewSendQueue(&d.qp, QueueOptions{Way: "system", Unchecked: true})
	require.NoError(t, err)
	srq, err := NewSharedRecvQueue(&d.srq, options(4, 1, 0))
	require.NoError(t, err)
	r := recvBatch(t, 1, 1)
	r.Recv(7)
	_, err = srq.Post(r)
	require.NoError(t, err)
	cq, err := NewCompletionQueue(&d.cq, nativeOptions("system"))
	require.NoError(t, err)
	cq.trackAll(0x12, trackedQueues{})
	require.NoError(t, cq.countSRQ(srq))
	id, done := cq.mark()
	wcs := make([]ibv.WC, 4)
	b := sendBatch(t, 2, 1, 0)

	b.Write(7, 0, 0).Signaled()
	b.Write(id, 0, 0).Signaled()
	_, err = send.Post(b)
	require.NoError(t, err)
	*opcode = ibv.WC_RECV
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n, "the marker is not returned")
	assert.EqualValues(t, 7, wcs[0].WRID)
	assert.Equal(t, 4, srq.Free())
	<-done
	assert.Equal(t, runtime.Direct(), cq.plain, "polls use the fast path again")
	_, err = srq.Post(r)
	require.NoError(t, err)
	writes(b, 8, 1)
	_, err = send.Post(b)
	require.NoError(t, err)
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, 4, srq.Free(), "also polled with the fast path")
}
