// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// unreliable is a UC or UD sender and receiver. The receiver has a shared receive queue or its own receive queue.
type unreliable struct {
	*testbed.Testbed
	kind          ibv.QPType
	pair          *testbed.Pair
	srq           *ibv.SRQ
	ah            *ibv.AH
	local, remote *testbed.Buffer
}

// Offsets and sizes of receives in the remote buffer.
const (
	firstRecv  = 0
	secondRecv = 8192
	bufferSize = 16384 // size of each buffer
)

func newUnreliable(r *testbed.Testbed, kind ibv.QPType, shared bool) *unreliable {
	u := &unreliable{Testbed: r, kind: kind, local: r.Buffer(bufferSize, local), remote: r.Buffer(bufferSize, remote)}
	if !shared {
		u.pair = r.Pair(kind)
	} else {
		u.srq = r.SRQ(16)
		u.pair = &testbed.Pair{ASend: r.CQ(16), ARecv: r.CQ(16), BRecv: r.CQ(16)}
		u.pair.BSend = u.pair.BRecv
		u.pair.A, u.pair.B = r.QP(kind, u.pair.ASend, u.pair.ARecv), r.SharingQP(kind, u.pair.BRecv, u.srq)
		r.Connect(u.pair.A, u.pair.B)
	}
	if kind == ibv.QPT_UD {
		u.ah = r.Handle()
	}
	for i := range u.local.Bytes {
		u.local.Bytes[i] = byte(i%251 + 1)
	}
	return u
}

// header returns the size of the bytes before a message's data.
func (u *unreliable) header() int {
	if u.kind == ibv.QPT_UD {
		return grh
	}
	return 0
}

func (u *unreliable) recv(id uint64, sge ibv.SGE) {
	if u.srq != nil {
		u.RecvSRQ(u.srq, id, sge)
	} else {
		u.Recv(u.pair.B, id, sge)
	}
}

// postReceive posts a receive for length bytes of data.
func (u *unreliable) postReceive(length int) { u.recv(7, u.remote.SGE(firstRecv, u.header()+length)) }

// request posts a signaled work request of length bytes, modified by change.
func (u *unreliable) request(op ibv.WROpcode, length int, change func(*ibv.SendWR)) {
	l := u.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = op, ibv.SEND_SIGNALED, u.local.SGE(0, length)
	if u.kind == ibv.QPT_UD {
		*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(u.ah), RemoteQPN: u.pair.B.QPNum, RemoteQKey: testbed.QKey}
	} else {
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: u.remote.Address(firstRecv), RKey: u.remote.MR.RKey}
	}
	change(&l.WRs[0])
	_, err := l.Post(u.pair.A)
	u.Check(err)
}

func (u *unreliable) send(length int) { u.request(ibv.WR_SEND, length, unchanged) }

func unchanged(*ibv.SendWR) {}

func badKey(wr *ibv.SendWR) { wr.WR.RDMA().RKey ^= 0xff00 }

// unreliableCases end with a message that the receiver cannot accept, except for the first case.
var unreliableCases = []struct {
	name  string
	kinds []ibv.QPType
	make  func(u *unreliable)
}{
	{"nothing wrong", nil, func(u *unreliable) { u.postReceive(moved); u.send(moved) }},
	{"send longer than its receive", nil, func(u *unreliable) { u.postReceive(moved - 1); u.send(moved) }},
	{"send with immediate data longer than its receive", nil,
		func(u *unreliable) { u.postReceive(moved - 1); u.request(ibv.WR_SEND_WITH_IMM, moved, unchanged) }},
	{"send to a receive shorter than a GRH", []ibv.QPType{ibv.QPT_UD},
		func(u *unreliable) { u.recv(7, u.remote.SGE(firstRecv, grh/2)); u.send(moved) }},
	{"send to a receive of no bytes", nil, func(u *unreliable) {
		u.recv(7, u.remote.SGE(firstRecv, 0))
		u.send(moved)
	}},
	{"send of two packets to a receive of one", []ibv.QPType{ibv.QPT_UC},
		func(u *unreliable) { u.postReceive(1024); u.send(1024 + moved) }},
	{"send of three packets to a receive of one", []ibv.QPType{ibv.QPT_UC},
		func(u *unreliable) { u.postReceive(1024); u.send(2048 + moved) }},
	{"send without a receive", nil, func(u *unreliable) { u.send(moved) }},
	{"send to a receive with a bad lkey", nil, func(u *unreliable) {
		sge := u.remote.SGE(firstRecv, u.header()+moved)
		sge.LKey ^= 0xff00
		u.recv(7, sge)
		u.send(moved)
	}},
	{"send to a receive outside its region", nil, func(u *unreliable) {
		sge := u.remote.SGE(firstRecv, u.header()+moved)
		sge.Addr += bufferSize - 8
		u.recv(7, sge)
		u.send(moved)
	}},
	{"send to a receive in a region without local write", nil, func(u *unreliable) {
		u.recv(7, u.Buffer(256, 0).SGE(0, u.header()+moved))
		u.send(moved)
	}},
	{"send with a bad Q_Key", []ibv.QPType{ibv.QPT_UD}, func(u *unreliable) {
		u.postReceive(moved)
		u.request(ibv.WR_SEND, moved, func(wr *ibv.SendWR) { wr.WR.UD().RemoteQKey++ })
	}},
	{"write with a bad rkey", []ibv.QPType{ibv.QPT_UC},
		func(u *unreliable) { u.postReceive(moved); u.request(ibv.WR_RDMA_WRITE, moved, badKey) }},
	{"write outside the region", []ibv.QPType{ibv.QPT_UC}, func(u *unreliable) {
		u.postReceive(moved)
		u.request(ibv.WR_RDMA_WRITE, moved, func(wr *ibv.SendWR) { wr.WR.RDMA().RemoteAddr += bufferSize - 8 })
	}},
	{"write of three packets outside the region", []ibv.QPType{ibv.QPT_UC}, func(u *unreliable) {
		u.postReceive(moved)
		u.request(ibv.WR_RDMA_WRITE, 2048+moved, func(wr *ibv.SendWR) { wr.WR.RDMA().RemoteAddr += bufferSize - 2048 })
	}},
	{"write to a region without remote write", []ibv.QPType{ibv.QPT_UC}, func(u *unreliable) {
		u.postReceive(moved)
		b := u.Buffer(256, local)
		u.request(ibv.WR_RDMA_WRITE, moved, func(wr *ibv.SendWR) {
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: b.Address(0), RKey: b.MR.RKey}
		})
	}},
	{"write to a queue pair without remote write", []ibv.QPType{ibv.QPT_UC}, func(u *unreliable) {
		u.postReceive(moved)
		u.Check(verbs.ModifyQP(u.pair.B, &ibv.QPAttr{QPAccessFlags: local}, ibv.QP_ACCESS_FLAGS))
		u.request(ibv.WR_RDMA_WRITE, moved, unchanged)
	}},
	{"write with immediate data and a bad rkey", []ibv.QPType{ibv.QPT_UC},
		func(u *unreliable) { u.postReceive(moved); u.request(ibv.WR_RDMA_WRITE_WITH_IMM, moved, badKey) }},
	{"write with immediate data, without a receive", []ibv.QPType{ibv.QPT_UC},
		func(u *unreliable) { u.request(ibv.WR_RDMA_WRITE_WITH_IMM, moved, unchanged) }},
}

// TestUnreliable measures UC and UD messages that the receiver cannot accept: the completions of both sides, the
// receiver's state afterwards, and whether the next valid message arrives.
func TestUnreliable(t *testing.T) {
	r := testbed.Open(t)
	table := results.Table{Columns: []string{"qp_type", "receives", "case", "sent", "received", "qp_state", "next"},
		Keys: 3}
	for _, kind := range []ibv.QPType{ibv.QPT_UC, ibv.QPT_UD} {
		for _, receives := range []string{"own", "shared"} {
			for _, c := range unreliableCases {
				if c.kinds != nil && c.kinds[0] != kind || kind == ibv.QPT_UC && receives == "shared" {
					continue // by ibv_create_qp(3), UC does not support shared receive queues
				}
				t.Run(trim(kind.String())+"/"+receives+"/"+c.name, func(t *testing.T) {
					u := newUnreliable(r.For(t), kind, receives == "shared")
					c.make(u)
					sent, received := all(t, u.pair.ASend, opTimeout), all(t, u.pair.BRecv, more)
					state := u.State(u.pair.B)
					table.Rows = append(table.Rows, []string{trim(kind.String()), receives, c.name, sent, received,
						trim(state.String()), u.next(t, state)})
				})
			}
		}
	}
	check(t, "unreliable", table)
}

// next sends another, shorter message, and reports which receive it consumes: "first" is left over from the message
// before, "second" is posted now.
func (u *unreliable) next(t *testing.T, state ibv.QPState) string {
	if state != ibv.QPS_RTS {
		return "-"
	}
	clear(u.remote.Bytes)
	const length = 8
	u.recv(9, u.remote.SGE(secondRecv, 256))
	u.request(ibv.WR_SEND, length, func(wr *ibv.SendWR) { wr.SGList.Deref().Addr += 128 })
	sent, received := poll(t, u.pair.ASend, opTimeout)
	require.True(t, received)
	require.Equal(t, ibv.WC_SUCCESS, sent.Status)
	wc, received := poll(t, u.pair.BRecv, more)
	if !received {
		return "none"
	}
	which, at := "first", firstRecv
	if wc.WRID == 9 {
		which, at = "second", secondRecv
	}
	name := trim(wc.Status.String())
	if wc.Status == ibv.WC_SUCCESS {
		at += u.header()
		if !bytes.Equal(u.remote.Bytes[at:at+length], u.local.Bytes[128:128+length]) {
			name += ", wrong data"
		}
		if int(wc.ByteLen) != u.header()+length {
			name += fmt.Sprintf(", %d bytes too many", int(wc.ByteLen)-u.header()-length)
		}
	}
	if after := u.State(u.pair.B); after != ibv.QPS_RTS {
		name += ", then " + trim(after.String())
	}
	return which + ": " + name
}
