// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// operation describes an operation to measure.
type operation struct {
	name, on string
	kind     ibv.QPType
	bytes    int
	receives bool        // the other peer posts receives
	shared   bool        // the receives are in a shared receive queue
	srq      ibv.SRQType // type of the shared receive queue
	// rendezvous: the peer's device fetches the data, has two completions, and sends a message back
	fetches bool
	// requests of a round, or 0 for batch; a window allows one bind at a time
	count   int
	builds  ibv.QPCreateSendOpsFlags // nonzero if the requests are posted with a WRProgram
	access  ibv.AccessFlags          // access flags in addition to the defaults
	request func(s *stage, i int) rdma.SendRequest
	build   func(s *stage, i int, flags ibv.SendFlags)
	prepare func(s *stage, seed int) // replaces the default patterns in the memory of the posting peer
	check   func(s *stage) error
}

// requests returns the number of requests of a round.
func (o *operation) requests() int {
	if o.count != 0 {
		return o.count
	}
	return batch
}

var operations = []operation{
	{name: "SEND", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, check: checkArrived, request: send},
	{name: "SEND inline", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, check: checkArrived,
		request: func(s *stage, i int) rdma.SendRequest {
			return s.sends.Send(uint64(i)).Inline(s.a.bytes(i, s.op.bytes))
		}},
	{name: "SEND_WITH_IMM", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, check: checkArrived,
		request: func(s *stage, i int) rdma.SendRequest {
			return s.sends.SendImm(uint64(i), ibv.ToBE32(uint32(i))).Add(s.local(i))
		}},
	{name: "SEND to shared receives", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, shared: true,
		check: checkArrived, request: send},
	{name: "SEND with a tag", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, shared: true, srq: ibv.SRQT_TM,
		check: checkMatched(tagHeader), prepare: tagged(ibv.TMH_EAGER), request: func(s *stage, i int) rdma.SendRequest {
			return s.sends.Send(uint64(i)).Add(s.a.mr.SGE(uint64(i*stride), tagHeader+uint32(s.op.bytes)))
		}},
	{name: "rendezvous with a tag", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, shared: true,
		srq: ibv.SRQT_TM, fetches: true, check: checkMatched(announces), prepare: tagged(ibv.TMH_RNDV),
		request: func(s *stage, i int) rdma.SendRequest {
			return s.sends.Send(uint64(i)).Add(s.a.mr.SGE(uint64(i*stride), announces))
		}},
	{name: "RDMA_WRITE", on: "RC", kind: ibv.QPT_RC, bytes: 64, check: checkArrived, request: write64},
	{name: "RDMA_WRITE_WITH_IMM", on: "RC", kind: ibv.QPT_RC, bytes: 64, receives: true, check: checkArrived,
		request: func(s *stage, i int) rdma.SendRequest {
			at, rkey := s.remote(i)
			return s.sends.WriteImm(uint64(i), at, rkey, ibv.ToBE32(uint32(i))).Add(s.local(i))
		}},
	{name: "RDMA_READ", on: "RC", kind: ibv.QPT_RC, bytes: 64, check: checkArrived,
		request: func(s *stage, i int) rdma.SendRequest {
			at, rkey := s.remote(i)
			return s.sends.Read(uint64(i), at, rkey).Add(s.local(i))
		}, prepare: func(s *stage, seed int) { pattern(&s.b, seed); clear(s.a.mr.Bytes()) }},
	{name: "ATOMIC_FETCH_AND_ADD", on: "RC", kind: ibv.QPT_RC, bytes: 8, check: checkFetched, prepare: zero,
		request: func(s *stage, i int) rdma.SendRequest {
			at, rkey := s.remote(0)
			return s.sends.FetchAdd(uint64(i), at, rkey, 1).Add(s.local(i))
		}},
	{name: "ATOMIC_CMP_AND_SWP", on: "RC", kind: ibv.QPT_RC, bytes: 8, check: checkFetched, prepare: zero,
		request: func(s *stage, i int) rdma.SendRequest {
			at, rkey := s.remote(0)
			return s.sends.CompareSwap(uint64(i), at, rkey, uint64(i), uint64(i+1)%batch).Add(s.local(i))
		}},
	{name: "ATOMIC_WRITE", on: "RC", kind: ibv.QPT_RC, bytes: 8, builds: ibv.QP_EX_WITH_ATOMIC_WRITE, check: checkArrived,
		build: func(s *stage, i int, flags ibv.SendFlags) {
			at, rkey := s.remote(i)
			s.built.AtomicWrite(uint64(i), at, rkey, [8]byte(s.a.bytes(i, 8))).Flags(flags)
		}},
	{name: "FLUSH", on: "RC", kind: ibv.QPT_RC, bytes: 64, builds: ibv.QP_EX_WITH_FLUSH,
		access: ibv.ACCESS_FLUSH_GLOBAL, check: noCheck, build: func(s *stage, i int, flags ibv.SendFlags) {
			at, rkey := s.remote(i)
			s.built.Flush(uint64(i), at, rkey, uint64(s.op.bytes), uint8(ibv.FLUSH_GLOBAL),
				uint8(ibv.FLUSH_RANGE)).Flags(flags)
		}},
	{name: "BIND_MW and LOCAL_INV", on: "RC", kind: ibv.QPT_RC, count: 2, check: noCheck,
		request: func(s *stage, i int) rdma.SendRequest {
			if i == 1 {
				return s.sends.LocalInv(1, s.window.NextRKey())
			}
			return bind(s, s.sends, &s.a)
		}},
	{name: "SEND_WITH_INV", on: "RC", kind: ibv.QPT_RC, bytes: 64, count: 1, receives: true, check: checkArrived,
		request: func(s *stage, _ int) rdma.SendRequest {
			bind(s, s.binds, &s.b).Signaled() // the message invalidates this bind
			return s.sends.SendInv(0, s.window.NextRKey()).Add(s.local(0))
		}},
	{name: "SEND", on: "XRC", kind: ibv.QPT_XRC_SEND, bytes: 64, receives: true, shared: true, srq: ibv.SRQT_XRC,
		check: checkArrived, request: func(s *stage, i int) rdma.SendRequest {
			return send(s, i).XRC(s.srqn)
		}},
	{name: "RDMA_WRITE", on: "XRC", kind: ibv.QPT_XRC_SEND, bytes: 64, shared: true, srq: ibv.SRQT_XRC, check: checkArrived,
		request: write64},
	{name: "SEND", on: "UC", kind: ibv.QPT_UC, bytes: 64, receives: true, check: checkArrived, request: send},
	{name: "RDMA_WRITE", on: "UC", kind: ibv.QPT_UC, bytes: 64, check: checkArrived, request: write64},
	{name: "SEND", on: "UD", kind: ibv.QPT_UD, bytes: 64, receives: true, check: checkArrived,
		request: func(s *stage, i int) rdma.SendRequest {
			return send(s, i).UD(s.ah.Ptr(), s.b.qp.Num(), rdma.DefaultQKey)
		}},
}

func send(s *stage, i int) rdma.SendRequest { return s.sends.Send(uint64(i)).Add(s.local(i)) }

func write64(s *stage, i int) rdma.SendRequest {
	at, rkey := s.remote(i)
	return s.sends.Write(uint64(i), at, rkey).Add(s.local(i))
}

// bind prepares a bind of the window to a peer's memory.
func bind(s *stage, b *rdma.SendBatch, p *peer) rdma.SendRequest {
	return b.BindMW(0, s.window.Ptr(), s.window.NextRKey(), ibv.MWBindInfo{
		MR: p.mr.Ptr(), Addr: p.mr.Address(), Length: stride, MWAccessFlags: ibv.ACCESS_REMOTE_READ,
	})
}

// pattern fills a peer's memory.
func pattern(p *peer, seed int) {
	b := p.mr.Bytes()
	for i := range b {
		b[i] = byte(seed + 7*i + i>>8)
	}
}

func zero(s *stage, _ int) {
	clear(s.a.mr.Bytes())
	clear(s.b.mr.Bytes())
}

// checkArrived checks that both peers have the same bytes, and that these are the expected pattern.
func checkArrived(s *stage) error {
	for i := range s.op.requests() {
		got := s.b.bytes(i, stride)
		if s.op.kind == ibv.QPT_UD {
			got = got[rdma.GRHBytes:]
		}
		want := s.a.bytes(i, s.op.bytes)
		if !bytes.Equal(got[:s.op.bytes], want) || bytes.Count(want, []byte{0}) > 2 {
			return fmt.Errorf("request %d: got %x, want %x", i, got[:s.op.bytes], want)
		}
	}
	return nil
}

// checkFetched checks that each atomic operation has returned the result of the previous one.
func checkFetched(s *stage) error {
	for i := range batch {
		if got := binary.NativeEndian.Uint64(s.a.bytes(i, 8)); got != uint64(i) {
			return fmt.Errorf("atomic %d fetched %d", i, got)
		}
	}
	left := uint64(batch)
	if s.op.name == "ATOMIC_CMP_AND_SWP" {
		left = 0
	}
	if got := binary.NativeEndian.Uint64(s.b.bytes(0, 8)); got != left {
		return fmt.Errorf("the memory has %d after all atomics, want %d", got, left)
	}
	return nil
}

// noCheck is the check of operations that transfer no data.
func noCheck(*stage) error { return nil }
