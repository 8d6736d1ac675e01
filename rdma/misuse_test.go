// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

func TestMemorySizeOverflow(t *testing.T) {
	for _, size := range [][3]int{{math.MaxInt, 1, 0}, {math.MaxInt / 16, 1, 0}, {1, math.MaxInt / 16, 0},
		{1, math.MaxInt, 0}, {3, 1, math.MaxInt / 2}, {1, 1, math.MaxInt}, {1 << 16, 1 << 16, math.MaxInt >> 17}} {
		_, err := NewSendBatch(size[0], size[1], size[2])
		assert.ErrorIs(t, err, syscall.ENOMEM, size)
		if size[2] == 0 {
			_, err = NewRecvBatch(size[0], size[1])
			assert.ErrorIs(t, err, syscall.ENOMEM, size)
		}
	}
}

func TestHeadersTruncatedByC(t *testing.T) {
	header := make([]byte, 1<<16)
	x := newExtended(t, ibv.QPT_UD)
	x.qp.WRSendTSO = x.qp.WRSend
	q := x.queue(t, options(8, 1, 1<<17))
	b := sendBatch(t, 1, 1, 1<<17)
	b.TSO(1, header, 1000)
	_, err := q.Post(b)
	assert.EqualError(t, err,
		"ibv_post_send: QP 0x12 (UD): WR 0: a header of 65536 bytes exceeds the limit of 65535: invalid argument")
	b.Reset()
	b.TSO(1, header[1:], 1000)
	assert.NoError(t, b.Err())
	assert.EqualValues(t, 1<<16-1, b.WR(0).TSO().HdrSz)

	p := NewWRProgram(&x.qp)
	p.TSO(1, header, 1000)
	assert.EqualError(t, q.PostProgram(p),
		"ibv_wr_complete: QP 0x12 (UD): WR 0: a header of 65536 bytes exceeds the limit of 65535: invalid argument")
	p.Reset()
	p.TSO(1, header[1:], 1000)
	assert.NoError(t, p.Err())
}

func TestNilObjectArguments(t *testing.T) {
	o := options(8, 1, 0)
	for name, create := range map[string]func(nothing bool) error{
		"ibv_post_send: qp is nil": func(nothing bool) error {
			qp := &ibv.QP{}
			if nothing {
				qp = nil
			}
			_, err := NewSendQueue(qp, o)
			return err
		},
		"ibv_post_recv: qp is nil": func(nothing bool) error {
			qp := &ibv.QP{}
			if nothing {
				qp = nil
			}
			_, err := NewRecvQueue(qp, o)
			return err
		},
		"ibv_post_srq_recv: srq is nil": func(nothing bool) error {
			srq := &ibv.SRQ{}
			if nothing {
				srq = nil
			}
			_, err := NewSharedRecvQueue(srq, o)
			return err
		},
		"ibv_poll_cq: cq is nil": func(nothing bool) error {
			cq := &ibv.CQ{}
			if nothing {
				cq = nil
			}
			_, err := NewCompletionQueue(cq, o)
			return err
		},
		"ibv_start_poll: cq is nil": func(bool) error {
			_, err := NewPollProgram(nil, 1, 0, o)
			return err
		},
	} {
		for _, nothing := range []bool{true, false} {
			err := create(nothing)
			assert.ErrorIs(t, err, syscall.EINVAL, name)
			if nothing {
				assert.EqualError(t, err, name)
			}
		}
	}
}

// For a provider without ibv_poll_cq, libibverbs sets the slot to a function that returns EOPNOTSUPP.
func TestPollWithoutPoll(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	address, err := space.Slot(func(_, _, _, _, _, _ uint64) (uint64,
		runtime.Errno) {
		return uint64(syscall.EOPNOTSUPP), 0
	})
	require.NoError(t, err)
	d.context.Ops.PollCQ = ibv.FuncPtr(address)
	q, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err)
	wcs := make([]ibv.WC, 16, 200)
	for range 2 {
		n, err := q.Poll(wcs)
		assert.Zero(t, n)
		assert.ErrorIs(t, err, runtime.ErrNotSupported)
		q.Track(d.qp.QPNum, sendQueue(t, d, options(8, 1, 0)), nil)
	}
}

func TestInvalidPatches(t *testing.T) {
	x := newExtended(t, ibv.QPT_RC)
	q := x.queue(t, options(8, 1, 16))
	for want, patch := range map[string]func(p *WRProgram){
		"WR 0: SetRemote of IBV_WR_SEND_WITH_IMM, which has no remote address": func(p *WRProgram) {
			p.SendImm(1, 0).SGE(1, 2, 3).SetRemote(100, 7)
		},
		"WR 0: SetSGE needs a request with exactly one entry, set by SGE or Add": func(p *WRProgram) {
			p.Write(1, 100, 7).SGE(1, 2, 3).SGE(4, 5, 6).SetSGE(1, 2, 3)
		},
		"WR 1: SetSGE needs a request with exactly one entry, set by SGE or Add": func(p *WRProgram) {
			p.Write(1, 100, 7).SGE(1, 2, 3).SetSGE(4, 5, 6)
			p.Write(1, 100, 7).Inline([]byte("x")).SetSGE(1, 2, 3)
		},
		"WR 0: SetFlush of IBV_WR_RDMA_WRITE": func(p *WRProgram) {
			p.Write(1, 100, 7).SGE(1, 2, 3).SetFlush(8, 1)
		},
		"WR 0: SetValue of IBV_WR_RDMA_WRITE": func(p *WRProgram) {
			p.Write(1, 100, 7).SGE(1, 2, 3).SetValue([8]byte{1})
		},
	} {
		p := NewWRProgram(&x.qp)
		patch(p)
		assert.EqualError(t, q.PostProgram(p), "ibv_wr_complete: QP 0x12 (RC): "+want+": invalid argument")
		assert.Empty(t, x.calls)
	}
}
