// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// Capacities of the shared receive queue of tagStage.
const (
	mostTags = 4
	mostOps  = 8
	mostSGEs = 2
)

// tagStage is a sender, and a receiver with a shared receive queue that matches tags.
type tagTestPair struct {
	*testPair
	srq *ibv.SRQ
	cq  *ibv.CQ // of the shared receive queue
}

// newTagStage skips the test if the device does not match tags. [TestPostSRQOps] checks the error in that case.
func newTagTestPair(t *testing.T) *tagTestPair {
	s := &tagTestPair{testPair: newTestPair(t, ibv.QPT_RC)}
	s.cq = s.CQ(64)
	srq, err := s.createTagSRQ()
	require.NoError(t, err)
	s.Defer(func() { s.Check(verbs.DestroySRQ(srq)) })
	s.srq = srq
	s.A, s.B = s.QP(ibv.QPT_RC, s.ASend, s.ARecv), s.SharingQP(ibv.QPT_RC, s.BRecv, srq)
	s.Connect(s.A, s.B)
	return s
}

func (s *tagTestPair) createTagSRQ() (*ibv.SRQ, error) {
	return verbs.CreateSRQEx(s.Context, &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: mostSGEs}, SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(s.PD), CQ: ibv.PtrTo(s.cq),
		TMCap:    ibv.TMCap{MaxNumTags: mostTags, MaxOps: mostOps},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	})
}

// ops returns a list of n operations, each with its own buffer of 64 bytes at the peer.
func (s *tagTestPair) ops(n int) []ibv.OpsWR {
	ops, sges := testbed.Records[ibv.OpsWR](s.Testbed, n), testbed.Records[ibv.SGE](s.Testbed, n)
	for i := range ops {
		sges[i] = s.bufB.SGE(64*i, 64)
		ops[i] = ibv.OpsWR{WRID: uint64(i + 1), Opcode: ibv.WR_TAG_ADD, Flags: ibv.OPS_SIGNALED}
		ops[i].TM.Add = ibv.OpsTMAdd{RecvWRID: uint64(10 + i), SGList: ibv.PtrTo(&sges[i]), NumSGE: 1, Tag: uint64(i),
			Mask: ^uint64(0)}
		if i+1 < n {
			ops[i].Next = ibv.PtrTo(&ops[i+1])
		}
	}
	return ops
}

// perform posts a list. bad is the index of the rejected operation, or -1.
func (s *tagTestPair) perform(ops []ibv.OpsWR) (bad int, err error) {
	where := &testbed.Records[ibv.Ptr[ibv.OpsWR]](s.Testbed, 1)[0]
	err = verbs.PostSRQOps(s.srq, &ops[0], where)
	for i := range ops {
		if *where == ibv.PtrTo(&ops[i]) {
			return i, err
		}
	}
	return -1, err
}

// add adds one tag and returns its handle.
func (s *tagTestPair) add(op ibv.OpsWR) uint32 {
	s.t.Helper()
	ops := s.ops(1)
	next := ops[0].TM.Add
	ops[0] = op
	if op.TM.Add.SGList == 0 {
		ops[0].TM.Add.SGList, ops[0].TM.Add.NumSGE = next.SGList, 1
	}
	_, err := s.perform(ops)
	require.NoError(s.t, err)
	s.expect(op.WRID, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
	return ops[0].TM.Handle
}

// one returns one operation without a buffer.
func (s *tagTestPair) one(id uint64, opcode ibv.OpsWROpcode, handle uint32) []ibv.OpsWR {
	ops := s.ops(1)
	ops[0] = ibv.OpsWR{WRID: id, Opcode: opcode, Flags: ibv.OPS_SIGNALED, TM: ibv.OpsTM{Handle: handle}}
	return ops
}

// sync reports to the device how many unexpected messages the program has seen.
func (s *tagTestPair) sync(id uint64, seen uint32) {
	s.t.Helper()
	ops := s.one(id, ibv.WR_TAG_SYNC, 0)
	ops[0].Flags |= ibv.OPS_TM_SYNC
	ops[0].TM.UnexpectedCnt = seen
	_, err := s.perform(ops)
	require.NoError(s.t, err)
}

func (s *tagTestPair) expect(id uint64, opcode ibv.WCOpcode, status ibv.WCStatus) ibv.WC {
	s.t.Helper()
	wc := s.Completion(s.cq)
	assert.Equal(s.t, id, wc.WRID)
	assert.Equal(s.t, opcode, wc.Opcode)
	assert.Equal(s.t, status, wc.Status)
	return wc
}

// message sends a tag and text.
func (s *tagTestPair) message(tag uint64, text string) {
	s.t.Helper()
	*(*ibv.TMH)(unsafe.Pointer(&s.bufA.Bytes[0])) = ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(tag)}
	n := 16 + copy(s.bufA.Bytes[16:], text)
	l := s.sends(1)
	l.SGEs[0] = s.bufA.SGE(0, n)
	s.post(l)
	s.sent(1, ibv.WC_SUCCESS)
}

func (s *tagTestPair) matched(id uint64, at int, text string) {
	s.t.Helper()
	wc := s.expect(id, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
	assert.Equal(s.t, ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID, wc.WCFlags&(ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID))
	assert.Equal(s.t, text, string(s.bufB.Bytes[at:at+len(text)]))
}

// TestPostSRQOps tests the promises of ibv_post_srq_ops(3). Subtests have the names in promises.txt.
func TestPostSRQOps(t *testing.T) {
	t.Run("devices that match no tags", func(t *testing.T) {
		s := &tagTestPair{testPair: newTestPair(t, ibv.QPT_RC)}
		s.cq = s.CQ(16)
		s.srq = s.SRQ(8)
		bad, err := s.perform(s.ops(1))
		require.Error(t, err, "a basic shared receive queue has no list of tags")
		assert.Contains(t, []int{-1, 0}, bad)
		attr := new(ibv.DeviceAttrEx)
		require.NoError(t, verbs.QueryDeviceEx(s.Context, nil, attr))
		if srq, err := s.createTagSRQ(); attr.TMCaps.MaxNumTags == 0 {
			assert.Error(t, err)
		} else if assert.NoError(t, err) {
			require.NoError(t, verbs.DestroySRQ(srq))
		}
	})
	if testbed.Kernel(t) != testbed.Soft {
		return // Soft-RoCE matches no tags
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *tagTestPair)
	}{
		{"list in order", func(t *testing.T, s *tagTestPair) {
			_, err := s.perform(s.ops(3))
			require.NoError(t, err)
			for i := range uint64(3) {
				s.expect(i+1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			}
			for _, tag := range []uint64{2, 0, 1} {
				s.message(tag, "by its tag")
				s.matched(10+tag, 64*int(tag), "by its tag")
			}
		}},
		{"first failure ends the list", func(t *testing.T, s *tagTestPair) {
			ops := s.ops(3)
			ops[1].Opcode = 77
			bad, err := s.perform(ops)
			require.ErrorIs(t, err, syscall.EINVAL)
			assert.Equal(t, 1, bad)
			s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.none(s.cq, "operations after the failure are not executed")
		}},
		{"completion", func(t *testing.T, s *tagTestPair) {
			ops := s.ops(2)
			ops[0].Flags = 0
			_, err := s.perform(ops)
			require.NoError(t, err)
			s.expect(2, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.none(s.cq, "the first operation is unsignaled")
			s.message(0, "the operation was executed")
			s.matched(10, 0, "the operation was executed")
		}},
		{"tag and mask", func(t *testing.T, s *tagTestPair) {
			ops := s.ops(2)
			ops[0].TM.Add.Tag, ops[0].TM.Add.Mask = 0x1200, 0xff00
			ops[1].TM.Add.Tag, ops[1].TM.Add.Mask = 0x0034, 0x00ff
			_, err := s.perform(ops)
			require.NoError(t, err)
			s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.expect(2, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.message(0x9934, "the second")
			s.matched(11, 64, "the second")
			s.message(0xab_1234, "the first")
			s.matched(10, 0, "the first")
		}},
		{"mask that hides a bit of the tag", func(t *testing.T, s *tagTestPair) {
			s.add(ibv.OpsWR{WRID: 1, Opcode: ibv.WR_TAG_ADD, Flags: ibv.OPS_SIGNALED,
				TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: 10, Tag: 0x11, Mask: 0x01}}})
			s.RecvSRQ(s.srq, 7, s.bufB.SGE(2048, 256))
			s.message(0x11, "no tag & mask is 0x11")
			s.expect(7, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
		}},
		{"buffers of a tag", func(t *testing.T, s *tagTestPair) {
			ops, sges := s.ops(1), testbed.Records[ibv.SGE](s.Testbed, mostSGEs)
			sges[0], sges[1] = s.bufB.SGE(1000, 3), s.bufB.SGE(500, 60)
			ops[0].TM.Add.SGList, ops[0].TM.Add.NumSGE = ibv.PtrTo(&sges[0]), mostSGEs
			_, err := s.perform(ops)
			require.NoError(t, err)
			s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.message(0, "scattered")
			s.expect(10, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
			assert.Equal(t, "sca", string(s.bufB.Bytes[1000:1003]))
			assert.Equal(t, "ttered", string(s.bufB.Bytes[500:506]))
		}},
		{"too many SGEs", func(t *testing.T, s *tagTestPair) {
			ops, sges := s.ops(1), testbed.Records[ibv.SGE](s.Testbed, mostSGEs+1)
			for i := range sges {
				sges[i] = s.bufB.SGE(0, 8)
			}
			ops[0].TM.Add.SGList, ops[0].TM.Add.NumSGE = ibv.PtrTo(&sges[0]), mostSGEs+1
			bad, err := s.perform(ops)
			require.ErrorIs(t, err, syscall.EINVAL)
			assert.Zero(t, bad)
		}},
		{"too many tags", func(t *testing.T, s *tagTestPair) {
			bad, err := s.perform(s.ops(mostTags + 1))
			require.ErrorIs(t, err, syscall.ENOMEM)
			assert.Equal(t, mostTags, bad)
		}},
		{"handle", func(t *testing.T, s *tagTestPair) {
			ops := s.ops(mostTags)
			_, err := s.perform(ops)
			require.NoError(t, err)
			seen := map[uint32]bool{}
			for i, op := range ops {
				assert.False(t, seen[op.TM.Handle], "each entry has its own handle")
				seen[op.TM.Handle] = true
				s.expect(uint64(i+1), ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			}
			_, err = s.perform(s.one(20, ibv.WR_TAG_DEL, ops[2].TM.Handle))
			require.NoError(t, err)
			s.expect(20, ibv.WC_TM_DEL, ibv.WC_SUCCESS)
			s.message(3, "the others stay")
			s.matched(13, 192, "the others stay")
			s.RecvSRQ(s.srq, 7, s.bufB.SGE(2048, 256))
			s.message(2, "unexpected")
			s.expect(7, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
		}},
		{"removed when it was consumed", func(t *testing.T, s *tagTestPair) {
			ops := s.ops(1)
			_, err := s.perform(ops)
			require.NoError(t, err)
			s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			s.message(0, "consumes the tag")
			s.matched(10, 0, "consumes the tag")
			_, err = s.perform(s.one(20, ibv.WR_TAG_DEL, ops[0].TM.Handle))
			require.NoError(t, err)
			s.expect(20, ibv.WC_TM_DEL, ibv.WC_TM_ERR)
		}},
		{"phase", func(t *testing.T, s *tagTestPair) {
			for i := range 2 {
				s.RecvSRQ(s.srq, uint64(100+i), s.bufB.SGE(2048+256*i, 256))
			}
			s.message(5, "unexpected")
			s.expect(100, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
			ops := s.ops(1)
			ops[0].TM.Add.Tag = 6
			_, err := s.perform(ops)
			require.NoError(t, err)
			wc := s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
			assert.Equal(t, ibv.WC_TM_SYNC_REQ, wc.WCFlags&ibv.WC_TM_SYNC_REQ, "an operation requests synchronization")
			s.message(6, "behind it")
			wc = s.expect(101, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
			assert.Equal(t, ibv.WC_TM_SYNC_REQ, wc.WCFlags&ibv.WC_TM_SYNC_REQ, "an unexpected message requests it, too")
			assert.Zero(t, wc.WCFlags&ibv.WC_TM_MATCH)
			s.sync(30, 2)
			wc = s.expect(30, ibv.WC_TM_SYNC, ibv.WC_SUCCESS)
			assert.Zero(t, wc.WCFlags&ibv.WC_TM_SYNC_REQ)
			s.message(6, "now it matches")
			s.matched(10, 0, "now it matches")
		}},
		{"counter with another operation", func(t *testing.T, s *tagTestPair) {
			s.RecvSRQ(s.srq, 100, s.bufB.SGE(2048, 256))
			s.message(5, "unexpected")
			s.expect(100, ibv.WC_TM_RECV, ibv.WC_SUCCESS)
			ops := s.ops(1)
			ops[0].Flags |= ibv.OPS_TM_SYNC
			ops[0].TM.UnexpectedCnt = 1
			_, err := s.perform(ops)
			require.NoError(t, err)
			assert.Zero(t, s.expect(1, ibv.WC_TM_ADD, ibv.WC_SUCCESS).WCFlags&ibv.WC_TM_SYNC_REQ)
			s.message(0, "matches at once")
			s.matched(10, 0, "matches at once")
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newTagTestPair(t)) })
	}
}
