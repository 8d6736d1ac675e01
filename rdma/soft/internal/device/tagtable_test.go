// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
)

// TestTagCompletionsMatchTables: each outcome of a message, and each operation, completes as the generated tables
// specify.
func TestTagCompletionsMatchTables(t *testing.T) {
	for _, message := range []ibv.TMMessage{
		ibv.TMMessageMatched, ibv.TMMessageAnnounced, ibv.TMMessageFetched, ibv.TMMessageSoftware,
		ibv.TMMessageUnexpected, ibv.TMMessageUntagged,
	} {
		t.Run(message.String(), func(t *testing.T) {
			r := newTagTestbed(t, 4, 4)
			r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
			r.recvSRQ(5, 2048)
			id := uint64(10)
			r.add(id, 0xa, 0, 64)
			r.poll(r.cq)
			switch message {
			case ibv.TMMessageMatched:
				r.message(ibv.TMH_EAGER, 0xa, []byte("x"))
			case ibv.TMMessageAnnounced, ibv.TMMessageFetched:
				r.rendezvous(0xa, 1024, 64)
			case ibv.TMMessageSoftware:
				r.rendezvous(0xa, 1024, 65)
			case ibv.TMMessageUnexpected:
				id = 5
				r.message(ibv.TMH_EAGER, 0xb, []byte("x"))
			case ibv.TMMessageUntagged:
				id = 5
				r.message(ibv.TMH_NO_TAG, 0xa, []byte("x"))
			}
			if message == ibv.TMMessageFetched {
				r.poll(r.cq) // the rendezvous request
			}
			want := ibv.TMCompletion(message)
			require.Equal(t, ibv.AnswerYes, want.Answer)
			r.completed(t, id, want.Opcode, want.Flags, want.Status)
		})
	}
	r := newTagTestbed(t, 4, 4)
	handle := r.add(1, 0xa, 0, 64)
	for _, w := range []ibv.OpsWR{{Opcode: ibv.WR_TAG_ADD}, {Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: handle}},
		{Opcode: ibv.WR_TAG_SYNC}} {
		if w.Opcode != ibv.WR_TAG_ADD {
			_, err := r.op(w)
			require.NoError(t, err)
		}
		assert.Equal(t, ibv.SRQOpsCompletion(w.Opcode).Opcode, r.poll(r.cq).Opcode, w.Opcode)
	}
}

// TestSharedQueuesByType: operations on a shared receive queue work on the types that the generated table lists.
func TestSharedQueuesByType(t *testing.T) {
	for _, kind := range []ibv.SRQType{ibv.SRQT_BASIC, ibv.SRQT_XRC, ibv.SRQT_TM} {
		for name, c := range map[ibv.SRQOp]func(r *testbed, s *ibv.SRQ) error{
			ibv.SRQPostRecv: func(r *testbed, s *ibv.SRQ) error {
				return verbs.PostSRQRecv(s, &offHeap[ibv.RecvWR](r, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0])
			},
			ibv.SRQPostOps: func(r *testbed, s *ibv.SRQ) error {
				op := &offHeap[ibv.OpsWR](r, 1)[0]
				op.Opcode = ibv.WR_TAG_SYNC
				return verbs.PostSRQOps(s, op, &offHeap[ibv.Ptr[ibv.OpsWR]](r, 1)[0])
			},
			ibv.SRQModifyLimit: func(_ *testbed,
				s *ibv.SRQ) error {
				return verbs.ModifySRQ(s, &ibv.SRQAttr{SRQLimit: 1}, ibv.SRQ_LIMIT)
			},
			ibv.SRQModifyMaxWR: func(_ *testbed,
				s *ibv.SRQ) error {
				return verbs.ModifySRQ(s, &ibv.SRQAttr{MaxWR: 16}, ibv.SRQ_MAX_WR)
			},
			ibv.SRQGetNum: func(_ *testbed, s *ibv.SRQ) error { return verbs.GetSRQNum(s, new(uint32)) },
			ibv.SRQQuery:  func(_ *testbed, s *ibv.SRQ) error { return verbs.QuerySRQ(s, new(ibv.SRQAttr)) },
		} {
			t.Run(fmt.Sprint(kind, " ", name), func(t *testing.T) {
				r := newTestbed(t, Options{})
				attr := &ibv.SRQInitAttrEx{
					Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, SRQType: kind, PD: ibv.PtrTo(r.pd[0]),
					CQ: ibv.PtrTo(r.cq(0, 8)), TMCap: ibv.TMCap{MaxNumTags: 1, MaxOps: 1},
					CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD,
				}
				switch kind {
				case ibv.SRQT_TM:
					attr.CompMask |= ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM
				case ibv.SRQT_XRC:
					d, err := verbs.OpenXRCD(r.context[0],
						&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
							Oflags: 0o100})
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, verbs.CloseXRCD(d)) })
					attr.CompMask, attr.XRCD = attr.CompMask|ibv.SRQ_INIT_ATTR_CQ|ibv.SRQ_INIT_ATTR_XRCD, ibv.PtrTo(d)
				}
				s, err := verbs.CreateSRQEx(r.context[0], attr)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(s)) })
				if err := c(r, s); engine.Refused(ibv.SRQOpValidity(kind, name)) {
					assert.Error(t, err)
				} else {
					assert.NoError(t, err)
				}
			})
		}
	}
}

// refTag is an entry of the reference's tag list.
type refTag struct {
	handle    uint32
	id        uint64
	tag, mask uint64
	held      bool
}

// TestTagPrograms executes random operations and messages on the device and on a reference tag list. Every message
// matches the tag that the reference selects, in list order; tags added after unexpected messages match nothing until
// the program has acknowledged these; each signalled or failed operation completes, in order.
func TestTagPrograms(t *testing.T) {
	const most, depth = 3, 4
	rapid.Check(t, func(rt *rapid.T) {
		own := &episode{TB: t}
		defer own.end()
		r := newTagTestbed(own, most, depth)
		type done struct {
			id     uint64
			opcode ibv.WCOpcode
			flags  ibv.WCFlags
			status ibv.WCStatus
			op     bool
		}
		var tags []refTag
		var recvs []uint64
		var want []done
		unexpected, acknowledged, operations, posted, id := uint32(0), uint32(0), 0, 0, uint64(100)
		var handles []uint32
		draw := func(name string, to int) int { return rapid.IntRange(0, to).Draw(rt, name) }
		tell := func(count uint32) {
			if acknowledged = count; acknowledged == unexpected {
				for i := range tags {
					tags[i].held = false
				}
			}
		}
		finish := func(w *ibv.OpsWR, opcode ibv.WCOpcode, status ibv.WCStatus) {
			if w.Flags&ibv.OPS_SIGNALED == 0 && status == ibv.WC_SUCCESS {
				return
			}
			d := done{id: w.WRID, opcode: opcode, status: status, op: true}
			if acknowledged != unexpected {
				d.flags = ibv.WC_TM_SYNC_REQ
			}
			operations++
			want = append(want, d)
		}
		post := func(w *ibv.OpsWR) error {
			id++
			w.WRID = id
			if draw("signalled", 3) > 0 {
				w.Flags |= ibv.OPS_SIGNALED
			}
			if draw("counts", 2) == 0 || w.Opcode == ibv.WR_TAG_SYNC {
				w.Flags |= ibv.OPS_TM_SYNC
				w.TM.UnexpectedCnt = unexpected - uint32(draw("behind", int(min(unexpected, 1))))
			}
			op, bad := &offHeap[ibv.OpsWR](r.testbed, 1)[0], &offHeap[ibv.Ptr[ibv.OpsWR]](r.testbed, 1)[0]
			*op = *w
			err := verbs.PostSRQOps(r.srq, op, bad)
			w.TM.Handle = op.TM.Handle
			full := w.Opcode == ibv.WR_TAG_ADD && len(tags) == most
			if operations == depth || full {
				require.ErrorIs(rt, err, syscall.ENOMEM)
				require.Equal(rt, ibv.PtrTo(op), *bad)
				return err
			}
			require.NoError(rt, err)
			if w.Flags&ibv.OPS_TM_SYNC != 0 {
				tell(w.TM.UnexpectedCnt)
			}
			return nil
		}
		poll := func() {
			wc, ok := r.tryPoll(r.cq)
			require.Equal(rt, len(want) > 0, ok)
			if !ok {
				return
			}
			d := want[0]
			want = want[1:]
			require.Equal(rt, d, done{wc.WRID, wc.Opcode, wc.WCFlags, wc.Status, d.op})
			if d.op {
				operations--
			} else if d.id < 100 {
				posted--
			}
		}
		value := func(name string) uint64 { return uint64(draw(name, 3)) | uint64(draw(name+" above", 1))<<60 }
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				sges := offHeap[ibv.SGE](r.testbed, 1)
				sges[0] = r.bufB.sge(0, 64)
				mask := rapid.SampledFrom([]uint64{^uint64(0), 3, 1 << 60, 0}).Draw(rt, "mask")
				tag := refTag{id: id + 1, tag: value("tag"), mask: mask}
				w := &ibv.OpsWR{Opcode: ibv.WR_TAG_ADD,
					TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: tag.id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1,
						Tag: tag.tag, Mask: mask}}}
				if post(w) == nil {
					tag.handle, tag.held = w.TM.Handle, acknowledged != unexpected
					tags, handles = append(tags, tag), append(handles, w.TM.Handle)
					finish(w, ibv.WC_TM_ADD, ibv.WC_SUCCESS)
				}
			},
			"delete": func(*rapid.T) {
				if len(handles) == 0 {
					return
				}
				w := &ibv.OpsWR{Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: handles[draw("handle", len(handles)-1)]}}
				handle, status := w.TM.Handle, ibv.WC_TM_ERR
				if post(w) != nil {
					return
				}
				tags = slices.DeleteFunc(tags, func(t refTag) bool {
					if t.handle == handle {
						status = ibv.WC_SUCCESS
					}
					return t.handle == handle
				})
				finish(w, ibv.WC_TM_DEL, status)
			},
			"synchronise": func(*rapid.T) {
				if w := (&ibv.OpsWR{Opcode: ibv.WR_TAG_SYNC}); post(w) == nil {
					finish(w, ibv.WC_TM_SYNC, ibv.WC_SUCCESS)
				}
			},
			"receive": func(*rapid.T) {
				if posted < 8 {
					posted++
					recvs = append(recvs, uint64(posted))
					r.recvSRQ(uint64(posted), 2048)
				}
			},
			"message": func(*rapid.T) {
				tag, op := value("tag"), rapid.SampledFrom([]ibv.TMHOp{ibv.TMH_EAGER, ibv.TMH_EAGER, ibv.TMH_EAGER,
					ibv.TMH_NO_TAG}).Draw(rt, "operation")
				i := slices.IndexFunc(tags, func(t refTag) bool { return !t.held && tag&t.mask == t.tag })
				switch {
				case op == ibv.TMH_EAGER && i >= 0:
					want = append(want, done{id: tags[i].id, opcode: ibv.WC_TM_RECV, flags: matched})
					tags = slices.Delete(tags, i, i+1)
				case len(recvs) == 0:
					return // the operation would wait
				default:
					d := done{id: recvs[0], opcode: ibv.WC_TM_NO_TAG}
					recvs = recvs[1:]
					if op == ibv.TMH_EAGER {
						d.opcode = ibv.WC_TM_RECV
						unexpected++
						if slices.ContainsFunc(tags, func(t refTag) bool { return t.held }) && acknowledged != unexpected {
							d.flags = ibv.WC_TM_SYNC_REQ
						}
					}
					want = append(want, d)
				}
				r.message(op, tag, []byte{1, 2, 3})
			},
			"poll":   func(*rapid.T) { poll() },
			"poll 2": func(*rapid.T) { poll() },
		})
		for len(want) > 0 {
			poll()
		}
		poll()
	})
}

// TestTagInfo: the extended completion of a message contains the tag and the context of the sender's header. The
// completion of rendezvous data contains neither, as pyverbs' test of tag matching expects from hardware.
func TestTagInfo(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
	r.add(10, 0xa, 0, 64)
	r.add(11, 0xb, 64, 64)
	r.poll(r.cq)
	r.poll(r.cq)
	r.message(ibv.TMH_EAGER, 0xa, []byte("x"))
	r.rendezvous(0xb, 1024, 8)
	require.NoError(t, verbs.StartPoll(r.ex, new(ibv.PollCQAttr)))
	for i, want := range []ibv.WCTMInfo{{Tag: 0xa, Priv: 99}, {Tag: 0xb, Priv: 99}, {}} {
		if i > 0 {
			require.NoError(t, verbs.NextPoll(r.ex))
		}
		info := &ibv.WCTMInfo{Tag: 77, Priv: 77}
		require.NoError(t, verbs.WCReadTMInfo(r.ex, info))
		assert.Equal(t, want, *info)
	}
	require.NoError(t, verbs.EndPoll(r.ex))
}

// TestTagErrors: an invalid tag buffer or sender's key is reported, transfers no data, and moves the queue pairs to
// ERR.
func TestTagErrors(t *testing.T) {
	add := func(r *tagTestbed, change func(*ibv.SGE)) {
		sges := offHeap[ibv.SGE](r.testbed, 1)
		sges[0] = r.bufB.sge(0, 64)
		change(&sges[0])
		_, err := r.op(ibv.OpsWR{WRID: 10,
			TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: 10, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: 0xa,
				Mask: ^uint64(0)}}})
		require.NoError(t, err)
		r.poll(r.cq)
	}
	eager := func(r *tagTestbed) ibv.WC {
		*(*ibv.TMH)(unsafe.Pointer(&r.bufA.bytes[0])) = ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(0xa)}
		require.NoError(t, r.post(r.p.a, r.send(1, ibv.WR_SEND, r.bufA.sge(0, 16+64))))
		return r.poll(r.p.aSend)
	}
	t.Run("longer than the tag's buffer", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, func(s *ibv.SGE) { s.Length-- })
		assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, eager(r).Status)
		assert.Equal(t, ibv.WC_LOC_LEN_ERR, r.poll(r.cq).Status)
		assert.Equal(t, make([]byte, 64), r.bufB.bytes[:64])
	})
	t.Run("nonexistent key", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, func(s *ibv.SGE) { s.LKey ^= 0x55 })
		assert.Equal(t, ibv.WC_REM_OP_ERR, eager(r).Status)
		assert.Equal(t, ibv.WC_LOC_PROT_ERR, r.poll(r.cq).Status)
		assert.Equal(t, make([]byte, 64), r.bufB.bytes[:64])
	})
	t.Run("rendezvous with a nonexistent key", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		add(r, func(*ibv.SGE) {})
		rvh := ibv.RVH{VA: ibv.ToBE64(r.bufA.at(1024)), RKey: ibv.ToBE32(r.bufA.mr.RKey ^ 0x55), Len: ibv.ToBE32(8)}
		r.message(ibv.TMH_RNDV, 0xa, unsafe.Slice((*byte)(unsafe.Pointer(&rvh)), 16))
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, r.poll(r.cq).Status)
		assert.Equal(t, make([]byte, 64), r.bufB.bytes[:64])
		attr := new(ibv.QPAttr)
		require.NoError(t, verbs.QueryQP(r.p.a, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		assert.Equal(t, ibv.QPS_ERR, attr.QPState, "the sender rejected the read")
	})
	t.Run("operations after an invalid one are not executed", func(t *testing.T) {
		r := newTagTestbed(t, 4, 4)
		ops, bad := offHeap[ibv.OpsWR](r.testbed, 3), &offHeap[ibv.Ptr[ibv.OpsWR]](r.testbed, 1)[0]
		for i := range ops {
			ops[i] = ibv.OpsWR{WRID: uint64(i), Opcode: ibv.WR_TAG_SYNC, Flags: ibv.OPS_SIGNALED | ibv.OPS_TM_SYNC}
			if i > 0 {
				ops[i-1].Next = ibv.PtrTo(&ops[i])
			}
		}
		ops[1].Opcode = 77
		assert.ErrorIs(t, verbs.PostSRQOps(r.srq, &ops[0], bad), syscall.EINVAL)
		assert.Equal(t, ibv.PtrTo(&ops[1]), *bad)
		r.completed(t, 0, ibv.WC_TM_SYNC, 0, ibv.WC_SUCCESS)
		_, more := r.tryPoll(r.cq)
		assert.False(t, more)
	})
}
