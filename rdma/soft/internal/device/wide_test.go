// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// These tests check that 64-bit numbers are not truncated as arguments of functions and slots, and as results. make
// check-32 runs them with 32-bit registers.

// TestWideOperands posts with builders, using addresses and operands above 32 bits.
func TestWideOperands(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	x := s.extended(ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD | ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM |
		ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_ATOMIC_WRITE | ibv.QP_EX_WITH_FLUSH)
	far := func(device int, b *buffer) (*ibv.MR, uint64) {
		iova := 0x1234567800000000 | b.at(0)&0xfff
		mr, err := verbs.RegMRIOVA(s.pd[device], pointerTo(&b.bytes[0]), 4096, iova, allAccess)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeregMR(mr)) })
		return mr, iova
	}
	local, localAddr := far(0, s.bufA)
	mr, remoteAddr := far(1, s.bufB)
	word := func(b *buffer, at int) uint64 { return binary.NativeEndian.Uint64(b.bytes[at:]) }
	do := func(id uint64, build func() error) {
		t.Helper()
		require.NoError(t, verbs.WRStart(x))
		x.WRID, x.WRFlags = id, ibv.SEND_SIGNALED
		require.NoError(t, build())
		require.NoError(t, verbs.WRSetSGE(x, local.LKey, localAddr, 8))
		require.NoError(t, verbs.WRComplete(x))
		wc := s.poll(s.p.aSend)
		assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.Equal(t, id, wc.WRID)
	}
	const old, add, swap uint64 = 0x0102030405060708, 0x7000000100000002, 0xfedcba9876543210
	binary.NativeEndian.PutUint64(s.bufB.bytes, old)
	do(1<<63|1, func() error { return verbs.WRAtomicFetchAdd(x, mr.RKey, remoteAddr, add) })
	assert.Equal(t, old, word(s.bufA, 0))
	assert.Equal(t, old+add, word(s.bufB, 0))
	do(2, func() error { return verbs.WRAtomicCmpSwp(x, mr.RKey, remoteAddr, (old+add)&0xffffffff, 1) })
	assert.Equal(t, old+add, word(s.bufB, 0), "the upper half differs from the compared value")
	do(3, func() error { return verbs.WRAtomicCmpSwp(x, mr.RKey, remoteAddr, old+add, swap) })
	assert.Equal(t, old+add, word(s.bufA, 0))
	assert.Equal(t, swap, word(s.bufB, 0))
	do(4, func() error { return verbs.WRRDMARead(x, mr.RKey, remoteAddr) })
	assert.Equal(t, swap, word(s.bufA, 0))
	do(5, func() error { return verbs.WRRDMAWrite(x, mr.RKey, remoteAddr+8) })
	assert.Equal(t, swap, word(s.bufB, 8))
	s.recv(s.p.b, 7)
	do(6, func() error { return verbs.WRRDMAWriteImm(x, mr.RKey, remoteAddr+16, ibv.ToBE32(5)) })
	assert.Equal(t, swap, word(s.bufB, 16))

	require.NoError(t, verbs.WRStart(x))
	x.WRFlags = ibv.SEND_SIGNALED
	value := []byte("12345678")
	require.NoError(t, verbs.WRAtomicWrite(x, mr.RKey, remoteAddr+24, pointerTo(&value[0])))
	require.NoError(t, verbs.WRFlush(x, mr.RKey, remoteAddr, 32, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
	require.NoError(t, verbs.WRFlush(x, mr.RKey, remoteAddr, 1<<32|32, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
	require.NoError(t, verbs.WRComplete(x))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_SUCCESS, ibv.WC_REM_ACCESS_ERR}, s.statuses(s.p.aSend),
		"the last range is longer than the region")
	assert.Equal(t, value, s.bufB.bytes[24:32])
}

// TestWideSizes: sizes above 32 bits are not truncated to their lower half.
func TestWideSizes(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	const more = 1 << 62
	at := pointerTo(&s.bufA.bytes[0])
	_, err := verbs.RegMR(s.pd[0], at, more|64, allAccess)
	assert.Error(t, err)
	_, err = verbs.RegMRIOVA(s.pd[0], at, more|64, uint64(at), allAccess)
	assert.Error(t, err)
	code, err := verbs.ReregMR(s.bufA.mr, ibv.REREG_MR_CHANGE_TRANSLATION, nil, at, more|64, 0)
	assert.Error(t, err)
	assert.NotZero(t, code)

	dm, err := verbs.AllocDM(s.context[0], &ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.FreeDM(dm)) })
	assert.Error(t, verbs.MemcpyToDM(dm, more, at, 8))
	assert.Error(t, verbs.MemcpyToDM(dm, 0, at, more|8))
	assert.Error(t, verbs.MemcpyFromDM(at, dm, more, 8))
	assert.Error(t, verbs.MemcpyFromDM(at, dm, 0, more|8))
	_, err = verbs.RegDMMR(s.pd[0], dm, more, 8, ibv.ACCESS_ZERO_BASED)
	assert.Error(t, err)
	_, err = verbs.RegDMMR(s.pd[0], dm, 0, more|8, ibv.ACCESS_ZERO_BASED)
	assert.Error(t, err)

	x := s.extended(ibv.QP_EX_WITH_SEND)
	for name, set := range map[string]func() error{
		"inline":      func() error { return verbs.WRSetInlineData(x, at, more|8) },
		"inline list": func() error { return verbs.WRSetInlineDataList(x, more|1, &ibv.DataBuf{}) },
		"SGE list":    func() error { return verbs.WRSetSGEList(x, more|1, &ibv.SGE{}) },
	} {
		require.NoError(t, verbs.WRStart(x))
		require.NoError(t, verbs.WRSend(x))
		require.NoError(t, set())
		assert.Error(t, verbs.WRComplete(x), name)
	}
}

// TestWideResults: results, and an argument that is returned by an event, are not truncated.
func TestWideResults(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	guid, err := verbs.GetDeviceGUID(s.context[0].Device.Deref())
	require.NoError(t, err)
	assert.Equal(t, s.fabric.devices[0].GUID, guid.Host())

	cq, err := verbs.CreateCQEx(s.context[0],
		&ibv.CQInitAttrEx{CQE: 4, WCFlags: ibv.WC_EX_WITH_COMPLETION_TIMESTAMP |
			ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK})
	require.NoError(t, err)
	plain := (*ibv.CQ)(unsafe.Pointer(cq))
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(plain)) })
	qp := s.qp(0, ibv.QPT_RC, testCaps, plain, s.p.aRecv)
	s.connect(qp, 1, s.p.b.QPNum)
	require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	const passed = 100 * time.Second // in nanoseconds, more than 32 bits
	s.fabric.Advance(passed)
	require.NoError(t, s.post(qp, s.send(1, ibv.WR_SEND)))
	require.NoError(t, verbs.StartPoll(cq, &ibv.PollCQAttr{}))
	for _, read := range []func(*ibv.CQEx) (uint64, error){verbs.WCReadCompletionTS,
		verbs.WCReadCompletionWallclockNs} {
		at, err := read(cq)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, at, uint64(passed))
	}
	require.NoError(t, verbs.EndPoll(cq))
}
