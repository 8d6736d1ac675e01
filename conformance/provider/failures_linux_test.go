// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestFailure checks the statuses at both ends for every failure that the device detects, and that later requests are
// flushed.
func TestFailure(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	device := openDevice(t)
	for name, failed := range map[string]struct {
		receive func(own *rdma.MR) ibv.SGE // nil: no receive
		request func(b *rdma.SendBatch, own, peer *rdma.MR)
		sender  ibv.WCStatus
		peer    ibv.WCStatus // status of the receive, if any
	}{
		"write beyond the region": {nil, func(b *rdma.SendBatch, own, peer *rdma.MR) {
			b.Write(1, peer.SGE(2*size-1, 1).Addr, peer.RKey()).Add(own.SGE(0, 2)).Signaled()
		}, ibv.WC_REM_ACCESS_ERR, 0},
		"read with a wrong key": {nil, func(b *rdma.SendBatch, own, peer *rdma.MR) {
			b.Read(1, peer.Address(), peer.RKey()^1).Add(own.SGE(0, 2)).Signaled()
		}, ibv.WC_REM_ACCESS_ERR, 0},
		"data with a wrong key": {nil, func(b *rdma.SendBatch, own, _ *rdma.MR) {
			b.Send(1).SGE(own.Address(), 1, own.LKey()^1).Signaled()
		}, ibv.WC_LOC_PROT_ERR, 0},
		"window without a region": {nil, func(b *rdma.SendBatch, _, _ *rdma.MR) {
			b.LocalInv(1, 77).Signaled()
		}, ibv.WC_MW_BIND_ERR, 0},
		"no receive": {nil, func(b *rdma.SendBatch, own, _ *rdma.MR) {
			b.Send(1).Add(own.SGE(0, 1)).Signaled()
		}, ibv.WC_RNR_RETRY_EXC_ERR, 0},
		"receive too short": {func(own *rdma.MR) ibv.SGE { return own.SGE(0, 1) },
			func(b *rdma.SendBatch, own, _ *rdma.MR) { b.Send(1).Add(own.SGE(0, 2)).Signaled() },
			ibv.WC_REM_INV_REQ_ERR, ibv.WC_LOC_LEN_ERR},
		"receive with a wrong key": {
			func(own *rdma.MR) ibv.SGE { return ibv.SGE{Addr: own.Address(), Length: 9, LKey: own.LKey() ^ 1} },
			func(b *rdma.SendBatch, own, _ *rdma.MR) { b.Send(1).Add(own.SGE(0, 2)).Signaled() },
			ibv.WC_REM_OP_ERR, ibv.WC_LOC_PROT_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
			if failed.receive != nil {
				receive(t, qps[1].PostRecv, failed.receive(mrs[1]))
			}
			send(t, qps[0], func(b *rdma.SendBatch) {
				failed.request(b, mrs[0], mrs[1])
				b.Send(2).Add(mrs[0].SGE(0, 1)).Signaled()
			})
			for i, status := range []ibv.WCStatus{failed.sender, ibv.WC_WR_FLUSH_ERR} {
				wc := next(t, qps[0].SendCQ())
				assert.Equal(t, status, wc.Status)
				assert.EqualValues(t, i+1, wc.WRID)
			}
			if failed.receive != nil {
				wc := next(t, qps[1].RecvCQ())
				assert.Equal(t, failed.peer, wc.Status)
				assert.EqualValues(t, 100, wc.WRID)
			}
		})
	}
}
