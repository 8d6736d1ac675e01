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
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// guarded is memory of which the middle page is registered; whole reports whether the rest is as it was.
type guarded struct {
	all []byte
	mr  *ibv.MR
}

func (r *rig) guarded(device int) *guarded {
	g := &guarded{all: outside[byte](r, 3*4096)}
	for i := range g.all {
		g.all[i] = 0x5a
	}
	mr, err := verbs.RegMR(r.pd[device], pointerTo(&g.all[4096]), 4096, everything|ibv.ACCESS_MW_BIND)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(mr)) })
	g.mr = mr
	return g
}

func (g *guarded) at() uint64 { return uint64(mem.AddressOf(&g.all[4096])) }

func (g *guarded) check(t *testing.T) {
	for i, b := range g.all {
		if (i < 4096 || i >= 8192) && b != 0x5a {
			t.Fatalf("byte %d beside the region was written", i-4096)
		}
	}
}

// wellFormed are numbers that mean something: of both regions.
func wellFormed(more uint64, all ...*guarded) []uint64 {
	numbers := []uint64{8, 64, 4096, 1 << 31, 1 << 32, more}
	for _, g := range all {
		numbers = append(numbers, g.at(), g.at()+4095, uint64(g.mr.LKey), uint64(g.mr.RKey))
	}
	return numbers
}

// FuzzBuilders calls builders and setters in any order with any arguments, but for pointers that C would follow, too:
// regions end with an error or are executed, and memory that no key grants access to stays unchanged.
func FuzzBuilders(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 130, 0, 140, 0, 1, 150, 12, 200, 13, 210, 14, 3})
	f.Add([]byte{128, 130, 145, 0, 0, 0, 0, 0, 0, 129, 146, 130, 160, 131, 200, 255, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig(t, Options{Virtual: true})
		h := &hostile{Data: data}
		kind := []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}[h.Next()%3]
		ops := ibv.QPCreateSendOpsFlags(0)
		for i, op := range sendOps {
			if rules[kind][op].builds {
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
		here, there := r.guarded(0), r.guarded(1)
		ah := r.ah(0, 1)
		mw, err := verbs.AllocMW(r.pd[0], ibv.MW_TYPE_2)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeallocMW(mw)) }()
		h.Well = wellFormed(uint64(mw.RKey)+1, here, there)
		r.recv(b, 1, ibv.SGE{Addr: there.at(), Length: 4096, LKey: there.mr.LKey})
		x, err := verbs.QPToQPEx(a)
		require.NoError(t, err)
		sges, pieces := outside[ibv.SGE](r, 64), outside[ibv.DataBuf](r, 64)
		key := func() uint32 { return uint32(h.Or(uint64(there.mr.RKey))) }
		remote := func() uint64 { return h.Or(there.at()) }
		local := func() ibv.SGE {
			return ibv.SGE{Addr: h.Or(here.at()), Length: uint32(h.Or(64)), LKey: uint32(h.Or(uint64(here.mr.LKey)))}
		}
		open := false
		for len(h.Data) > 0 {
			if !open {
				require.NoError(t, verbs.WRStart(x))
				open = true
			}
			x.WRID, x.WRFlags = h.Next(), ibv.SendFlags(h.Or(uint64(ibv.SEND_SIGNALED)))
			// A slot that the type does not have is an error of the wrapper's.
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
				verbs.WRAtomicWrite(x, key(), remote(), pointerTo(&here.all[0]))
			case 9:
				verbs.WRFlush(x, key(), remote(), h.Or(64), uint8(h.Or(uint64(ibv.FLUSH_GLOBAL))),
					uint8(h.Or(uint64(ibv.FLUSH_RANGE))))
			case 10:
				info := &ibv.MWBindInfo{MR: ibv.PtrTo(here.mr), Addr: h.Or(here.at()), Length: h.Or(64),
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
				verbs.WRSetInlineData(x, uintptr(here.at()), h.Or(64))
			case 16:
				for i := range 4 {
					pieces[i] = ibv.DataBuf{Addr: uintptr(here.at()), Length: h.Or(16)}
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
				r.polled(cq)
			}
		}
		here.check(t)
		there.check(t)
	})
}

// FuzzTags posts any operations to a tag list, and sends any messages to it: headers that lie, lengths that overflow,
// keys of nothing.
func FuzzTags(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{128, 0, 0, 0, 129, 130, 1, 2, 3, 255, 254, 253, 252, 251, 250, 249, 248, 247})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTagRig(t, 4, 8)
		h := &hostile{Data: data}
		here, there := r.guarded(0), r.guarded(1)
		h.Well = wellFormed(0xa, here, there)
		sges := outside[ibv.SGE](r.rig, 40)
		buffer := func(g *guarded) {
			for i := range 4 {
				sges[i] = ibv.SGE{Addr: h.Or(g.at()), Length: uint32(h.Or(64)), LKey: uint32(h.Or(uint64(g.mr.LKey)))}
			}
		}
		for len(h.Data) > 0 {
			switch h.Next() % 4 {
			case 0:
				buffer(there)
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
				buffer(there)
				wr := &outside[ibv.RecvWR](r.rig, 1)[0]
				*wr = ibv.RecvWR{WRID: h.Next(), SGList: ibv.PtrTo(&sges[0]), NumSGE: int32(h.Or(1))}
				verbs.PostSRQRecv(r.srq, wr, &outside[ibv.Ptr[ibv.RecvWR]](r.rig, 1)[0])
			default:
				message := struct {
					tmh ibv.TMH
					rvh ibv.RVH
				}{
					ibv.TMH{Opcode: ibv.TMHOp(h.Or(h.Next() % 5)), AppCtx: ibv.BE32(h.Next()), Tag: ibv.ToBE64(h.Or(0xa))},
					ibv.RVH{VA: ibv.ToBE64(h.Or(here.at())), RKey: ibv.ToBE32(uint32(h.Or(uint64(here.mr.RKey)))),
						Len: ibv.ToBE32(uint32(h.Or(64)))},
				}
				copy(r.here.bytes, unsafe.Slice((*byte)(unsafe.Pointer(&message)), 32))
				r.post(r.p.a, r.send(1, ibv.WR_SEND, r.here.sge(0, int(h.Or(32)%4096))))
			}
			for _, cq := range []*ibv.CQ{r.cq, r.p.aSend} {
				for range 4 {
					r.polled(cq)
				}
			}
		}
		here.check(t)
		there.check(t)
	})
}

// FuzzRegions registers memory under any address for peers, near the end of all addresses too, and writes through its
// key anywhere: writes within the region reach their addresses, and no other memory changes.
func FuzzRegions(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{255, 0, 240, 255, 255, 255, 255, 255, 255, 200, 0, 16, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig(t, Options{Virtual: true})
		h := &hostile{Data: data}
		memory, from := outside[byte](r, 3*4096), r.buffer(0, 4096, everything)
		for i := range from.bytes {
			from.bytes[i] = 0xa5
		}
		base := uint64(mem.AddressOf(&memory[0]))
		h.Well = []uint64{base, base + 4096, base + 4095, 0, 4096, ^uint64(4095), 1 << 63, 8, 1}
		address, length := base+h.Next()%(3*4096), 1+h.Next()%4096
		length = min(length, base+3*4096-address)
		start := h.Or(address)
		access := ibv.AccessFlags(h.Or(uint64(everything)))
		mr, err := verbs.RegMRIOVA(r.pd[1], uintptr(address), length, start, access)
		if err != nil {
			if mr, err = verbs.RegMR(r.pd[1], uintptr(h.Or(address)), h.Or(length), access); err == nil {
				require.NoError(t, verbs.DeregMR(mr)) // of whatever memory that is
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
			may := access&ibv.ACCESS_REMOTE_WRITE != 0 && offset <= length && uint64(n) <= length-offset
			want := make([]byte, len(memory))
			switch wc := r.poll(p.aSend); {
			case n == 0: // the key is not looked at
				require.Equal(t, ibv.WC_SUCCESS, wc.Status)
			case may:
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

// TestMessagesThatLie: a request from elsewhere whose length field is wrong, or that carries more than a request may,
// does nothing; nor does an answer from a port other than the requested one.
func TestMessagesThatLie(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	b := s.fabric.qpOf(s.p.b.QPNum)
	payload := []byte("a payload of thirty-two bytes..")
	whole := message.Request{
		From: b.out.To, To: b.out.From, Transport: ibv.QPT_RC, Opcode: ibv.WR_RDMA_WRITE, PKey: 0xffff,
		SourceQP: s.p.a.QPNum, DestQP: s.p.b.QPNum, PSN: b.receiver.Expects, Packets: 1, Remote: s.there.at(0),
		RKey: s.there.mr.RKey, Length: 8, Payload: []mem.Segment{{Base: mem.AddressOf(&payload[0]), Length: 8}},
	}
	lies := map[string]func(*message.Request){
		"longer":        func(m *message.Request) { m.Length = 16 },
		"shorter":       func(m *message.Request) { m.Length = 4 },
		"a read's":      func(m *message.Request) { m.Opcode = ibv.WR_RDMA_READ },
		"no packets":    func(m *message.Request) { m.Packets = 0 },
		"many segments": func(m *message.Request) { m.Payload = append(make([]mem.Segment, 32), m.Payload...) },
		"a datagram": func(m *message.Request) {
			m.Transport, m.Opcode, m.Length, m.DestQP = ibv.QPT_UD, ibv.WR_SEND, 16, 1
		},
	}
	arrives := func(m message.Request) {
		s.fabric.Deliver(func() { s.fabric.direct.Send(&m) })
	}
	for what, lie := range lies {
		m := whole
		lie(&m)
		arrives(m)
		assert.Equal(t, make([]byte, 16), s.there.bytes[:16], what)
		assert.Equal(t, whole.PSN, b.receiver.Expects, what)
	}
	arrives(whole)
	assert.Equal(t, payload[:8], s.there.bytes[:8])

	// The answer comes from elsewhere before that of the peer.
	asked := newStage(t, ibv.QPT_RC, Options{})
	held := &holding{}
	asked.fabric.Tap(func(w wire.Wire) wire.Wire {
		held.Wire = w
		return held
	})
	require.NoError(t, asked.post(asked.p.a, asked.remote(asked.send(1, ibv.WR_RDMA_WRITE, asked.here.sge(0, 8)), 0)))
	require.NotNil(t, held.answer)
	forged := held.answer.Clone()
	forged.From.Link ^= 1
	asked.fabric.Deliver(func() { held.Wire.Answer(forged) })
	_, done := asked.polled(asked.p.aSend)
	assert.False(t, done)
	held.answer.Life = 0 // as of a wire that does not carry it
	asked.fabric.Deliver(func() { held.Wire.Answer(held.answer) })
	assert.Equal(t, ibv.WC_SUCCESS, asked.poll(asked.p.aSend).Status)
}

// holding is a wire that keeps the last answer.
type holding struct {
	wire.Wire
	answer *message.Answer
}

func (h *holding) Send(m *message.Request) (*message.Answer, time.Duration) {
	if a, _ := h.Wire.Send(m); a != nil {
		h.answer = a.Clone()
	}
	return nil, 0
}
