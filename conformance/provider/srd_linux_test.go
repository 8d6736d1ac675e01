// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/efa"
)

func createSRD(pd *rdma.PD, cq *rdma.CQ, flags efadv.QPFlags) (*rdma.QP, error) {
	operations := ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ
	if supports(writes) {
		operations |= ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM
	}
	return efa.CreateQP(pd.Device(), &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: room, CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, PD: pd.Ptr(),
		SendOpsFlags: operations},
		&efadv.QPInitAttr{DriverQPType: efadv.QP_DRIVER_TYPE_SRD, Flags: flags}, rdma.QueueOptions{})
}

// newSRD creates queue pairs for scalable reliable datagrams.
func newSRD(t *testing.T, flags efadv.QPFlags) *datagrams {
	t.Helper()
	return newDatagrams(t, func(pd *rdma.PD, cq *rdma.CQ) (*rdma.QP, error) { return createSRD(pd, cq, flags) })
}

// to returns the destination for requests from one queue pair to the other.
func (g *datagrams) to(i int) (ibv.Ptr[ibv.AH], uint32, uint32) {
	return g.ahs[1-i].Ptr(), g.qps[i].Num(), key
}

// TestSRD sends, writes and reads with scalable reliable datagrams, with both ways to post.
func TestSRD(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	if supports("65.0") {
		var sends, receives efadv.WQAttr
		require.NoError(t, libefa.QueryQPWQs(g.qps[0].C(), &sends, &receives, uint32(unsafe.Sizeof(sends))))
		long := sends.Caps&efadv.WQ_CAPS_64_BIT_REQ_ID != 0
		assert.Equal(t, os.Getenv(envCapabilities) == longNumbers, long, "requests have numbers of 64 bits")
	}
	for round := range 100 {
		from, at := g.qps[round%2], g.qps[1-round%2]
		local, peer := g.mrs[round%2], g.mrs[1-round%2]
		ah, qpn, qkey := g.to(1 - round%2)
		text := bytes.Repeat([]byte{byte(round + 1)}, 1+round*5)
		copy(local.Bytes(), text)
		receive(t, at.PostRecv, peer.SGE(size, size))
		imm := ibv.ToBE32(uint32(round))
		switch round % 4 {
		case 0, 1:
			send(t, from, func(b *rdma.SendBatch) {
				b.SendImm(7, imm).Add(local.SGE(0, 1)).Add(local.SGE(1, uint32(len(text))-1)).UD(ah, qpn, qkey).Signaled()
			})
		case 2, 3:
			text = text[:min(len(text), 32)]
			program(t, from, func(p *rdma.WRProgram) { p.SendImm(7, imm).Inline(text).UD(ah, qpn, qkey).Signaled() })
		}
		wc := success(t, at.RecvCQ(), ibv.WC_RECV, 100)
		assert.Equal(t, []uint32{uint32(len(text)), from.Num(), uint32(round)},
			[]uint32{wc.ByteLen, wc.SrcQP, wc.ImmData().Host()})
		assert.Equal(t, text, peer.Bytes()[size:][:len(text)])
		success(t, from.SendCQ(), ibv.WC_SEND, 7)
	}
	a, b, own, peer := g.qps[0], g.qps[1], g.mrs[0], g.mrs[1]
	ah, qpn, qkey := g.to(1)
	copy(own.Bytes(), "what is written")
	clear(peer.Bytes())
	if !supports(writes) {
		copy(peer.Bytes()[9:], "what is written")
		program(t, a, func(p *rdma.WRProgram) {
			p.Read(2, peer.SGE(14, 1).Addr, peer.RKey()).Add(own.SGE(size, 10)).UD(ah, qpn, qkey).Signaled()
		})
		success(t, a.SendCQ(), ibv.WC_SEND, 2)
		assert.Equal(t, "is written", string(own.Bytes()[size:][:10]))
		return
	}
	program(t, a, func(p *rdma.WRProgram) {
		p.Write(1, peer.SGE(9, 1).Addr, peer.RKey()).Add(own.SGE(0, 15)).UD(ah, qpn, qkey).Signaled()
	})
	success(t, a.SendCQ(), ibv.WC_RDMA_WRITE, 1)
	program(t, a, func(p *rdma.WRProgram) {
		p.Read(2, peer.SGE(14, 1).Addr, peer.RKey()).Add(own.SGE(size, 10)).UD(ah, qpn, qkey).Signaled()
	})
	success(t, a.SendCQ(), ibv.WC_SEND, 2) // libefa reports reads as sends
	assert.Equal(t, "is written", string(own.Bytes()[size:][:10]))
	receive(t, b.PostRecv, peer.SGE(0, 1))
	program(t, a, func(p *rdma.WRProgram) {
		p.WriteImm(3, peer.Address(), peer.RKey(), ibv.ToBE32(5)).Add(own.SGE(0, 4)).UD(ah, qpn, qkey).Signaled()
	})
	wc := success(t, b.RecvCQ(), ibv.WC_RECV_RDMA_WITH_IMM, 100)
	assert.Equal(t, []uint32{5, 4}, []uint32{wc.ImmData().Host(), wc.ByteLen})
	assert.Equal(t, "what", string(peer.Bytes()[:4]))
	success(t, a.SendCQ(), ibv.WC_RDMA_WRITE, 3)
}

// TestUnsolicited checks that a write with immediate data consumes no receive if the receiver was created with
// unsolicited writes, and that the completion reports this.
func TestUnsolicited(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, efadv.QP_FLAGS_UNSOLICITED_WRITE_RECV)
	ah, qpn, qkey := g.to(1)
	for round := range uint32(100) {
		program(t, g.qps[0], func(p *rdma.WRProgram) {
			p.WriteImm(3, g.mrs[1].Address(), g.mrs[1].RKey(), ibv.ToBE32(round)).Add(g.mrs[0].SGE(0, 4)).
				UD(ah, qpn, qkey).Signaled()
		})
		wc := success(t, g.qps[1].RecvCQ(), ibv.WC_RECV_RDMA_WITH_IMM, 0)
		assert.Equal(t, round, wc.ImmData().Host())
		success(t, g.qps[0].SendCQ(), ibv.WC_RDMA_WRITE, 3)
	}
}

// TestSRDOrder checks that a datagram that waits for its receiver does not block datagrams for other receivers and
// completes when the receiver is ready, and that out-of-order completions are matched to their requests.
func TestSRDOrder(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	a, b := g.qps[0], g.qps[1]
	ah, qpn, qkey := g.to(1)
	for round := range uint64(40) {
		send(t, a, func(batch *rdma.SendBatch) {
			batch.Send(10+round).Add(g.mrs[0].SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
			batch.Send(1).Add(g.mrs[0].SGE(0, 8)).UD(ah, a.Num()+1000, qkey).Signaled()
		})
		wc := next(t, a.SendCQ())
		assert.Equal(t, []any{ibv.WC_REM_INV_RD_REQ_ERR, uint64(1)}, []any{wc.Status, wc.WRID}, "no such queue pair")
		receive(t, b.PostRecv, g.mrs[1].SGE(0, size))
		success(t, b.RecvCQ(), ibv.WC_RECV, 100)
		success(t, a.SendCQ(), ibv.WC_SEND, 10+round)
	}
}

// TestSRDFailures checks the status of each failure, and that the queue pair remains usable.
func TestSRDFailures(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	a, b, local, peer := g.qps[0], g.qps[1], g.mrs[0], g.mrs[1]
	ah, qpn, qkey := g.to(1)
	noQueuePair, err := rdma.NewSendBatch(1, 1, 0)
	keep(t, noQueuePair, err)
	noQueuePair.Send(1).Add(local.SGE(0, 2)).Signaled()
	_, err = a.PostSend(noQueuePair)
	require.ErrorContains(t, err, "a datagram needs an address handle") // libefa would dereference a null pointer
	away := ibv.AHAttr{PortNum: 1, IsGlobal: 1}
	*away.GRH.DGID.Raw() = [16]byte{0xfe, 0x80, 15: 1}
	far, err := g.pds[0].CreateAH(&away)
	keep(t, far, err)
	impatient := newSRDOn(t, g)
	const aWrite = "write beyond the region"
	type failure struct {
		by     *rdma.QP
		post   func(p *rdma.WRProgram)
		status ibv.WCStatus
	}
	for name, f := range map[string]failure{
		aWrite: {a, func(p *rdma.WRProgram) {
			p.Write(1, peer.SGE(2*size-1, 1).Addr, peer.RKey()).Add(local.SGE(0, 2)).UD(ah, qpn, qkey).Signaled()
		}, ibv.WC_REM_ACCESS_ERR},
		"read with a wrong key": {a, func(p *rdma.WRProgram) {
			p.Read(1, peer.Address(), peer.RKey()^1).Add(local.SGE(0, 2)).UD(ah, qpn, qkey).Signaled()
		}, ibv.WC_REM_ACCESS_ERR},
		"data with a wrong key": {a, func(p *rdma.WRProgram) {
			p.Send(1).SGE(local.Address(), 1, local.LKey()^1).UD(ah, qpn, qkey).Signaled()
		}, ibv.WC_LOC_PROT_ERR},
		"no queue pair": {a, func(p *rdma.WRProgram) {
			p.Send(1).Add(local.SGE(0, 2)).UD(ah, qpn+1000, qkey).Signaled()
		}, ibv.WC_REM_INV_RD_REQ_ERR},
		"an address without a host": {a, func(p *rdma.WRProgram) {
			p.Send(1).Add(local.SGE(0, 2)).UD(far.Ptr(), qpn, qkey).Signaled()
		}, ibv.WC_RESP_TIMEOUT_ERR},
		"no receive": {impatient, func(p *rdma.WRProgram) {
			p.Send(1).Add(local.SGE(0, 2)).UD(ah, qpn, qkey).Signaled()
		}, ibv.WC_RNR_RETRY_EXC_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			if name == aWrite && !supports(writes) {
				return
			}
			program(t, f.by, f.post)
			wc := next(t, f.by.SendCQ())
			want := f.status
			if !supports(writes) && slices.Contains(laterStatuses, want) {
				want = ibv.WC_GENERAL_ERR
			}
			assert.Equal(t, []any{want, uint64(1)}, []any{wc.Status, wc.WRID})
			assert.NotZero(t, wc.VendorErr)
			receive(t, b.PostRecv, peer.SGE(0, size))
			program(t, f.by, func(p *rdma.WRProgram) { p.Send(2).Add(local.SGE(0, 2)).UD(ah, qpn, qkey).Signaled() })
			success(t, b.RecvCQ(), ibv.WC_RECV, 100)
			success(t, f.by.SendCQ(), ibv.WC_SEND, 2)
		})
	}
	receive(t, b.PostRecv, peer.SGE(0, 1))
	send(t, a, func(batch *rdma.SendBatch) { batch.Send(1).Add(local.SGE(0, 2)).UD(ah, qpn, qkey).Signaled() })
	wc := next(t, a.SendCQ())
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, wc.Status, "receive too short")
	wc = next(t, b.RecvCQ())
	assert.Equal(t, ibv.WC_LOC_LEN_ERR, wc.Status)
}

// laterStatuses lists statuses that older releases of libefa do not distinguish from others.
var laterStatuses = []ibv.WCStatus{ibv.WC_REM_ACCESS_ERR, ibv.WC_RESP_TIMEOUT_ERR}

// newSRDOn creates another queue pair on the same device. Its datagrams do not wait for a receiver.
func newSRDOn(t *testing.T, g *datagrams) *rdma.QP {
	t.Helper()
	channel, err := g.device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := g.device.CreateCQ(64, channel, 0)
	keep(t, cq, err)
	qp, err := createSRD(g.pds[0], cq, 0)
	keep(t, qp, err)
	g.ready(t, qp, 0)
	return qp
}
