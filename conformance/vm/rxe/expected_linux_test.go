// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// TestExpectedByPrograms tests behavior that programs and test suites of other projects expect, and that the software
// device lacked at first. If Soft-RoCE implements the verb, it must behave the same; otherwise it must report
// ErrNotSupported.
func TestExpectedByPrograms(t *testing.T) {
	r := testbed.Open(t)
	answers := func(want string, call func(*testbed.Testbed) error) func(*testing.T) {
		return func(t *testing.T) { assert.Equal(t, want, answer(call(r.For(t)))) }
	}
	t.Run("a queue pair accepts ON_DEMAND access", answers("0", queueAccess(remote|ibv.ACCESS_ON_DEMAND)))
	t.Run("a window is bound with local write", answers("0", windowed(func(w *windows) error {
		mw := w.window(ibv.MW_TYPE_1)
		w.Check(w.bind(mw, w.there, 0, bufferLen, window|local))
		return w.write(mw.RKey)
	})))
	t.Run("a device has a vendor", func(t *testing.T) {
		attr := new(ibv.DeviceAttr)
		require.NoError(t, verbs.QueryDevice(r.Context, attr))
		assert.NotZero(t, attr.VendorID)
	})
	t.Run("a device closes before its objects",
		answers("0", func(*testbed.Testbed) error { return alone("^TestCloseWithObjects$") }))
	t.Run("completions stay when their queue pair is reset", answers("1 completions",
		unpolled(func(qp *ibv.QP) error {
			if err := verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE); err != nil {
				return err
			}
			return verbs.DestroyQP(qp)
		})))
	t.Run("device memory is copied in words, and a region of it may be empty", func(t *testing.T) {
		expectDeviceMemory(t, r.For(t))
	})
	t.Run("the data of a rendezvous has no tag", func(t *testing.T) { expectRendezvous(t, r.For(t)) })
	t.Run("a context is imported by its descriptor", func(t *testing.T) { expectImport(t, r.For(t)) })
}

// lacks reports whether an error means that the device does not support a verb. The software device supports all verbs
// used here.
func lacks(t *testing.T, err error) bool {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft {
		require.NoError(t, err)
		return false
	}
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	return true
}

func expectDeviceMemory(t *testing.T, r *testbed.Testbed) {
	dm, err := verbs.AllocDM(r.Context, &ibv.AllocDMAttr{Length: 64})
	if lacks(t, err) {
		return
	}
	r.Defer(func() { r.Check(verbs.FreeDM(dm)) })
	here := r.Memory(64)
	at := address(&here[0])
	copy(here, "in words")
	require.NoError(t, verbs.MemcpyToDM(dm, 4, at, 8))
	require.NoError(t, verbs.MemcpyFromDM(at+32, dm, 4, 8))
	assert.Equal(t, "in words", string(here[32:40]))
	for _, part := range [][2]uint64{{2, 4}, {4, 2}, {1, 1}} {
		assert.ErrorIs(t, verbs.MemcpyToDM(dm, part[0], at, part[1]), unix.EINVAL, "%d", part)
		assert.ErrorIs(t, verbs.MemcpyFromDM(at, dm, part[0], part[1]), unix.EINVAL, "%d", part)
	}
	mr, err := verbs.RegDMMR(r.PD, dm, 0, 0, local|ibv.ACCESS_ZERO_BASED)
	require.NoError(t, err, "a region of no bytes")
	require.NoError(t, verbs.DeregMR(mr))
}

// expectRendezvous sends a message that announces data, which the receiver fetches, and reads the completions.
func expectRendezvous(t *testing.T, r *testbed.Testbed) {
	sends, recvs := r.CQ(16), r.CQ(16)
	ex, err := verbs.CreateCQEx(r.Context, &ibv.CQInitAttrEx{CQE: 64, WCFlags: ibv.WC_EX_WITH_TM_INFO})
	if lacks(t, err) {
		return
	}
	cq := verbs.CQExToCQ(ex)
	r.Defer(func() { r.Check(verbs.DestroyCQ(cq)) })
	srq, err := verbs.CreateSRQEx(r.Context, &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.PD), CQ: ibv.PtrTo(cq),
		TMCap:    ibv.TMCap{MaxNumTags: 4, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	})
	if lacks(t, err) {
		return
	}
	r.Defer(func() { r.Check(verbs.DestroySRQ(srq)) })
	a, b := r.QP(ibv.QPT_RC, sends, recvs), r.SharingQP(ibv.QPT_RC, r.CQ(16), srq)
	r.Connect(a, b)
	local, there := r.Buffer(bufferLen, remote), r.Buffer(bufferLen, remote)

	sges, ops := testbed.Records[ibv.SGE](r, 1), testbed.Records[ibv.OpsWR](r, 1)
	sges[0] = there.SGE(0, 64)
	ops[0] = ibv.OpsWR{WRID: 5, Flags: ibv.OPS_SIGNALED, TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: 6,
		SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: 9, Mask: ^uint64(0)}}}
	require.NoError(t, verbs.PostSRQOps(srq, &ops[0], &testbed.Records[ibv.Ptr[ibv.OpsWR]](r, 1)[0]))
	r.Recv(a, 8, local.SGE(256, 64)) // for the receiver's FIN, after it has the data

	copy(local.Bytes[512:], "announced")
	*(*ibv.TMH)(unsafe.Pointer(&local.Bytes[0])) = ibv.TMH{Opcode: ibv.TMH_RNDV, AppCtx: ibv.ToBE32(99),
		Tag: ibv.ToBE64(9)}
	*(*ibv.RVH)(unsafe.Pointer(&local.Bytes[16])) = ibv.RVH{VA: ibv.ToBE64(local.Address(512)),
		RKey: ibv.ToBE32(local.MR.RKey), Len: ibv.ToBE32(9)}
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND, ibv.SEND_SIGNALED, local.SGE(0, 32)
	_, err = l.Post(a)
	require.NoError(t, err)
	require.NoError(t, status(r.Completion(sends)))
	require.NoError(t, status(r.Completion(recvs)), "the data has arrived")
	assert.Equal(t, "announced", string(there.Bytes[:9]))

	require.NoError(t, verbs.StartPoll(ex, new(ibv.PollCQAttr)))
	require.EqualValues(t, 5, ex.WRID, "the tag was added")
	for _, want := range []struct {
		name  string
		flags ibv.WCFlags
		info  ibv.WCTMInfo
	}{
		{"the message that announces has a tag", ibv.WC_TM_MATCH, ibv.WCTMInfo{Tag: 9, Priv: 99}},
		{"the data has none", ibv.WC_TM_DATA_VALID, ibv.WCTMInfo{}},
	} {
		require.NoError(t, verbs.NextPoll(ex), want.name)
		require.EqualValues(t, 6, ex.WRID, want.name)
		flags, err := verbs.WCReadWCFlags(ex)
		has(t, want.flags, flags, err)
		info := &ibv.WCTMInfo{Tag: 77, Priv: 77}
		require.NoError(t, verbs.WCReadTMInfo(ex, info))
		assert.Equal(t, want.info, *info, want.name)
	}
	assert.ErrorIs(t, verbs.NextPoll(ex), unix.ENOENT)
	require.NoError(t, verbs.EndPoll(ex))
}

// expectImport checks that a second context, imported from the descriptor of the first one, can import its objects by
// handle.
func expectImport(t *testing.T, r *testbed.Testbed) {
	assert.GreaterOrEqual(t, r.Context.CmdFD, int32(0), "a descriptor")
	fd, err := unix.Dup(int(r.Context.CmdFD))
	require.NoError(t, err)
	context, err := served(r).ImportDevice(fd)
	if lacks(t, err) {
		require.NoError(t, unix.Close(fd))
		return
	}
	r.Defer(func() { r.Check(verbs.CloseDevice(context)) })
	pd, err := verbs.ImportPD(context, r.PD.Handle)
	require.NoError(t, err)
	defer verbs.UnimportPD(pd)
	b := r.Buffer(64, remote)
	mr, err := verbs.ImportMR(pd, b.MR.Handle)
	require.NoError(t, err)
	defer verbs.UnimportMR(mr)
	assert.Equal(t, [2]uint32{b.MR.LKey, b.MR.RKey}, [2]uint32{mr.LKey, mr.RKey})
}
