// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// code returns the error number of a call, which libefa sometimes returns negated.
func code(err error) int {
	var errno syscall.Errno
	errors.As(err, &errno)
	return max(int(int32(errno)), -int(int32(errno)))
}

// poster posts random requests to a queue pair. Two posters with the same seed make the same calls.
type poster struct {
	t      *testing.T
	u      *user
	r      *rand.Rand
	qp     *ibv.QP
	ah     *ibv.AH
	inline uint32
	ud     bool
	data   []byte
	wrs    []ibv.SendWR
	recvs  []ibv.RecvWR
	sges   []ibv.SGE
	id     uint64
	text   string // results of the calls
}

const postersDepth, postersSGEs = 16, 2

func (p *poster) print(a ...any) { p.text += fmt.Sprintln(a...) }

// list returns a list of entries, which is occasionally too long.
func (p *poster) list(at int, most uint32) []ibv.SGE {
	n := 1 + p.r.IntN(postersSGEs)
	if p.r.IntN(20) == 0 {
		n = postersSGEs + 1
	}
	list := p.sges[at*4:][:n]
	for i := range list {
		offset := p.r.IntN(256)
		list[i] = ibv.SGE{Addr: uint64(uintptr(unsafe.Pointer(&p.data[offset]))), Length: p.r.Uint32N(most), LKey: p.r.Uint32()}
	}
	return list
}

func (p *poster) flags() ibv.SendFlags {
	if p.r.IntN(20) == 0 {
		return 0
	}
	return ibv.SEND_SIGNALED
}

func (p *poster) send() {
	n := 1 + p.r.IntN(3)
	for i := range n {
		p.id++
		wr := &p.wrs[i]
		*wr = ibv.SendWR{WRID: p.id * 0x123456789abcdef, Opcode: ibv.WR_SEND, SendFlags: p.flags()}
		switch p.r.IntN(20) {
		case 0:
			wr.Opcode = ibv.WR_RDMA_WRITE
		case 1, 2, 3, 4, 5, 6, 7:
			wr.Opcode = ibv.WR_SEND_WITH_IMM
			*wr.ImmData() = ibv.ToBE32(p.r.Uint32())
		}
		most := uint32(200)
		if p.r.IntN(2) == 0 {
			wr.SendFlags |= ibv.SEND_INLINE
			most = p.inline/2 + 2
		}
		list := p.list(i, most)
		wr.SGList, wr.NumSGE = ibv.PtrTo(&list[0]), int32(len(list))
		if p.r.IntN(20) == 0 {
			wr.NumSGE = 0
		}
		if i+1 < n {
			wr.Next = ibv.PtrTo(&p.wrs[i+1])
		}
		*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(p.ah), RemoteQPN: p.r.Uint32N(1 << 16), RemoteQKey: p.r.Uint32()}
	}
	var bad ibv.Ptr[ibv.SendWR]
	err := verbs.PostSend(p.qp, &p.wrs[0], &bad)
	at := -1
	for i := range n {
		if err != nil && bad == ibv.PtrTo(&p.wrs[i]) {
			at = i
		}
	}
	p.print("sends", code(err), at)
}

func (p *poster) recv() {
	n := 1 + p.r.IntN(3)
	for i := range n {
		p.id++
		list := p.list(i, 1<<17)
		p.recvs[i] = ibv.RecvWR{WRID: p.id, SGList: ibv.PtrTo(&list[0]), NumSGE: int32(len(list))}
		if i+1 < n {
			p.recvs[i].Next = ibv.PtrTo(&p.recvs[i+1])
		}
	}
	var bad ibv.Ptr[ibv.RecvWR]
	err := verbs.PostRecv(p.qp, &p.recvs[0], &bad)
	at := -1
	for i := range n {
		if err != nil && bad == ibv.PtrTo(&p.recvs[i]) {
			at = i
		}
	}
	p.print("receives", code(err), at)
}

// build builds requests with ibv_wr_*.
func (p *poster) build() {
	x, err := verbs.QPToQPEx(p.qp)
	require.NoError(p.t, err)
	must := func(err error) { require.NoError(p.t, err) }
	must(verbs.WRStart(x))
	for range p.r.IntN(4) {
		p.id++
		x.WRID, x.WRFlags = p.id*0x123456789abcdef, p.flags()
		key, address, imm := p.r.Uint32(), p.r.Uint64(), ibv.ToBE32(p.r.Uint32())
		op := p.r.IntN(5)
		if p.ud {
			op %= 2
		}
		switch op {
		case 0:
			must(verbs.WRSend(x))
		case 1:
			must(verbs.WRSendImm(x, imm))
		case 2:
			must(verbs.WRRDMARead(x, key, address))
		case 3:
			must(verbs.WRRDMAWrite(x, key, address))
		case 4:
			must(verbs.WRRDMAWriteImm(x, key, address, imm))
		}
		list := p.list(0, p.inline/2+2)
		how := p.r.IntN(4)
		if op > 1 && len(list) > 1 {
			list = list[:1]
		}
		switch how {
		case 0:
			must(verbs.WRSetSGE(x, list[0].LKey, list[0].Addr, list[0].Length))
		case 1:
			must(verbs.WRSetSGEList(x, uint64(len(list)), &list[0]))
		case 2:
			must(verbs.WRSetInlineData(x, uintptr(list[0].Addr), uint64(list[0].Length)))
		case 3:
			buffers := make([]ibv.DataBuf, len(list))
			for i, s := range list {
				buffers[i] = ibv.DataBuf{Addr: uintptr(s.Addr), Length: uint64(s.Length)}
			}
			must(verbs.WRSetInlineDataList(x, uint64(len(buffers)), &buffers[0]))
		}
		must(verbs.WRSetUDAddr(x, p.ah, p.r.Uint32N(1<<16), p.r.Uint32()))
	}
	if p.r.IntN(8) == 0 {
		must(verbs.WRAbort(x))
		p.print("abort")
		return
	}
	p.print("complete", code(verbs.WRComplete(x)))
}

func (p *poster) to(state ibv.QPState, mask ibv.QPAttrMask) {
	p.t.Helper()
	require.NoError(p.t, verbs.ModifyQP(p.qp, &ibv.QPAttr{QPState: state, PortNum: 1, QKey: key}, ibv.QP_STATE|mask))
}

func (p *poster) ready() {
	p.to(ibv.QPS_INIT, ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_QKEY)
	p.to(ibv.QPS_RTR, 0)
	p.to(ibv.QPS_RTS, ibv.QP_SQ_PSN)
}

// queues returns the bytes of the queues and the doorbells.
func (p *poster) queues() string {
	s, r := p.u.efaQueues(p.qp)
	bytes := func(a efadv.WQAttr) []byte { return unsafe.Slice(a.Buffer.Deref(), a.EntrySize*a.NumEntries) }
	return fmt.Sprintf("%x %x\n%x %x", *s.Doorbell.Deref(), bytes(s), *r.Doorbell.Deref(), bytes(r))
}

// step makes a random call.
func (p *poster) step(extended bool) {
	switch n := p.r.IntN(20); {
	case n < 5:
		p.recv()
	case n < 12 && extended:
		p.build()
	case n < 18:
		p.send()
	case n == 18:
		p.to(ibv.QPS_RESET, 0)
		if p.r.IntN(4) == 0 {
			p.send()
			p.recv()
		}
		p.ready()
	default:
		p.to(ibv.QPS_ERR, 0)
		p.send()
		p.recv()
		p.to(ibv.QPS_RESET, 0)
		p.ready()
	}
}

// TestNativeEFAPosts makes random posting calls, valid and invalid, and compares results, queues and doorbells.
func TestNativeEFAPosts(t *testing.T) {
	users, inside := efaUsers(t, true)
	if !inside {
		return
	}
	data := make([]byte, 1<<17)
	r := rand.New(rand.NewPCG(9, 10))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	var ahs [2]*ibv.AH
	for i, u := range users {
		var err error
		ahs[i], err = verbs.CreateAH(u.pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, verbs.DestroyAH(ahs[i])) })
	}
	for round := range 300 {
		kind := []ibv.QPType{ibv.QPT_UD, ibv.QPT_DRIVER, ibv.QPT_DRIVER}[round%3]
		inline := []uint32{0, 32, 80}[r.IntN(3)]
		cap := ibv.QPCap{MaxSendWR: postersDepth, MaxRecvWR: postersDepth, MaxSendSGE: postersSGEs,
			MaxRecvSGE: postersSGEs, MaxInlineData: inline}
		flags := efadv.QPFlags(0)
		if kind == ibv.QPT_DRIVER && r.IntN(2) == 0 {
			flags = efadv.QP_FLAGS_INLINE_WRITE
		}
		var posters [2]*poster
		seed, everyOne := r.Uint64(), int32(r.IntN(2))
		for i, u := range users {
			qp, _, err := u.efaSignaledQP(kind, cap, efadv.QPInitAttr{Flags: flags}, everyOne)
			require.NoError(t, err)
			posters[i] = &poster{t: t, u: u, r: rand.New(rand.NewPCG(seed, 1)), qp: qp, ah: ahs[i], inline: inline,
				ud: kind == ibv.QPT_UD, data: data, wrs: make([]ibv.SendWR, 3), recvs: make([]ibv.RecvWR, 3),
				sges: make([]ibv.SGE, 12)}
			posters[i].ready()
		}
		for step := range 30 {
			var texts [2]string
			for i, p := range posters {
				p.text = ""
				p.step(kind == ibv.QPT_DRIVER)
				texts[i] = p.text + maskedAH(p)
			}
			require.Equal(t, texts[0], texts[1], "round %d, step %d: %v, %d bytes, "+
				"%v", round, step, kind, inline, flags)
		}
		for _, p := range posters {
			require.NoError(t, verbs.DestroyQP(p.qp))
		}
	}
}

// maskedAH returns the queues of a poster without the number of its address handle, which differs between libefa and
// package native.
func maskedAH(p *poster) string {
	s, _ := p.u.efaQueues(p.qp)
	const at = 12
	b := unsafe.Slice(s.Buffer.Deref(), s.EntrySize*s.NumEntries)
	var saved []uint16
	number := func(i uint32) *uint16 { return (*uint16)(unsafe.Pointer(&b[i*s.EntrySize+at])) }
	for i := range s.NumEntries {
		saved = append(saved, *number(i))
		*number(i) = min(*number(i), 1)
	}
	text := p.queues()
	for i := range s.NumEntries {
		*number(i) = saved[i]
	}
	return text
}
