// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/efa"
)

// wideInline is the inline capacity of a 128-byte send request.
const wideInline = 80

// newWide creates queue pairs with 128-byte send requests, which hold up to 80 bytes of inline data, also for writes.
func newWide(t *testing.T) *datagrams {
	t.Helper()
	return newDatagrams(t, func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error) {
		wide := room
		wide.MaxInlineData = wideInline
		return efa.CreateQP(pd.Device(), &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: wide, CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, PD: pd.Ptr(),
			SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM},
			&efadv.QPInitAttr{DriverQPType: efadv.QP_DRIVER_TYPE_SRD, Flags: efadv.QP_FLAGS_INLINE_WRITE},
			rdma.QueueOptions{})
	})
}

// TestEFAWide sends and writes up to 80 bytes of inline data.
func TestEFAWide(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newWide(t)
	a, b, peer := g.qps[0], g.qps[1], g.mrs[1]
	ah, qpn, qkey := g.to(1)
	for n := 1; n <= wideInline; n++ {
		text := bytes.Repeat([]byte{byte(n)}, n)
		clear(peer.Bytes())
		receive(t, b.PostRecv, peer.SGE(size, size))
		if n%2 == 0 {
			program(t, a, func(p *rdma.WRProgram) { p.Send(7).Inline(text).UD(ah, qpn, qkey).Signaled() })
		} else {
			send(t, a, func(batch *rdma.SendBatch) {
				batch.Send(7).Inline(text[:min(n, 64)]).UD(ah, qpn, qkey).Signaled()
			})
			text = text[:min(n, 64)] // limit of these tests' batches
		}
		wc := success(t, b.RecvCQ(), ibv.WC_RECV, 100)
		assert.EqualValues(t, len(text), wc.ByteLen)
		assert.Equal(t, text, peer.Bytes()[size:][:len(text)])
		success(t, a.SendCQ(), ibv.WC_SEND, 7)

		program(t, a, func(p *rdma.WRProgram) {
			p.Write(8, peer.Address(), peer.RKey()).Inline(text).UD(ah, qpn, qkey).Signaled()
		})
		success(t, a.SendCQ(), ibv.WC_RDMA_WRITE, 8)
		assert.Equal(t, text, peer.Bytes()[:len(text)])
	}
	p, err := a.NewWRProgram()
	require.NoError(t, err)
	p.Write(9, peer.Address(), peer.RKey()).Inline(make([]byte, wideInline+1)).UD(ah, qpn, qkey).Signaled()
	require.Error(t, a.PostProgram(p))
}

// TestEFASubQueues checks that polls find all completions in completion queues with two parts, one for receives and one
// for sends.
func TestEFASubQueues(t *testing.T) {
	if os.Getenv(envInside) == "" {
		e := emulated(t)
		again(t, e.As(EFA), pathEFA, envRelease+"="+e.libraries.Release, "GOVERBS_EFA_SUB_QUEUES=1")
		return
	}
	g := newSRD(t, 0)
	a := g.qps[0]
	for round := range 200 { // wraps around the end of the ring
		ah, _, qkey := g.to(1)
		receive(t, a.PostRecv, g.mrs[0].SGE(0, size))
		send(t, a, func(b *rdma.SendBatch) {
			b.SendImm(7, ibv.ToBE32(uint32(round))).Add(g.mrs[0].SGE(500, 9)).UD(ah, a.Num(), qkey).Signaled()
		})
		seen := map[ibv.WCOpcode]uint64{}
		for range 2 {
			wc := next(t, a.SendCQ())
			require.NoError(t, rdma.CompletionErr(&wc))
			seen[wc.Opcode] = wc.WRID
			if wc.Opcode == ibv.WC_RECV {
				assert.EqualValues(t, round, wc.ImmData().Host())
			}
		}
		assert.Equal(t, map[ibv.WCOpcode]uint64{ibv.WC_RECV: 100, ibv.WC_SEND: 7}, seen)
	}
}
