// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
)

// slowRunner hides the type of C's path, so that programs never use the fast path.
type slowRunner struct{ datapath.Runner }

// nativeExtended returns an extended queue pair whose functions are in C, and a digest of the arguments of their calls.
func nativeExtended(t testing.TB) (d *device, qp *ibv.QPEx, digest *uint64) {
	d = native(t)
	l, err := nativeDevice()
	require.NoError(t, err)
	symbol := func(name string) uintptr {
		address, err := l.Symbol(name)
		require.NoError(t, err)
		return address
	}
	qp = &ibv.QPEx{QPBase: d.qp}
	for name, slot := range map[string]*ibv.FuncPtr{
		"start": &qp.WRStart, "complete": &qp.WRComplete, "send": &qp.WRSend, "send_imm": &qp.WRSendImm,
		"rdma_write": &qp.WRRDMAWrite, "rdma_write_imm": &qp.WRRDMAWriteImm, "atomic_cmp_swp": &qp.WRAtomicCmpSwp,
		"set_sge": &qp.WRSetSGE, "set_sge_list": &qp.WRSetSGEList, "set_inline_data": &qp.WRSetInlineData,
	} {
		*slot = ibv.FuncPtr(symbol("device_wr_" + name))
	}
	*ibv.Ptr[uintptr](symbol("device_wr_id_at")).Deref() = unsafe.Offsetof(qp.WRID)
	return d, qp, ibv.Ptr[uint64](symbol("device_wr_digest")).Deref()
}

// TestProgramFastPath compares the fast path of programs with the general path: both make the same calls, reject the
// same programs with the same errors, and take and release the same slots.
func TestProgramFastPath(t *testing.T) {
	_, qp, digest := nativeExtended(t)
	rapid.Check(t, func(t *rapid.T) {
		qp.QPBase.State, qp.QPBase.QPType = ibv.QPS_RTS, ibv.QPT_RC
		o := nativeOptions("system")
		o.Unchecked = rapid.Bool().Draw(t, "unchecked")
		o.Cap.MaxSendWR, o.Cap.MaxSendSGE = rapid.SampledFrom([]uint32{2, 64, 200, 200, 200}).Draw(t, "capacity"), 2
		o.Cap.MaxInlineData, o.MaxMessage = 16, 100
		o.SQSigAll = rapid.Bool().Draw(t, "sq_sig_all")
		owned := rapid.Bool().Draw(t, "owned") // as in objects
		var queues [2]*SendQueue
		var post [2]func(*WRProgram) error
		var cqs [2]*CompletionQueue
		for i := range queues {
			q, err := NewSendQueue(&qp.QPBase, o)
			require.NoError(t, err)
			if owned {
				q.useLock()
			}
			if i == 1 {
				q.path = slowRunner{q.path.(datapath.Runner)}
				q.useLock()
			}
			queues[i], post[i] = q, q.PostProgram
			cqs[i], err = NewCompletionQueue(&ibv.CQ{Context: qp.QPBase.Context}, nativeOptions("system"))
			require.NoError(t, err)
			cqs[i].Track(0x12, q, nil)
		}
		if !o.Unchecked {
			queues[1].start(queues[0].posted.Load())
		}
		p, requests := NewWRProgram(qp), []WRRequest{}
		build := func() {
			p.Reset()
			requests = requests[:0]
			simple, signalled := rapid.Bool().Draw(t, "simple"), rapid.IntRange(0, 2).Draw(t, "signalled")
			for i := range rapid.SampledFrom([]int{1, 1, 2, 3, 64, 65}).Draw(t, "requests") {
				id, kind, data := uint64(i), 2, 0
				if !simple {
					kind = rapid.IntRange(0, 4).Draw(t, "kind")
					data = rapid.IntRange(0, 5).Draw(t, "data")
				}
				var r WRRequest
				switch kind {
				case 0:
					r = p.Send(id)
				case 1:
					r = p.SendImm(id, ibv.ToBE32(9))
				case 2:
					r = p.Write(id, 1<<40+id, 7)
				case 3:
					r = p.WriteImm(id, 1<<40+id, 7, 8)
				case 4:
					r = p.CompareSwap(id, 1<<40+rapid.SampledFrom([]uint64{8, 8, 8, 4}).Draw(t, "remote"), 7, 8, 9)
				}
				switch bytes := rapid.SampledFrom([]uint32{8, 8, 8, 8, 100, 101}).Draw(t, "bytes"); data {
				default:
					r.SGE(1<<41, bytes, 5)
				case 4:
					r.SGE(1<<41, bytes, 5).SGE(1<<42, 1, 6)
				case 5:
					r.Inline(make([]byte, bytes&15))
				}
				if signalled == 1 || signalled == 2 && rapid.Bool().Draw(t, "this one") {
					r.Signaled()
				}
				requests = append(requests, r)
			}
		}
		build()
		wcs := make([]ibv.WC, 130)
		defer func() {
			for n := 1; n > 0; {
				n, _ = cqs[0].Poll(wcs)
			}
		}()
		poll := func() {
			for n := 1; n > 0 && !o.Unchecked; {
				var err error
				n, err = cqs[0].Poll(wcs)
				require.NoError(t, err)
				queues[1].Retire(wcs[:n])
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"build": func(*rapid.T) { build() },
			"patch": func(t *rapid.T) {
				r := requests[rapid.IntRange(0, len(requests)-1).Draw(t, "which")]
				r.SetID(rapid.SampledFrom([]uint64{3, 4, 5, 6, 7, 1 << 50, 1<<64 - 1}).Draw(t, "id"))
				r.SetFlags(rapid.SampledFrom([]ibv.SendFlags{0, ibv.SEND_SIGNALED, ibv.SEND_SIGNALED | ibv.SEND_FENCE}).
					Draw(t, "flags"))
				if d := &p.info[r.index]; len(d.list) == 1 && !d.inline {
					r.SetSGE(1<<43, rapid.SampledFrom([]uint32{8, 9, 101}).Draw(t, "length"), 11)
				}
			},
			"post": func(t *rapid.T) {
				qp.QPBase.State = rapid.SampledFrom([]ibv.QPState{ibv.QPS_RTS, ibv.QPS_RTS, ibv.QPS_RTS, ibv.QPS_INIT}).
					Draw(t, "state")
				var digests [2]uint64
				var errs [2]error
				if rapid.IntRange(0, 3).Draw(t, "poll") != 0 {
					poll()
				}
				free := queues[0].free()
				for i := range queues {
					*digest = 0
					errs[i] = post[i](p)
					digests[i] = *digest
				}
				assert.Equal(t, errs[1], errs[0])
				assert.Equal(t, digests[1], digests[0])
				if errs[0] != nil {
					assert.Equal(t, free, queues[0].free(), "a rejected program takes no slots")
				} else {
					assert.NotZero(t, digests[0])
				}
			},
			"another queue pair's": func(t *rapid.T) {
				other := *qp
				strange := NewWRProgram(&other)
				strange.Send(1).SGE(1, 2, 3)
				for range 2 {
					*digest = 0
					assert.ErrorContains(t, post[0](strange), "the program is of QP")
					assert.Zero(t, *digest)
					q, err := NewSendQueue(&other.QPBase, QueueOptions{Unchecked: true, Way: "system"})
					require.NoError(t, err)
					other.QPBase.State = ibv.QPS_RTS
					require.NoError(t, q.PostProgram(strange)) // already checked against its own queue
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, queues[1].posted.Load(), queues[0].posted.Load())
				require.Equal(t, queues[1].free(), queues[0].free())
			},
		})
	})
}

// TestProgramCheckedEachTime: each post of a program checks it again, even if it was accepted before.
func TestProgramCheckedEachTime(t *testing.T) {
	_, qp, digest := nativeExtended(t)
	o := nativeOptions("system")
	o.MaxMessage = 100
	q, err := NewSendQueue(&qp.QPBase, o)
	require.NoError(t, err)
	for reason, build := range map[string]func(p *WRProgram) WRRequest{
		"a message of 101 bytes exceeds the limit of 100": func(p *WRProgram) WRRequest {
			return p.Write(1, 2, 3).SGE(4, 100, 5).SGE(6, 1, 7)
		},
		"65 inline bytes exceed the queue pair's limit of 64": func(p *WRProgram) WRRequest {
			return p.Send(1).Inline(make([]byte, 65))
		},
		"at remote address 0x4, which is not a multiple of 8": func(p *WRProgram) WRRequest {
			return p.CompareSwap(1, 4, 3, 2, 1).SGE(1, 8, 2)
		},
	} {
		p := NewWRProgram(qp)
		build(p).Signaled()
		for range 3 {
			*digest = 0
			assert.ErrorContains(t, q.PostProgram(p), reason)
			assert.Zero(t, *digest, "C was called")
		}
	}
	assert.Equal(t, 1024, q.Free())
}
