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
	tests "github.com/goverbs/goverbs/rdma/soft/internal/rig"
)

// gone returns a registered region of a device whose second page is no longer mapped.
func (r *rig) gone(device int) *buffer {
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, unix.Munmap(m)) })
	b := &buffer{bytes: m}
	b.mr, err = verbs.RegMR(r.pd[device], pointerTo(&m[0]), uint64(len(m)), everything)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(b.mr)) })
	// like munmap, but the addresses are not reused
	require.NoError(r.t, unix.Mprotect(m[page:], unix.PROT_NONE))
	return b
}

// wires let messages arrive within the call that sent them, or on goroutines that recover from nothing.
var wires = map[string]func(*rig){"at once": func(*rig) {}, "late": (*rig).fromElsewhere}

// TestMemoryThatIsGone: data that is to come from, or to go to, registered memory that the program has unmapped since
// ends in a status on the side whose memory it is, and the fabric lives on.
func TestMemoryThatIsGone(t *testing.T) {
	for name, over := range wires {
		t.Run(name, func(t *testing.T) { memoryThatIsGone(t, over) })
	}
}

func memoryThatIsGone(t *testing.T, over func(*rig)) {
	page := unix.Getpagesize()
	type statuses = []ibv.WCStatus
	remote := func(s *stage, wr *ibv.SendWR, b *buffer) *ibv.SendWR {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: b.at(page - 8), RKey: b.mr.RKey}
		return wr
	}
	for _, c := range []struct {
		what           string
		kind           ibv.QPType
		make           func(s *stage) *ibv.SendWR
		into           func(s *stage) ibv.SGE // of the receive
		sent, received statuses
	}{
		{"send from it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return s.send(1, ibv.WR_SEND, s.gone(0).sge(page-8, 16))
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"receive into it", ibv.QPT_RC, func(s *stage) *ibv.SendWR { return s.send(1, ibv.WR_SEND, s.here.sge(0, 16)) },
			func(s *stage) ibv.SGE { return s.gone(1).sge(page-8, 16) },
			statuses{ibv.WC_REM_OP_ERR}, statuses{ibv.WC_LOC_PROT_ERR}},
		{"write from it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return s.remote(s.send(1, ibv.WR_RDMA_WRITE, s.gone(0).sge(page, 8)), 0)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"write to it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return remote(s, s.send(1, ibv.WR_RDMA_WRITE, s.here.sge(0, 16)), s.gone(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"write to it with immediate data", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return remote(s, s.send(1, ibv.WR_RDMA_WRITE_WITH_IMM, s.here.sge(0, 16)), s.gone(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"read from it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return remote(s, s.send(1, ibv.WR_RDMA_READ, s.here.sge(0, 16)), s.gone(1))
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"read into it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			return s.remote(s.send(1, ibv.WR_RDMA_READ, s.gone(0).sge(page-8, 16)), 0)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"atomic on it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			wr, b := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.here.sge(0, 8)), s.gone(1)
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: b.at(page), RKey: b.mr.RKey}
			return wr
		}, nil, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}},
		{"atomic that brings its result to it", ibv.QPT_RC, func(s *stage) *ibv.SendWR {
			wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.gone(0).sge(page, 8))
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.there.at(0), RKey: s.there.mr.RKey}
			return wr
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"unreliable send from it", ibv.QPT_UC, func(s *stage) *ibv.SendWR {
			return s.send(1, ibv.WR_SEND, s.gone(0).sge(page-8, 16))
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"unreliable receive into it", ibv.QPT_UC,
			func(s *stage) *ibv.SendWR { return s.send(1, ibv.WR_SEND, s.here.sge(0, 16)) },
			func(s *stage) ibv.SGE { return s.gone(1).sge(page-8, 16) },
			statuses{ibv.WC_SUCCESS}, statuses{ibv.WC_LOC_PROT_ERR}},
		{"datagram from it", ibv.QPT_UD, func(s *stage) *ibv.SendWR {
			return datagram(s.send(1, ibv.WR_SEND, s.gone(0).sge(page-8, 16)), s.ah(0, 1), s.p.b.QPNum, testQKey)
		}, nil, statuses{ibv.WC_LOC_PROT_ERR}, nil},
		{"datagram into it", ibv.QPT_UD, func(s *stage) *ibv.SendWR {
			return datagram(s.send(1, ibv.WR_SEND, s.here.sge(0, 16)), s.ah(0, 1), s.p.b.QPNum, testQKey)
		}, func(s *stage) ibv.SGE { return s.gone(1).sge(page-48, 64) },
			statuses{ibv.WC_SUCCESS}, statuses{ibv.WC_LOC_PROT_ERR}},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newStage(t, c.kind, Options{})
			over(s.rig)
			into := s.there.sge(512, 64)
			if c.into != nil {
				into = c.into(s)
			}
			s.recv(s.p.b, 7, into)
			require.NoError(t, s.post(s.p.a, c.make(s)))
			assert.Equal(t, c.sent, s.statuses(s.p.aSend))
			assert.Equal(t, c.received, s.statuses(s.p.bRecv))

			// Others go on, and look at nothing twice.
			assert.False(t, s.fabric.careful)
			other := s.pair(ibv.QPT_RC)
			s.recv(other.b, 8, s.there.sge(0, 64))
			copy(s.here.bytes, "alive")
			require.NoError(t, s.post(other.a, s.send(2, ibv.WR_SEND, s.here.sge(0, 5))))
			assert.Equal(t, statuses{ibv.WC_SUCCESS}, s.statuses(other.aSend))
			assert.Equal(t, "alive", string(s.there.bytes[:5]))
		})
	}
}

// TestPartsIntoMemoryThatIsGone: so does a message in packets whose first part had memory.
func TestPartsIntoMemoryThatIsGone(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC} {
		s := newStage(t, kind, Options{Virtual: true})
		s.recv(s.p.b, 7, s.gone(1).sge(unix.Getpagesize()-1500, 3000))
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.here.sge(0, 3000))))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_LOC_PROT_ERR}, s.statuses(s.p.bRecv), kind)
	}
}

// TestTagsOnMemoryThatIsGone: so does data for a tag, and data that the receiver of a rendezvous reads.
func TestTagsOnMemoryThatIsGone(t *testing.T) {
	for name, over := range wires {
		t.Run(name, func(t *testing.T) { tagsOnMemoryThatIsGone(t, over) })
	}
}

func tagsOnMemoryThatIsGone(t *testing.T, over func(*rig)) {
	page := unix.Getpagesize()
	add := func(r *tagRig, sge ibv.SGE) {
		over(r.rig)
		sges := outside[ibv.SGE](r.rig, 1)
		sges[0] = sge
		_, err := r.op(ibv.OpsWR{WRID: 10,
			TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: 10, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: 0xa,
				Mask: ^uint64(0)}}})
		require.NoError(t, err)
		r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	}
	t.Run("eager", func(t *testing.T) {
		r := newTagRig(t, 4, 4)
		add(r, r.gone(1).sge(page-4, 64))
		*(*ibv.TMH)(unsafe.Pointer(&r.here.bytes[0])) = ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(0xa)}
		require.NoError(t, r.post(r.p.a, r.rig.send(1, ibv.WR_SEND, r.here.sge(0, 32))))
		assert.Equal(t, ibv.WC_REM_OP_ERR, r.poll(r.p.aSend).Status)
		r.came(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_LOC_PROT_ERR)
	})
	t.Run("rendezvous into it", func(t *testing.T) {
		r := newTagRig(t, 4, 4)
		add(r, r.gone(1).sge(page-4, 64))
		r.rendezvous(0xa, 1024, 24)
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_LOC_PROT_ERR)
	})
	t.Run("rendezvous from it", func(t *testing.T) {
		r := newTagRig(t, 4, 4)
		add(r, r.there.sge(0, 64))
		b := r.gone(0)
		rvh := []ibv.RVH{{VA: ibv.ToBE64(b.at(page - 4)), RKey: ibv.ToBE32(b.mr.RKey), Len: ibv.ToBE32(24)}}
		r.message(ibv.TMH_RNDV, 0xa, unsafe.Slice((*byte)(unsafe.Pointer(&rvh[0])), 16))
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_REM_ACCESS_ERR)
	})
}

// TestGroupsOnMemoryThatIsGone: if the receive of one member of a multicast group is gone, the others get a datagram as
// often as the wire brings it, whether they joined before or after that one.
func TestGroupsOnMemoryThatIsGone(t *testing.T) {
	page := unix.Getpagesize()
	for what, c := range map[string]struct {
		faults Faults
		times  int
		over   func(*rig)
	}{
		"once":  {Faults{}, 1, wires["at once"]},
		"twice": {Faults{Duplicate: 1}, 2, wires["at once"]},
		"late":  {Faults{}, 1, wires["late"]},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t, ibv.QPT_UD, Options{Faults: c.faults})
			c.over(s.rig)
			g := newGroup(s.rig, 3)
			gone := s.gone(1)
			for i, qp := range g.to {
				require.NoError(t, verbs.AttachMcast(qp, g.gid, 0))
				t.Cleanup(func() { require.NoError(t, verbs.DetachMcast(qp, g.gid, 0)) })
				for range 3 {
					into := s.there.sge(i*100, 100)
					if i == 1 {
						into = gone.sge(page-44, 64)
					}
					s.recv(qp, 7, into)
				}
			}
			copy(s.here.bytes, "to all")
			g.send(1, s.here.sge(0, 6))
			assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(g.sends))
			for i, cq := range g.recvs {
				want := []ibv.WCStatus{ibv.WC_LOC_PROT_ERR, ibv.WC_WR_FLUSH_ERR, ibv.WC_WR_FLUSH_ERR}
				if i != 1 {
					want = slices.Repeat([]ibv.WCStatus{ibv.WC_SUCCESS}, c.times)
					assert.Equal(t, "to all", string(s.there.bytes[i*100+40:][:6]))
				}
				assert.Equal(t, want, s.statuses(cq), "member %d", i)
			}
		})
	}
}

// TestDatagramTwiceOnMemoryThatIsGone: a datagram that a fault brings twice comes no third time where the memory of the
// second receive is gone.
func TestDatagramTwiceOnMemoryThatIsGone(t *testing.T) {
	s := newStage(t, ibv.QPT_UD, Options{Faults: Faults{Duplicate: 1}})
	s.recv(s.p.b, 1, s.there.sge(0, 64))
	s.recv(s.p.b, 2, s.gone(1).sge(unix.Getpagesize()-44, 64))
	s.recv(s.p.b, 3, s.there.sge(0, 64))
	require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND, s.here.sge(0, 8)), s.ah(0, 1), s.p.b.QPNum,
		testQKey)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_LOC_PROT_ERR, ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.bRecv))
}

// TestListsWhereNoMemoryIs: a post or a poll whose list is where no memory is fails with EFAULT, where C would end the
// program; other calls panic. A program that goes on finds no lock held.
func TestListsWhereNoMemoryIs(t *testing.T) {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(page)
	nowhere := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
	s := newStage(t, ibv.QPT_RC, Options{})
	srq, err := verbs.CreateSRQ(s.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	dm, err := verbs.AllocDM(s.context[0], &ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.FreeDM(dm)) }()
	recv, send, bad := &outside[ibv.RecvWR](s.rig, 1)[0], &outside[ibv.SendWR](s.rig, 1)[0],
		&outside[[2]uintptr](s.rig, 1)[0]
	*recv = ibv.RecvWR{SGList: ibv.Ptr[ibv.SGE](nowhere), NumSGE: 1}
	badSend, badRecv := (*ibv.Ptr[ibv.SendWR])(unsafe.Pointer(bad)), (*ibv.Ptr[ibv.RecvWR])(unsafe.Pointer(bad))
	// alive reports whether others can go on.
	alive := func(t *testing.T) bool {
		lives := make(chan []ibv.WCStatus)
		go func() {
			s.statuses(s.p.bRecv)
			s.statuses(s.p.aSend)
			s.recv(s.p.b, 2, s.there.sge(0, 64))
			assert.NoError(t, s.post(s.p.a, s.send(2, ibv.WR_SEND, s.here.sge(0, 8))))
			attr := new(ibv.SRQAttr)
			assert.NoError(t, verbs.QuerySRQ(srq, attr))
			lives <- append(s.statuses(s.p.aSend), s.statuses(s.p.bRecv)...)
		}()
		select {
		case got := <-lives:
			assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_SUCCESS}, got)
			return true
		case <-time.After(tests.EventLimit):
			return false
		}
	}
	builder := newStage(t, ibv.QPT_RC, Options{}).extended(ibv.QP_EX_WITH_SEND)
	wide, err := verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{CQE: 4})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(wide))) }()
	build := func(what func()) error {
		verbs.WRStart(builder)
		builder.WRID = 1
		verbs.WRSend(builder)
		what()
		return verbs.WRComplete(builder)
	}
	// Posts and polls return an error.
	for what, call := range map[string]func() error{
		"entries of a receive":        func() error { return verbs.PostRecv(s.p.b, recv, badRecv) },
		"entries of a shared receive": func() error { return verbs.PostSRQRecv(srq, recv, badRecv) },
		"a list of receives": func() error {
			return verbs.PostRecv(s.p.b, (*ibv.RecvWR)(mem.Pointer(nowhere)), badRecv)
		},
		"a list of shared receives": func() error {
			return verbs.PostSRQRecv(srq, (*ibv.RecvWR)(mem.Pointer(nowhere)), badRecv)
		},
		"a list of sends": func() error {
			return verbs.PostSend(s.p.a, (*ibv.SendWR)(mem.Pointer(nowhere)), badSend)
		},
		"entries of a send": func() error {
			*send = ibv.SendWR{SGList: ibv.Ptr[ibv.SGE](nowhere), NumSGE: 1}
			return verbs.PostSend(s.p.a, send, badSend)
		},
		"where the bad request is to be told": func() error {
			return verbs.PostSend(s.p.a, (*ibv.SendWR)(mem.Pointer(nowhere)), (*ibv.Ptr[ibv.SendWR])(mem.Pointer(nowhere)))
		},
		"inline data": func() error {
			*send = *s.send(1, ibv.WR_SEND, ibv.SGE{Addr: nowhere, Length: 8})
			send.SendFlags |= ibv.SEND_INLINE
			return verbs.PostSend(s.p.a, send, badSend)
		},
		"inline data of a builder": func() error {
			return build(func() { verbs.WRSetInlineData(builder, uintptr(nowhere), 8) })
		},
		"entries of a builder": func() error {
			return build(func() { verbs.WRSetSGEList(builder, 1, (*ibv.SGE)(mem.Pointer(nowhere))) })
		},
		"attributes of a poll": func() error { return verbs.StartPoll(wide, (*ibv.PollCQAttr)(mem.Pointer(nowhere))) },
	} {
		t.Run(what, func(t *testing.T) {
			assert.ErrorIs(t, call(), syscall.EFAULT)
			require.True(t, alive(t), "the fabric is locked")
		})
	}
	t.Run("requests before one that is not there", func(t *testing.T) {
		*send = *s.send(7, ibv.WR_SEND, s.here.sge(0, 8))
		send.Next = ibv.Ptr[ibv.SendWR](nowhere)
		s.recv(s.p.b, 1, s.there.sge(0, 64))
		assert.ErrorIs(t, verbs.PostSend(s.p.a, send, badSend), syscall.EFAULT)
		assert.EqualValues(t, nowhere, *badSend)
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend), "it was posted")
		require.True(t, alive(t), "the fabric is locked")
	})
	t.Run("completions", func(t *testing.T) {
		const n = 3
		for id := range uint64(n) {
			s.recv(s.p.b, id, s.there.sge(0, 64))
			require.NoError(t, s.post(s.p.a, s.send(id, ibv.WR_SEND, s.here.sge(0, 8))))
		}
		_, err := verbs.PollCQ(s.p.bRecv, n, (*ibv.WC)(mem.Pointer(nowhere)))
		assert.Error(t, err)
		// Memory for one: the others come to the next poll.
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
	for what, call := range map[string]func(){
		"attributes of a queue pair": func() {
			verbs.ModifyQP(s.p.a, (*ibv.QPAttr)(mem.Pointer(nowhere)),
				ibv.QP_ACCESS_FLAGS)
		},
		"attributes of shared receives": func() {
			verbs.ModifySRQ(srq, (*ibv.SRQAttr)(mem.Pointer(nowhere)),
				ibv.SRQ_LIMIT)
		},
		"a list of ranges": func() {
			verbs.AdviseMR(s.pd[0], ibv.ADVISE_MR_ADVICE_PREFETCH, 0, (*ibv.SGE)(mem.Pointer(nowhere)), 1)
		},
		"device memory":               func() { verbs.MemcpyToDM(dm, 0, uintptr(nowhere), 8) },
		"the address of a queue pair": func() { verbs.CreateAH(s.pd[0], (*ibv.AHAttr)(mem.Pointer(nowhere))) },
		"the header of a datagram": func() {
			verbs.InitAHFromWC(s.context[0], 1, &ibv.WC{WCFlags: ibv.WC_GRH}, (*ibv.GRH)(mem.Pointer(nowhere)),
				new(ibv.AHAttr))
		},
	} {
		t.Run(what, func(t *testing.T) {
			assert.Panics(t, call)
			require.True(t, alive(t), "the fabric is locked")
		})
	}
}
