// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// extendedQP is an extended queue pair whose functions record their calls.
type extendedQP struct {
	*device
	qp     ibv.QPEx
	calls  []string
	result runtime.Errno // of ibv_wr_complete
}

func newExtended(t *testing.T, qpt ibv.QPType) *extendedQP {
	x := &extendedQP{device: newDevice(t, qpt)}
	x.qp.QPBase = x.device.qp
	slot := func(name string, args int, ids bool) ibv.FuncPtr {
		address, err := space.Slot(func(qp, a, b, c, d, e uint64) (uint64, runtime.Errno) {
			assert.EqualValues(t, uintptr(unsafe.Pointer(&x.qp)), qp)
			s := name
			if ids {
				s = fmt.Sprintf("%d %v: %s", x.qp.WRID, x.qp.WRFlags, name)
			}
			for _, v := range []uint64{a, b, c, d, e}[:args] {
				s += fmt.Sprintf(" %d", v)
			}
			x.calls = append(x.calls, s)
			if name == "complete" {
				return uint64(x.result), 0
			}
			return 0, 0
		})
		require.NoError(t, err)
		return ibv.FuncPtr(address)
	}
	q := &x.qp
	q.WRStart, q.WRComplete = slot("start", 0, false), slot("complete", 0, false)
	q.WRSend, q.WRSendImm, q.WRSendInv = slot("send", 0, true), slot("send_imm", 1, true), slot("send_inv", 1, true)
	q.WRRDMAWrite, q.WRRDMARead, q.WRRDMAWriteImm = slot("write", 2, true), slot("read", 2, true),
		slot("write_imm", 3, true)
	q.WRAtomicCmpSwp, q.WRAtomicFetchAdd, q.WRFlush = slot("cmp_swp", 4, true), slot("fetch_add", 3, true),
		slot("flush", 5, true)
	q.WRLocalInv = slot("local_inv", 1, true)
	q.WRSetSGE, q.WRSetUDAddr, q.WRSetXRCSRQN = slot("sge", 3, false), slot("ud", 3, false), slot("xrc", 1, false)
	bytesOf := func(at uint64, n int) string { return string(unsafe.Slice(ibv.Ptr[byte](at).Deref(), n)) }
	inline, err := space.Slot(func(_, at, n, _, _, _ uint64) (uint64, runtime.Errno) {
		x.calls = append(x.calls, "inline "+bytesOf(at, int(n)))
		return 0, 0
	})
	require.NoError(t, err)
	list, err := space.Slot(func(_, n, at, _, _, _ uint64) (uint64, runtime.Errno) {
		for _, s := range unsafe.Slice(ibv.Ptr[ibv.SGE](at).Deref(), int(n)) {
			x.calls = append(x.calls, fmt.Sprintf("entry %d %d %d", s.Addr, s.Length, s.LKey))
		}
		return 0, 0
	})
	require.NoError(t, err)
	pieces, err := space.Slot(func(_, n, at, _, _, _ uint64) (uint64, runtime.Errno) {
		for _, s := range unsafe.Slice(ibv.Ptr[ibv.DataBuf](at).Deref(), int(n)) {
			x.calls = append(x.calls, "piece "+bytesOf(uint64(s.Addr), int(s.Length)))
		}
		return 0, 0
	})
	require.NoError(t, err)
	q.WRSetInlineData, q.WRSetSGEList, q.WRSetInlineDataList = ibv.FuncPtr(inline), ibv.FuncPtr(list),
		ibv.FuncPtr(pieces)
	return x
}

func (x *extendedQP) queue(t *testing.T, o QueueOptions) *SendQueue {
	q, err := NewSendQueue(&x.qp.QPBase, o)
	require.NoError(t, err)
	return q
}

func TestWRProgram(t *testing.T) {
	x := newExtended(t, ibv.QPT_RC)
	q := x.queue(t, options(8, 2, 4))
	p := NewWRProgram(&x.qp)
	w := p.Write(1, 100, 7).SGE(200, 64, 8)
	data := []byte("data")
	p.Send(2).Flags(ibv.SEND_SOLICITED).Inline(data)
	copy(data, "else")
	p.CompareSwap(3, 304, 9, 10, 11).Flags(ibv.SEND_FENCE).Add(ibv.SGE{Addr: 1, Length: 8, LKey: 2})
	p.Flush(4, 400, 5, 6, 1, 2)
	p.SendInv(5, 12).Signaled().Inline([]byte("ab")).Inline([]byte("c"))
	p.Read(6, 500, 8).SGE(1, 2, 3).Add(ibv.SGE{Addr: 4, Length: 5, LKey: 6})
	last := p.Send(7).Signaled() // an empty message, as in a batch
	assert.Equal(t, 6, last.Index())
	require.NoError(t, p.Err())
	require.NoError(t, q.PostProgram(p))
	assert.Equal(t, []string{"start",
		"1 0: write 7 100", "sge 8 200 64",
		"2 IBV_SEND_SOLICITED: send", "inline data",
		"3 IBV_SEND_FENCE: cmp_swp 9 304 10 11", "sge 2 1 8",
		"4 0: flush 5 400 6 1 2",
		"5 IBV_SEND_SIGNALED: send_inv 12", "piece ab", "piece c",
		"6 0: read 8 500", "entry 1 2 3", "entry 4 5 6",
		"7 IBV_SEND_SIGNALED: send",
		"complete"}, x.calls)
	assert.Equal(t, 1, q.Free())
	err := q.PostProgram(p)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorContains(t, err, "a list of 7 does not fit: 1 of 8 slots are free")
	q.Retire([]ibv.WC{success(7)})

	x.calls = nil
	w.Renew(21, ibv.SEND_FENCE, 101, 17)
	w.SetSGE(201, 65, 18)
	x.result = syscall.ENOMEM
	err = q.PostProgram(p)
	assert.EqualError(t, err, "ibv_wr_complete: QP 0x12 (RC): WR 0 (id 0x15): none of the requests was posted: "+
		"cannot allocate memory")
	assert.Equal(t, []string{"21 IBV_SEND_FENCE: write 17 101", "sge 18 201 65"}, x.calls[1:3])
	assert.Equal(t, 8, q.Free(), "the slots are free again")

	p.Send(9)
	assert.ErrorContains(t, q.PostProgram(p), "cannot grow")
	p.Reset()
	assert.Zero(t, p.Len())
	x.calls = nil
	assert.ErrorContains(t, q.PostProgram(p), "the program is empty")
	assert.Empty(t, x.calls)
}

// TestWideWRProgram: 64-bit numbers are not truncated on 32-bit machines, neither when appended nor when patched.
func TestWideWRProgram(t *testing.T) {
	x := newExtended(t, ibv.QPT_RC)
	q := x.queue(t, options(8, 1, 0))
	p := NewWRProgram(&x.qp)
	const high = 1 << 32
	w := p.CompareSwap(high+1, high+2*8, 3, high+4, high+5).SGE(high+6, 8, 7)
	p.Flush(8, 9, 10, high+11, 1, 2).Signaled()
	require.NoError(t, q.PostProgram(p))
	assert.Equal(t, []string{"start", "4294967297 0: cmp_swp 3 4294967312 4294967300 4294967301", "sge 7 4294967302 8",
		"8 IBV_SEND_SIGNALED: flush 10 9 4294967307 1 2", "complete"}, x.calls)
	q.Retire([]ibv.WC{success(8)})
	x.calls = nil
	w.SetID(2 * high)
	w.SetRemote(3*high, 4)
	w.SetSGE(5*high, 8, 6)
	require.NoError(t, q.PostProgram(p))
	assert.Equal(t, []string{"8589934592 0: cmp_swp 4 12884901888 4294967300 4294967301", "sge 6 21474836480 8"},
		x.calls[1:3])
}

func TestWRProgramOfDatagrams(t *testing.T) {
	x := newExtended(t, ibv.QPT_UD)
	o := options(8, 1, 0)
	o.Unchecked = true
	p := NewWRProgram(&x.qp)
	r := p.SendImm(1, 5).UD(2, 3, 4).SGE(6, 7, 8)
	r.SetSGE(16, 17, 18)
	require.NoError(t, x.queue(t, o).PostProgram(p))
	assert.Equal(t, []string{"start", "1 0: send_imm 5", "ud 2 3 4", "sge 18 16 17", "complete"}, x.calls)
}

func TestWRProgramRules(t *testing.T) {
	for _, c := range []struct {
		build func(*WRProgram)
		want  string
	}{
		{func(p *WRProgram) { p.Write(1, 1, 2).SGE(1, 2, 3); p.LocalInv(2, 2).Flags(ibv.SEND_SOLICITED) },
			"ibv_wr_post: QP 0x12 (UC): WR 1 (id 0x2): IBV_SEND_SOLICITED is not valid " +
				"with ibv_wr_local_inv on UC: invalid argument"},
		{func(p *WRProgram) { p.AtomicWrite(1, 1, 2, [8]byte{}) }, "IBV_WR_ATOMIC_WRITE is not valid on UC"},
		{func(p *WRProgram) { p.BindMW(1, 1, 2, ibv.MWBindInfo{}) },
			"ibv_wr_bind_mw: the queue pair lacks the function: it was created without it"},
		{func(p *WRProgram) { a := p.Send(1).SGE(1, 2, 3); p.Send(2); a.SGE(4, 5, 6) },
			"must be set before the next request"},
	} {
		x := newExtended(t, ibv.QPT_UC)
		p := NewWRProgram(&x.qp)
		c.build(p)
		assert.ErrorContains(t, x.queue(t, options(8, 1, 0)).PostProgram(p), c.want)
		assert.Empty(t, x.calls, "rejected before the call")
	}
	x := newExtended(t, ibv.QPT_RC)
	p := NewWRProgram(&x.qp)
	p.Send(1).SGE(1, 2, 3)
	assert.ErrorContains(t, sendQueue(t, newDevice(t, ibv.QPT_RC), options(8, 1, 0)).PostProgram(p),
		"the program is of QP")
	x.qp.QPBase.State = ibv.QPS_INIT
	assert.ErrorContains(t, x.queue(t, options(8, 1, 0)).PostProgram(p), "accepts no requests in INIT")
}

// extendedCQ is an extended completion queue that returns the completions that a test sets.
type extendedCQ struct {
	cq      ibv.CQEx
	wcs     []ibv.WC
	calls   []string
	failure runtime.Errno // returned after the last of wcs
}

func newExtendedCQ(t *testing.T) *extendedCQ {
	x := &extendedCQ{failure: syscall.ENOENT}
	slot := func(f func(*ibv.WC) uintptr, name string) ibv.FuncPtr {
		address, err := space.Slot(func(cq, a, _, _, _, _ uint64) (uint64, runtime.Errno) {
			x.calls = append(x.calls, name)
			if f == nil {
				return 0, 0
			}
			return uint64(f(&x.wcs[0])), 0
		})
		require.NoError(t, err)
		return ibv.FuncPtr(address)
	}
	poll := func(name string, take int) ibv.FuncPtr {
		address, err := space.Slot(func(cq, a, _, _, _, _ uint64) (uint64, runtime.Errno) {
			x.calls = append(x.calls, name)
			if len(x.wcs) <= take {
				return uint64(x.failure), 0
			}
			x.wcs = x.wcs[take:]
			x.cq.WRID, x.cq.Status = x.wcs[0].WRID, x.wcs[0].Status
			return 0, 0
		})
		require.NoError(t, err)
		return ibv.FuncPtr(address)
	}
	x.cq.StartPoll, x.cq.NextPoll, x.cq.EndPoll = poll("start", 0), poll("next", 1), slot(nil, "end")
	x.cq.ReadOpcode = slot(func(w *ibv.WC) uintptr { return uintptr(w.Opcode) }, "opcode")
	x.cq.ReadVendorErr = slot(func(w *ibv.WC) uintptr { return uintptr(w.VendorErr) }, "vendor_err")
	x.cq.ReadWCFlags = slot(func(w *ibv.WC) uintptr { return uintptr(w.WCFlags) }, "wc_flags")
	x.cq.ReadByteLen = slot(func(w *ibv.WC) uintptr { return uintptr(w.ByteLen) }, "byte_len")
	x.cq.ReadQPNum = slot(func(w *ibv.WC) uintptr { return uintptr(w.QPNum) }, "qp_num")
	x.cq.ReadSL = slot(func(w *ibv.WC) uintptr { return uintptr(w.SL) | 0xff00 }, "sl")
	return x
}

func TestPollProgram(t *testing.T) {
	x := newExtendedCQ(t)
	p, err := NewPollProgram(&x.cq, 2, ibv.WC_EX_WITH_BYTE_LEN|ibv.WC_EX_WITH_QP_NUM|ibv.WC_EX_WITH_SL, QueueOptions{})
	require.NoError(t, err)
	found, err := p.Poll()
	require.NoError(t, err)
	assert.Empty(t, found)
	assert.Equal(t, []string{"start"}, x.calls, "ibv_end_poll is not called for an empty queue")

	x.calls = nil
	x.wcs = []ibv.WC{
		{WRID: 1, Opcode: ibv.WC_RECV, WCFlags: ibv.WC_GRH, ByteLen: 64, QPNum: 0x12, SL: 3},
		{WRID: 2, Status: ibv.WC_WR_FLUSH_ERR, VendorErr: 9, Opcode: 77, ByteLen: 77, QPNum: 0x12},
		{WRID: 3},
	}
	found, err = p.Poll()
	require.NoError(t, err)
	assert.Equal(t, []Completion{
		{WRID: 1, Opcode: ibv.WC_RECV, Flags: ibv.WC_GRH, ByteLen: 64, QPNum: 0x12, SL: 3},
		{WRID: 2, Status: ibv.WC_WR_FLUSH_ERR, VendorErr: 9, QPNum: 0x12},
	}, found)
	assert.Equal(t, []string{"start", "qp_num", "opcode", "wc_flags", "byte_len", "sl", "next", "qp_num",
		"vendor_err", "end"}, x.calls)

	x.wcs = []ibv.WC{{WRID: 3, Status: ibv.WC_RETRY_EXC_ERR}}
	x.calls, x.failure = nil, syscall.EIO
	found, err = p.Poll()
	assert.ErrorIs(t, err, syscall.EIO)
	require.Len(t, found, 1)
	assert.Equal(t, Completion{WRID: 3, Status: ibv.WC_RETRY_EXC_ERR}, found[0],
		"values of earlier completions are cleared")
	assert.Equal(t, "end", x.calls[len(x.calls)-1])

	send := sendQueue(t, newDevice(t, ibv.QPT_RC), options(4, 1, 0))
	_, err = send.Post(writes(sendBatch(t, 4, 1, 0), 0, 4))
	require.NoError(t, err)
	x.wcs = []ibv.WC{success(3)}
	_, err = p.Poll()
	require.Error(t, err)
	p.Retire(send, nil)
	assert.Equal(t, 4, send.Free())
	x.failure, x.wcs, x.calls = syscall.ENOENT, nil, make([]string, 0, 20)
	assert.Zero(t, testing.AllocsPerRun(10, func() { p.Poll() }))
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Poll()
	assert.EqualError(t, err, "program: closed")

	_, err = NewPollProgram(&x.cq, 1, ibv.WC_EX_WITH_CVLAN, QueueOptions{})
	assert.EqualError(t, err, "ibv_wc_read_cvlan: the completion queue lacks the function: it was created without it")
	_, err = NewPollProgram(&x.cq, 0, 0, QueueOptions{})
	assert.Error(t, err)
}

// The limits of a checked queue apply to programs when they are posted.
func TestProgramCheckedByQueue(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	x := &ibv.QPEx{QPBase: d.qp}
	calls := 0
	for _, slot := range []*ibv.FuncPtr{&x.WRStart, &x.WRComplete, &x.WRRDMAWrite, &x.WRSetSGEList, &x.WRSetInlineData,
		&x.WRSetInlineDataList, &x.WRSetSGE, &x.WRAtomicFetchAdd, &x.WRAtomicCmpSwp, &x.WRAtomicWrite, &x.WRBindMW,
		&x.WRSetUDAddr} {
		address, err := space.Slot(func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) { calls++; return 0, 0 })
		require.NoError(t, err)
		*slot = ibv.FuncPtr(address)
	}
	o := options(16, 2, 8)
	o.MaxMessage = 100
	q, err := NewSendQueue(&x.QPBase, o)
	require.NoError(t, err)
	p := NewWRProgram(x)
	for want, add := range map[string]func(WRRequest){
		"3 entries exceed the queue pair's limit of 2": func(r WRRequest) {
			r.SGE(0, 0, 0).SGE(0, 0, 0).SGE(0, 0, 0)
		},
		"9 inline bytes exceed the queue pair's limit of 8": func(r WRRequest) { r.Inline(make([]byte, 9)) },
		"10 inline bytes exceed the queue pair's limit of 8": func(r WRRequest) {
			r.Inline(make([]byte, 5)).Inline(make([]byte, 5))
		},
		"a message of 101 bytes exceeds the limit of 100": func(r WRRequest) { r.SGE(1, 101, 1) },
		"a message of 102 bytes exceeds the limit of 100": func(r WRRequest) {
			r.SGE(1, 51, 1).SGE(1, 51, 1)
		},
		"a message of 103 bytes exceeds the limit of 100": func(r WRRequest) { r.SGE(1, 1, 1).SetSGE(1, 103, 1) },
	} {
		p.Reset()
		p.Write(1, 1, 1).Signaled().SGE(1, 100, 1)
		add(p.Write(0x2a, 1, 1).Signaled())
		assert.ErrorContains(t, q.PostProgram(p), "WR 1 (id 0x2a): "+want)
	}
	for want, add := range map[string]func(){
		"a datagram needs an address handle": func() { p.Write(1, 8, 1).UD(0, 1, 1) },
		"binding needs a memory window and a memory region": func() {
			p.BindMW(1, 0, 1,
				ibv.MWBindInfo{MR: 8, Length: 8})
		},
		"WR 0: binding needs a memory": func() { p.BindMW(1, 8, 1, ibv.MWBindInfo{Length: 8}) },
	} {
		p.Reset()
		add()
		assert.ErrorContains(t, p.Err(), want)
		assert.ErrorIs(t, q.PostProgram(p), syscall.EINVAL)
	}
	for want, add := range map[string]func() WRRequest{
		"of 4 bytes; it must have 8": func() WRRequest {
			return p.FetchAdd(0x2a, 16, 1, 1).SGE(1, 4, 1)
		},
		"of 16 bytes; it must have 8": func() WRRequest {
			return p.CompareSwap(0x2a, 16, 1, 1, 1).SGE(1, 16, 1)
		},
		"at remote address 0xc, which is not a multiple of 8": func() WRRequest {
			return p.FetchAdd(0x2a, 12, 1, 1).SGE(1, 8, 1)
		},
		"at remote address 0xd, which is not a multiple of 8": func() WRRequest {
			return p.AtomicWrite(0x2a, 13, 1, [8]byte{})
		},
		"at remote address 0xe, which is not a multiple of 8": func() WRRequest {
			r := p.FetchAdd(0x2a, 16, 1, 1).SGE(1, 8, 1)
			r.SetRemote(14, 1)
			return r
		},
	} {
		p.Reset()
		p.Write(1, 1, 1).Signaled().SGE(1, 100, 1)
		add()
		assert.ErrorContains(t, q.PostProgram(p), "WR 1 (id 0x2a): an atomic operation "+want)
	}
	p.Reset()
	p.Write(0x2a, 1, 1).Flags(1<<20).SGE(1, 100, 1)
	assert.ErrorContains(t, q.PostProgram(p), "unknown send flag 0x100000")
	assert.Zero(t, calls, "rejected before the call")
	assert.Equal(t, 16, q.Free())
	p.Reset()
	p.Write(1, 1, 1).Signaled().Inline(make([]byte, 8))
	p.Write(2, 1, 1).Signaled().SGE(1, 50, 1).SGE(1, 50, 1)
	assert.NoError(t, q.PostProgram(p), "requests at the limits are valid")

	q, err = NewSendQueue(&x.QPBase, options(16, 2, 8))
	require.NoError(t, err)
	p.Reset()
	p.Write(1, 1, 1).Signaled().SGE(1, 1<<31, 1).SGE(1, 1, 1)
	assert.ErrorContains(t, q.PostProgram(p), "a message of 2147483649 bytes exceeds the limit of 2147483648")

	x.QPBase.QPType = ibv.QPT_UD // a TSO request sends many messages
	x.WRSendTSO, x.WRSend, x.WRSetUDAddr = x.WRRDMAWrite, x.WRRDMAWrite, x.WRRDMAWrite
	q, err = NewSendQueue(&x.QPBase, o)
	require.NoError(t, err)
	p.Reset()
	p.TSO(1, nil, 50).Signaled().UD(1, 2, 3).SGE(1, 1000, 1)
	assert.NoError(t, q.PostProgram(p))
	p.Reset()
	p.Send(1).Signaled().UD(1, 2, 3).SGE(1, 1000, 1)
	assert.ErrorContains(t, q.PostProgram(p), "a message of 1000 bytes exceeds the limit of 100")
}

// A post of a nil or zero program fails and leaves the queue usable.
func TestZeroPrograms(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(4, 1, 0), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			q := sendQueue(t, d, o)
			q.mu.Lock()
			q.plain = true // as for most adapters
			q.mu.Unlock()
			assert.EqualError(t, q.PostProgram(nil),
				"ibv_wr_complete: QP 0x12 (RC): the program is nil: invalid argument")
			assert.EqualError(t, q.PostProgram(new(WRProgram)), "ibv_wr_complete: QP 0x12 (RC): the program is a "+
				"zero value; create it with its constructor: invalid argument")
			posted := make(chan struct{})
			go func() { defer close(posted); q.refused() }()
			select {
			case <-posted:
			case <-time.After(10 * time.Second):
				t.Error("the queue is locked")
			}
		})
	}
}
