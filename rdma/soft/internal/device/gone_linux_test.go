// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	tests "github.com/goverbs/goverbs/rdma/soft/internal/testbed"
)

// unmapped returns a registered region whose second page is no longer mapped.
func (r *testbed) unmapped(device int) *buffer {
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, unix.Munmap(m)) })
	b := &buffer{bytes: m}
	b.mr, err = verbs.RegMR(r.pd[device], pointerTo(&m[0]), uint64(len(m)), allAccess)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(b.mr)) })
	// like munmap, but the addresses are not reused
	require.NoError(r.t, unix.Mprotect(m[page:], unix.PROT_NONE))
	return b
}

// wires deliver messages within the call that sends them, or on separate goroutines that do not recover from panics.
var wires = map[string]func(*testbed){"synchronous": func(*testbed) {}, "asynchronous": (*testbed).deliverAsync}

// TestUnmappedMemory: access to registered memory that the program has unmapped fails with a status on the side of the
// memory, and the fabric keeps working.
func TestUnmappedMemory(t *testing.T) {
	for name, setWire := range wires {
		t.Run(name, func(t *testing.T) { testUnmappedMemory(t, setWire) })
	}
}

func testUnmappedMemory(t *testing.T, setWire func(*testbed)) {
	page := unix.Getpagesize()
	type statuses = []ibv.WCStatus
	toUnmapped := func(s *testPair, wr *ibv.SendWR, b *buffer) *ibv.SendWR {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: b.at(page - 8), RKey: b.mr.RKey}
		return wr
	}
	for _, c := range []struct {
		name           string
		kind           ibv.QPType
		newWR          func(s *testPair) *ibv.SendWR
		into           func(s *testPair) ibv.SGE // of the receive
		sent, received statuses
	}{
		{"send", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return s.send(1, ibv.WR_SEND, s.unmapped(0).sge(page-8, 16))
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"receive", ibv.QPT_RC, func(s *testPair) *ibv.SendWR { return s.send(1, ibv.WR_SEND, s.bufA.sge(0, 16)) },
			func(s *testPair) ibv.SGE { return s.unmapped(1).sge(page-8, 16) },
			statuses{ibv.WC_REM_OP_ERR}, statuses{ibv.WC_LOC_PROT_ERR}},
		{"write, local memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.unmapped(0).sge(page, 8)), 0)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"write, remote memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return toUnmapped(s, s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16)), s.unmapped(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"write with immediate data, remote memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return toUnmapped(s, s.send(1, ibv.WR_RDMA_WRITE_WITH_IMM, s.bufA.sge(0, 16)), s.unmapped(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"read, remote memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return toUnmapped(s, s.send(1, ibv.WR_RDMA_READ, s.bufA.sge(0, 16)), s.unmapped(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"read, local memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			return s.toBufB(s.send(1, ibv.WR_RDMA_READ, s.unmapped(0).sge(page-8, 16)), 0)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"atomic, remote memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			wr, b := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(0, 8)), s.unmapped(1)
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: b.at(page), RKey: b.mr.RKey}
			return wr
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"atomic, local memory", ibv.QPT_RC, func(s *testPair) *ibv.SendWR {
			wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.unmapped(0).sge(page, 8))
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey}
			return wr
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"send on UC", ibv.QPT_UC, func(s *testPair) *ibv.SendWR {
			return s.send(1, ibv.WR_SEND, s.unmapped(0).sge(page-8, 16))
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"receive on UC", ibv.QPT_UC,
			func(s *testPair) *ibv.SendWR { return s.send(1, ibv.WR_SEND, s.bufA.sge(0, 16)) },
			func(s *testPair) ibv.SGE { return s.unmapped(1).sge(page-8, 16) },
			statuses{ibv.WC_SUCCESS}, statuses{ibv.WC_LOC_PROT_ERR}},
		{"send of a datagram", ibv.QPT_UD, func(s *testPair) *ibv.SendWR {
			return datagram(s.send(1, ibv.WR_SEND, s.unmapped(0).sge(page-8, 16)), s.ah(0, 1), s.p.b.QPNum, testQKey)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"receive of a datagram", ibv.QPT_UD, func(s *testPair) *ibv.SendWR {
			return datagram(s.send(1, ibv.WR_SEND, s.bufA.sge(0, 16)), s.ah(0, 1), s.p.b.QPNum, testQKey)
		}, func(s *testPair) ibv.SGE { return s.unmapped(1).sge(page-48, 64) },
			statuses{ibv.WC_SUCCESS}, statuses{ibv.WC_LOC_PROT_ERR}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTestPair(t, c.kind, Options{})
			setWire(s.testbed)
			into := s.bufB.sge(512, 64)
			if c.into != nil {
				into = c.into(s)
			}
			s.recv(s.p.b, 7, into)
			require.NoError(t, s.post(s.p.a, c.newWR(s)))
			assert.Equal(t, c.sent, s.statuses(s.p.aSend))
			assert.Equal(t, c.received, s.statuses(s.p.bRecv))

			// Other queue pairs keep working, and the fabric is no longer in careful mode.
			assert.False(t, s.fabric.Careful)
			other := s.pair(ibv.QPT_RC)
			s.recv(other.b, 8, s.bufB.sge(0, 64))
			copy(s.bufA.bytes, "alive")
			require.NoError(t, s.post(other.a, s.send(2, ibv.WR_SEND, s.bufA.sge(0, 5))))
			assert.Equal(t, statuses{ibv.WC_SUCCESS}, s.statuses(other.aSend))
			assert.Equal(t, "alive", string(s.bufB.bytes[:5]))
		})
	}
}

// TestUnmappedMemoryInPackets: the same applies to a message in several packets of which only the first reaches mapped
// memory.
func TestUnmappedMemoryInPackets(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC} {
		s := newTestPair(t, kind, Options{Virtual: true})
		s.recv(s.p.b, 7, s.unmapped(1).sge(unix.Getpagesize()-1500, 3000))
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 3000))))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_LOC_PROT_ERR}, s.statuses(s.p.bRecv), kind)
	}
}

// TestUnmappedTagBuffers: the same applies to the buffers of tags, and to both sides of a rendezvous.
func TestUnmappedTagBuffers(t *testing.T) {
	for name, setWire := range wires {
		t.Run(name, func(t *testing.T) { testUnmappedTagBuffers(t, setWire) })
	}
}

func testUnmappedTagBuffers(t *testing.T, setWire func(*testbed)) {
	page := unix.Getpagesize()
	add := func(r *tagTestbed, sge ibv.SGE) {
		setWire(r.testbed)
		sges := offHeap[ibv.SGE](r.testbed, 1)
		sges[0] = sge
		_, err := r.op(ibv.OpsWR{WRID: 10,
			TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: 10, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: 0xa,
				Mask: ^uint64(0)}}})
		require.NoError(t, err)
		r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	}
	t.Run("eager", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, r.unmapped(1).sge(page-4, 64))
		*(*ibv.TMH)(unsafe.Pointer(&r.bufA.bytes[0])) = ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(0xa)}
		require.NoError(t, r.post(r.p.a, r.testbed.send(1, ibv.WR_SEND, r.bufA.sge(0, 32))))
		assert.Equal(t, ibv.WC_REM_OP_ERR, r.poll(r.p.aSend).Status)
		r.completed(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_LOC_PROT_ERR)
	})
	t.Run("rendezvous, receiver's memory", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, r.unmapped(1).sge(page-4, 64))
		r.rendezvous(0xa, 1024, 24)
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_LOC_PROT_ERR)
	})
	t.Run("rendezvous, sender's memory", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, r.bufB.sge(0, 64))
		b := r.unmapped(0)
		rvh := []ibv.RVH{{VA: ibv.ToBE64(b.at(page - 4)), RKey: ibv.ToBE32(b.mr.RKey), Len: ibv.ToBE32(24)}}
		r.message(ibv.TMH_RNDV, 0xa, unsafe.Slice((*byte)(unsafe.Pointer(&rvh[0])), 16))
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_REM_ACCESS_ERR)
	})
}

// TestMulticastToUnmappedMemory: if the receive buffer of one member of a multicast group is unmapped, the other
// members receive the datagram as often as the wire delivers it, whether they joined before or after that member.
func TestMulticastToUnmappedMemory(t *testing.T) {
	page := unix.Getpagesize()
	for name, c := range map[string]struct {
		faults  Faults
		times   int
		setWire func(*testbed)
	}{
		"once":         {Faults{}, 1, wires["synchronous"]},
		"twice":        {Faults{Duplicate: 1}, 2, wires["synchronous"]},
		"asynchronous": {Faults{}, 1, wires["asynchronous"]},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestPair(t, ibv.QPT_UD, Options{Faults: c.faults})
			c.setWire(s.testbed)
			g := newGroup(s.testbed, 3)
			unmapped := s.unmapped(1)
			for i, qp := range g.to {
				require.NoError(t, verbs.AttachMcast(qp, g.gid, 0))
				t.Cleanup(func() { require.NoError(t, verbs.DetachMcast(qp, g.gid, 0)) })
				for range 3 {
					into := s.bufB.sge(i*100, 100)
					if i == 1 {
						into = unmapped.sge(page-44, 64)
					}
					s.recv(qp, 7, into)
				}
			}
			copy(s.bufA.bytes, "to all")
			g.send(1, s.bufA.sge(0, 6))
			assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(g.sends))
			for i, cq := range g.recvs {
				want := []ibv.WCStatus{ibv.WC_LOC_PROT_ERR, ibv.WC_WR_FLUSH_ERR, ibv.WC_WR_FLUSH_ERR}
				if i != 1 {
					want = slices.Repeat([]ibv.WCStatus{ibv.WC_SUCCESS}, c.times)
					assert.Equal(t, "to all", string(s.bufB.bytes[i*100+40:][:6]))
				}
				assert.Equal(t, want, s.statuses(cq), "member %d", i)
			}
		})
	}
}

// TestDuplicateToUnmappedMemory: a duplicated datagram is not delivered a third time if the buffer of the second
// receive is unmapped.
func TestDuplicateToUnmappedMemory(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{Faults: Faults{Duplicate: 1}})
	s.recv(s.p.b, 1, s.bufB.sge(0, 64))
	s.recv(s.p.b, 2, s.unmapped(1).sge(unix.Getpagesize()-44, 64))
	s.recv(s.p.b, 3, s.bufB.sge(0, 64))
	require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND, s.bufA.sge(0, 8)), s.ah(0, 1), s.p.b.QPNum,
		testQKey)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_LOC_PROT_ERR, ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.bRecv))
}

// TestArgumentsInUnmappedMemory: a post or poll whose arguments are in unmapped memory fails with EFAULT, where C would
// crash. Other calls panic. No lock stays held.
func TestArgumentsInUnmappedMemory(t *testing.T) {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(page)
	unmappedAddr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
	s := newTestPair(t, ibv.QPT_RC, Options{})
	srq, err := verbs.CreateSRQ(s.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	dm, err := verbs.AllocDM(s.context[0], &ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.FreeDM(dm)) }()
	recv, send, bad := &offHeap[ibv.RecvWR](s.testbed, 1)[0], &offHeap[ibv.SendWR](s.testbed, 1)[0],
		&offHeap[[2]uintptr](s.testbed, 1)[0]
	*recv = ibv.RecvWR{SGList: ibv.Ptr[ibv.SGE](unmappedAddr), NumSGE: 1}
	badSend, badRecv := (*ibv.Ptr[ibv.SendWR])(unsafe.Pointer(bad)), (*ibv.Ptr[ibv.RecvWR])(unsafe.Pointer(bad))
	// alive reports whether the fabric still transfers messages.
	alive := func(t *testing.T) bool {
		done := make(chan []ibv.WCStatus)
		go func() {
			s.statuses(s.p.bRecv)
			s.statuses(s.p.aSend)
			s.recv(s.p.b, 2, s.bufB.sge(0, 64))
			assert.NoError(t, s.post(s.p.a, s.send(2, ibv.WR_SEND, s.bufA.sge(0, 8))))
			attr := new(ibv.SRQAttr)
			assert.NoError(t, verbs.QuerySRQ(srq, attr))
			done <- append(s.statuses(s.p.aSend), s.statuses(s.p.bRecv)...)
		}()
		select {
		case got := <-done:
			assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_SUCCESS}, got)
			return true
		case <-time.After(tests.EventLimit):
			return false
		}
	}
	builder := newTestPair(t, ibv.QPT_RC, Options{}).extended(ibv.QP_EX_WITH_SEND)
	cqx, err := verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{CQE: 4})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cqx))) }()
	build := func(name func()) error {
		verbs.WRStart(builder)
		builder.WRID = 1
		verbs.WRSend(builder)
		name()
		return verbs.WRComplete(builder)
	}
	// Posts and polls return an error.
	for name, call := range map[string]func() error{
		"entries of a receive":        func() error { return verbs.PostRecv(s.p.b, recv, badRecv) },
		"entries of a shared receive": func() error { return verbs.PostSRQRecv(srq, recv, badRecv) },
		"list of receives": func() error {
			return verbs.PostRecv(s.p.b, (*ibv.RecvWR)(mem.Pointer(unmappedAddr)), badRecv)
		},
		"list of shared receives": func() error {
			return verbs.PostSRQRecv(srq, (*ibv.RecvWR)(mem.Pointer(unmappedAddr)), badRecv)
		},
		"list of sends": func() error {
			return verbs.PostSend(s.p.a, (*ibv.SendWR)(mem.Pointer(unmappedAddr)), badSend)
		},
		"entries of a send": func() error {
			*send = ibv.SendWR{SGList: ibv.Ptr[ibv.SGE](unmappedAddr), NumSGE: 1}
			return verbs.PostSend(s.p.a, send, badSend)
		},
		"bad_wr": func() error {
			return verbs.PostSend(s.p.a, (*ibv.SendWR)(mem.Pointer(unmappedAddr)),
				(*ibv.Ptr[ibv.SendWR])(mem.Pointer(unmappedAddr)))
		},
		"inline data": func() error {
			*send = *s.send(1, ibv.WR_SEND, ibv.SGE{Addr: unmappedAddr, Length: 8})
			send.SendFlags |= ibv.SEND_INLINE
			return verbs.PostSend(s.p.a, send, badSend)
		},
		"inline data of a builder": func() error {
			return build(func() { verbs.WRSetInlineData(builder, uintptr(unmappedAddr), 8) })
		},
		"entries of a builder": func() error {
			return build(func() { verbs.WRSetSGEList(builder, 1, (*ibv.SGE)(mem.Pointer(unmappedAddr))) })
		},
		"attributes of a poll": func() error { return verbs.StartPoll(cqx, (*ibv.PollCQAttr)(mem.Pointer(unmappedAddr))) },
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorIs(t, call(), syscall.EFAULT)
			require.True(t, alive(t), "the fabric is locked")
		})
	}
	t.Run("valid request before an unmapped one", func(t *testing.T) {
		*send = *s.send(7, ibv.WR_SEND, s.bufA.sge(0, 8))
		send.Next = ibv.Ptr[ibv.SendWR](unmappedAddr)
		s.recv(s.p.b, 1, s.bufB.sge(0, 64))
		assert.ErrorIs(t, verbs.PostSend(s.p.a, send, badSend), syscall.EFAULT)
		assert.EqualValues(t, unmappedAddr, *badSend)
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend), "the valid request was posted")
		require.True(t, alive(t), "the fabric is locked")
	})
	t.Run("completions", func(t *testing.T) {
		const n = 3
		for id := range uint64(n) {
			s.recv(s.p.b, id, s.bufB.sge(0, 64))
			require.NoError(t, s.post(s.p.a, s.send(id, ibv.WR_SEND, s.bufA.sge(0, 8))))
		}
		_, err := verbs.PollCQ(s.p.bRecv, n, (*ibv.WC)(mem.Pointer(unmappedAddr)))
		assert.Error(t, err)
		// The array has memory for one completion; the next poll returns the others.
		size := int(unsafe.Sizeof(ibv.WC{}))
		onePage := unix.Getpagesize()
		two, err := unix.Mmap(-1, 0, 2*onePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		defer unix.Munmap(two)
		require.NoError(t, unix.Mprotect(two[onePage:], unix.PROT_NONE))
		wc := (*ibv.WC)(unsafe.Pointer(&two[onePage-size]))
		got, err := verbs.PollCQ(s.p.bRecv, n, wc)
		require.NoError(t, err)
		assert.EqualValues(t, 1, got)
		assert.EqualValues(t, 0, wc.WRID)
		assert.Len(t, s.statuses(s.p.bRecv), n-1)
		require.True(t, alive(t), "the fabric is locked")
	})
	// Other calls panic.
	for name, call := range map[string]func(){
		"attributes of a queue pair": func() {
			verbs.ModifyQP(s.p.a, (*ibv.QPAttr)(mem.Pointer(unmappedAddr)),
				ibv.QP_ACCESS_FLAGS)
		},
		"attributes of shared receives": func() {
			verbs.ModifySRQ(srq, (*ibv.SRQAttr)(mem.Pointer(unmappedAddr)),
				ibv.SRQ_LIMIT)
		},
		"list of ranges": func() {
			verbs.AdviseMR(s.pd[0], ibv.ADVISE_MR_ADVICE_PREFETCH, 0, (*ibv.SGE)(mem.Pointer(unmappedAddr)), 1)
		},
		"device memory":                   func() { verbs.MemcpyToDM(dm, 0, uintptr(unmappedAddr), 8) },
		"attributes of an address handle": func() { verbs.CreateAH(s.pd[0], (*ibv.AHAttr)(mem.Pointer(unmappedAddr))) },
		"header of a datagram": func() {
			verbs.InitAHFromWC(s.context[0], 1, &ibv.WC{WCFlags: ibv.WC_GRH}, (*ibv.GRH)(mem.Pointer(unmappedAddr)),
				new(ibv.AHAttr))
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Panics(t, call)
			require.True(t, alive(t), "the fabric is locked")
		})
	}
}
