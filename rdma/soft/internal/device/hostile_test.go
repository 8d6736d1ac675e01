// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// guarded is memory whose middle page is registered. check fails the test if the other pages were modified.
type guarded struct {
	all []byte
	mr  *ibv.MR
}

func (r *testbed) guarded(device int) *guarded {
	g := &guarded{all: offHeap[byte](r, 3*4096)}
	for i := range g.all {
		g.all[i] = 0x5a
	}
	mr, err := verbs.RegMR(r.pd[device], pointerTo(&g.all[4096]), 4096, allAccess|ibv.ACCESS_MW_BIND)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(mr)) })
	g.mr = mr
	return g
}

func (g *guarded) at() uint64 { return uint64(mem.AddressOf(&g.all[4096])) }

func (g *guarded) check(t *testing.T) {
	for i, b := range g.all {
		if (i < 4096 || i >= 8192) && b != 0x5a {
			t.Fatalf("byte %d outside the region was written", i-4096)
		}
	}
}

// wellFormed returns numbers that are valid in some field: sizes, and the addresses and keys of the regions.
func wellFormed(more uint64, all ...*guarded) []uint64 {
	numbers := []uint64{8, 64, 4096, 1 << 31, 1 << 32, more}
	for _, g := range all {
		numbers = append(numbers, g.at(), g.at()+4095, uint64(g.mr.LKey), uint64(g.mr.RKey))
	}
	return numbers
}

// FuzzBuilders calls builders and setters in arbitrary order with arbitrary arguments, except pointers that C would
// dereference. Regions fail or are executed, and memory without a valid key is not modified.
func FuzzBuilders(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 130, 0, 140, 0, 1, 150, 12, 200, 13, 210, 14, 3})
	f.Add([]byte{128, 130, 145, 0, 0, 0, 0, 0, 0, 129, 146, 130, 160, 131, 200, 255, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTestbed(t, Options{Virtual: true})
		h := &fuzzInput{Data: data}
		kind := []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}[h.Next()%3]
		ops := ibv.QPCreateSendOpsFlags(0)
		for i, op := range impl.SendOps {
			if impl.Rules[kind][op].Builds {
				ops |= 1 << i
			}
		}
		send, recv := r.cq(0, 256), r.cq(1, 256)
		attr := &ibv.QPInitAttrEx{
			QPType: kind, SendCQ: ibv.PtrTo(send), RecvCQ: ibv.PtrTo(send), Cap: testCaps, PD: ibv.PtrTo(r.pd[0]),
			CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ops,
		}
		a, err := verbs.CreateQPEx(r.context[0], attr)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DestroyQP(a)) }()
		b := r.qp(1, kind, testCaps, recv, recv)
		r.connect(a, 1, b.QPNum)
		r.connect(b, 0, a.QPNum)
		bufA, bufB := r.guarded(0), r.guarded(1)
		ah := r.ah(0, 1)
		mw, err := verbs.AllocMW(r.pd[0], ibv.MW_TYPE_2)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeallocMW(mw)) }()
		h.Well = wellFormed(uint64(mw.RKey)+1, bufA, bufB)
		r.recv(b, 1, ibv.SGE{Addr: bufB.at(), Length: 4096, LKey: bufB.mr.LKey})
		x, err := verbs.QPToQPEx(a)
		require.NoError(t, err)
		sges, pieces := offHeap[ibv.SGE](r, 64), offHeap[ibv.DataBuf](r, 64)
		key := func() uint32 { return uint32(h.Or(uint64(bufB.mr.RKey))) }
		remote := func() uint64 { return h.Or(bufB.at()) }
		local := func() ibv.SGE {
			return ibv.SGE{Addr: h.Or(bufA.at()), Length: uint32(h.Or(64)), LKey: uint32(h.Or(uint64(bufA.mr.LKey)))}
		}
		open := false
		for len(h.Data) > 0 {
			if !open {
				require.NoError(t, verbs.WRStart(x))
				open = true
			}
			x.WRID, x.WRFlags = h.Next(), ibv.SendFlags(h.Or(uint64(ibv.SEND_SIGNALED)))
			// The wrapper returns an error for an operation that the type does not support.
			switch h.Next() % 20 {
			case 0:
				verbs.WRSend(x)
			case 1:
				verbs.WRSendImm(x, ibv.BE32(h.Next()))
			case 2:
				verbs.WRSendInv(x, key())
			case 3:
				verbs.WRRDMAWrite(x, key(), remote())
			case 4:
				verbs.WRRDMAWriteImm(x, key(), remote(), ibv.BE32(h.Next()))
			case 5:
				verbs.WRRDMARead(x, key(), remote())
			case 6:
				verbs.WRAtomicCmpSwp(x, key(), remote(), h.Next(), h.Next())
			case 7:
				verbs.WRAtomicFetchAdd(x, key(), remote(), h.Next())
			case 8:
				verbs.WRAtomicWrite(x, key(), remote(), pointerTo(&bufA.all[0]))
			case 9:
				verbs.WRFlush(x, key(), remote(), h.Or(64), uint8(h.Or(uint64(ibv.FLUSH_GLOBAL))),
					uint8(h.Or(uint64(ibv.FLUSH_RANGE))))
			case 10:
				info := &ibv.MWBindInfo{MR: ibv.PtrTo(bufA.mr), Addr: h.Or(bufA.at()), Length: h.Or(64),
					MWAccessFlags: ibv.AccessFlags(h.Or(uint64(ibv.ACCESS_REMOTE_WRITE)))}
				verbs.WRBindMW(x, mw, uint32(h.Or(uint64(mw.RKey)+1)), info)
			case 11:
				verbs.WRLocalInv(x, uint32(h.Or(uint64(mw.RKey)+1)))
			case 12, 13:
				s := local()
				verbs.WRSetSGE(x, s.LKey, s.Addr, s.Length)
			case 14:
				for i := range 4 {
					sges[i] = local()
				}
				verbs.WRSetSGEList(x, h.Or(4), &sges[0])
			case 15:
				verbs.WRSetInlineData(x, uintptr(bufA.at()), h.Or(64))
			case 16:
				for i := range 4 {
					pieces[i] = ibv.DataBuf{Addr: uintptr(bufA.at()), Length: h.Or(16)}
				}
				verbs.WRSetInlineDataList(x, h.Or(4), &pieces[0])
			case 17:
				verbs.WRSetUDAddr(x, ah, uint32(h.Or(uint64(b.QPNum))), uint32(h.Or(testQKey)))
			case 18:
				verbs.WRComplete(x)
				open = false
			case 19:
				verbs.WRAbort(x)
				open = false
			}
		}
		if open {
			verbs.WRComplete(x)
		}
		for _, cq := range []*ibv.CQ{send, recv} {
			for range 64 {
				r.tryPoll(cq)
			}
		}
		bufA.check(t)
		bufB.check(t)
	})
}

// FuzzTags posts arbitrary operations to a tag list, and sends arbitrary messages to it: wrong headers, lengths that
// overflow, invalid keys.
func FuzzTags(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{128, 0, 0, 0, 129, 130, 1, 2, 3, 255, 254, 253, 252, 251, 250, 249, 248, 247})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTagTestbed(t, 4, 8)
		h := &fuzzInput{Data: data}
		bufA, bufB := r.guarded(0), r.guarded(1)
		h.Well = wellFormed(0xa, bufA, bufB)
		sges := offHeap[ibv.SGE](r.testbed, 40)
		buffer := func(g *guarded) {
			for i := range 4 {
				sges[i] = ibv.SGE{Addr: h.Or(g.at()), Length: uint32(h.Or(64)), LKey: uint32(h.Or(uint64(g.mr.LKey)))}
			}
		}
		for len(h.Data) > 0 {
			switch h.Next() % 4 {
			case 0:
				buffer(bufB)
				r.op(ibv.OpsWR{
					WRID: h.Next(), Opcode: ibv.OpsWROpcode(h.Or(0)),
					Flags: ibv.OpsFlags(h.Or(uint64(ibv.OPS_SIGNALED))), TM: ibv.OpsTM{
						UnexpectedCnt: uint32(h.Next()), Handle: uint32(h.Next()), Add: ibv.OpsTMAdd{
							RecvWRID: h.Next(), SGList: ibv.PtrTo(&sges[0]), NumSGE: int32(h.Or(2)), Tag: h.Or(0xa),
							Mask: h.Or(^uint64(0)),
						},
					},
				})
			case 1:
				buffer(bufB)
				wr := &offHeap[ibv.RecvWR](r.testbed, 1)[0]
				*wr = ibv.RecvWR{WRID: h.Next(), SGList: ibv.PtrTo(&sges[0]), NumSGE: int32(h.Or(1))}
				verbs.PostSRQRecv(r.srq, wr, &offHeap[ibv.Ptr[ibv.RecvWR]](r.testbed, 1)[0])
			default:
				message := struct {
					tmh ibv.TMH
					rvh ibv.RVH
				}{
					ibv.TMH{Opcode: ibv.TMHOp(h.Or(h.Next() % 5)), AppCtx: ibv.BE32(h.Next()), Tag: ibv.ToBE64(h.Or(0xa))},
					ibv.RVH{VA: ibv.ToBE64(h.Or(bufA.at())), RKey: ibv.ToBE32(uint32(h.Or(uint64(bufA.mr.RKey)))),
						Len: ibv.ToBE32(uint32(h.Or(64)))},
				}
				copy(r.bufA.bytes, unsafe.Slice((*byte)(unsafe.Pointer(&message)), 32))
				r.post(r.p.a, r.send(1, ibv.WR_SEND, r.bufA.sge(0, int(h.Or(32)%4096))))
			}
			for _, cq := range []*ibv.CQ{r.cq, r.p.aSend} {
				for range 4 {
					r.tryPoll(cq)
				}
			}
		}
		bufA.check(t)
		bufB.check(t)
	})
}

// FuzzRegions registers memory with an arbitrary IOVA, also near the end of the address space, and writes with its key
// to arbitrary addresses. Writes inside the region reach their addresses, and no other memory is modified.
func FuzzRegions(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{255, 0, 240, 255, 255, 255, 255, 255, 255, 200, 0, 16, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTestbed(t, Options{Virtual: true})
		h := &fuzzInput{Data: data}
		memory, from := offHeap[byte](r, 3*4096), r.buffer(0, 4096, allAccess)
		for i := range from.bytes {
			from.bytes[i] = 0xa5
		}
		base := uint64(mem.AddressOf(&memory[0]))
		h.Well = []uint64{base, base + 4096, base + 4095, 0, 4096, ^uint64(4095), 1 << 63, 8, 1}
		address, length := base+h.Next()%(3*4096), 1+h.Next()%4096
		length = min(length, base+3*4096-address)
		start := h.Or(address)
		access := ibv.AccessFlags(h.Or(uint64(allAccess)))
		mr, err := verbs.RegMRIOVA(r.pd[1], uintptr(address), length, start, access)
		if err != nil {
			if mr, err = verbs.RegMR(r.pd[1], uintptr(h.Or(address)), h.Or(length), access); err == nil {
				require.NoError(t, verbs.DeregMR(mr)) // any registered memory can be deregistered
			}
			return
		}
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		if access&ibv.ACCESS_ZERO_BASED != 0 {
			start = 0
		}
		for range 3 {
			h.Well = []uint64{start, start + length, start + length - 1, start - 1, address, 0, 1, length, length + 1,
				1 << 32}
			remote, n := h.Or(start), uint32(h.Or(8))
			n = min(n, 4096)
			p := r.pair(ibv.QPT_RC)
			wr := r.send(1, ibv.WR_RDMA_WRITE, from.sge(0, int(n)))
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: mr.RKey}
			clear(memory)
			require.NoError(t, r.post(p.a, wr))
			offset := remote - start
			allowed := access&ibv.ACCESS_REMOTE_WRITE != 0 && offset <= length && uint64(n) <= length-offset
			want := make([]byte, len(memory))
			switch wc := r.poll(p.aSend); {
			case n == 0: // the key is not checked
				require.Equal(t, ibv.WC_SUCCESS, wc.Status)
			case allowed:
				require.Equal(t, ibv.WC_SUCCESS, wc.Status)
				copy(want[address-base+offset:], from.bytes[:n])
			default:
				require.Equal(t, ibv.WC_REM_ACCESS_ERR, wc.Status)
			}
			require.True(t, string(want) == string(memory), "%d bytes at %#x of a region of %d at %#x", n, remote,
				length, start)
		}
	})
}

// TestMalformedMessages: a request from the wire whose length is wrong, or that exceeds a limit, is ignored; so is an
// answer from another port than the request's destination.
func TestMalformedMessages(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	b := s.fabric.QPOf(s.p.b.QPNum)
	payload := []byte("a payload of thirty-two bytes..")
	valid := message.Request{
		From: b.Out.To, To: b.Out.From, Transport: ibv.QPT_RC, Opcode: ibv.WR_RDMA_WRITE, PKey: 0xffff,
		SourceQP: s.p.a.QPNum, DestQP: s.p.b.QPNum, PSN: b.Receiver.Expects, Packets: 1, Remote: s.bufB.at(0),
		RKey: s.bufB.mr.RKey, Length: 8, Payload: []mem.Segment{{Base: mem.AddressOf(&payload[0]), Length: 8}},
	}
	malformations := map[string]func(*message.Request){
		"length too large":    func(m *message.Request) { m.Length = 16 },
		"length too small":    func(m *message.Request) { m.Length = 4 },
		"read with a payload": func(m *message.Request) { m.Opcode = ibv.WR_RDMA_READ },
		"no packets":          func(m *message.Request) { m.Packets = 0 },
		"too many segments":   func(m *message.Request) { m.Payload = append(make([]mem.Segment, 32), m.Payload...) },
		"datagram to another queue pair": func(m *message.Request) {
			m.Transport, m.Opcode, m.Length, m.DestQP = ibv.QPT_UD, ibv.WR_SEND, 16, 1
		},
	}
	deliver := func(m message.Request) {
		s.fabric.Deliver(func() { s.fabric.direct.Send(&m) })
	}
	for name, malform := range malformations {
		m := valid
		malform(&m)
		deliver(m)
		assert.Equal(t, make([]byte, 16), s.bufB.bytes[:16], name)
		assert.Equal(t, valid.PSN, b.Receiver.Expects, name)
	}
	deliver(valid)
	assert.Equal(t, payload[:8], s.bufB.bytes[:8])

	// An answer from another port arrives before the peer's answer.
	requester := newTestPair(t, ibv.QPT_RC, Options{})
	capture := &captureWire{}
	requester.fabric.Tap(func(w wire.Wire) wire.Wire {
		capture.Wire = w
		return capture
	})
	write := requester.send(1, ibv.WR_RDMA_WRITE, requester.bufA.sge(0, 8))
	require.NoError(t, requester.post(requester.p.a, requester.toBufB(write, 0)))
	require.NotNil(t, capture.answer)
	forged := capture.answer.Clone()
	forged.From.Link ^= 1
	requester.fabric.Deliver(func() { capture.Wire.Answer(forged) })
	_, done := requester.tryPoll(requester.p.aSend)
	assert.False(t, done)
	capture.answer.Life = 0 // like a wire that does not transmit it
	requester.fabric.Deliver(func() { capture.Wire.Answer(capture.answer) })
	assert.Equal(t, ibv.WC_SUCCESS, requester.poll(requester.p.aSend).Status)
}

// captureWire is a wire that records the last answer and does not deliver it.
type captureWire struct {
	wire.Wire
	answer *message.Answer
}

func (h *captureWire) Send(m *message.Request) (*message.Answer, time.Duration) {
	if a, _ := h.Wire.Send(m); a != nil {
		h.answer = a.Clone()
	}
	return nil, 0
}
