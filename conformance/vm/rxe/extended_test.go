// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// TestExtendedCompletions reads completions with the functions of an extended queue. Requested fields are present, and
// others return an error.
func TestExtendedCompletions(t *testing.T) {
	r := testbed.Open(t)
	ex, err := verbs.CreateCQEx(r.Context, &ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_STANDARD_FLAGS})
	require.NoError(t, err)
	p := &testbed.Pair{ASend: r.CQ(4), ARecv: r.CQ(4), BSend: r.CQ(4), BRecv: verbs.CQExToCQ(ex)}
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(p.BRecv)) })
	p.A, p.B = r.QP(ibv.QPT_RC, p.ASend, p.ARecv), r.QP(ibv.QPT_RC, p.BSend, p.BRecv)
	r.Connect(p.A, p.B)
	attr := new(ibv.PollCQAttr)
	assert.ErrorIs(t, verbs.StartPoll(ex, attr), unix.ENOENT, "no completion has arrived yet")

	b := r.Buffer(256, local)
	for i := range 2 {
		r.Recv(p.B, uint64(70+i), b.SGE(0, 64))
		l := r.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND_WITH_IMM, ibv.SEND_SIGNALED, b.SGE(128, 8+i)
		*l.WRs[0].ImmData() = ibv.ToBE32(0x01020304)
		_, err := l.Post(p.A)
		require.NoError(t, err)
		require.NoError(t, status(r.Completion(p.ASend)))
	}
	require.NoError(t, verbs.StartPoll(ex, attr))
	for i := range 2 {
		if i > 0 {
			require.NoError(t, verbs.NextPoll(ex))
		}
		assert.EqualValues(t, 70+i, ex.WRID)
		assert.Equal(t, ibv.WC_SUCCESS, ex.Status)
		length, err := verbs.WCReadByteLen(ex)
		has(t, 8+uint32(i), length, err)
		opcode, err := verbs.WCReadOpcode(ex)
		has(t, ibv.WC_RECV, opcode, err)
		flags, err := verbs.WCReadWCFlags(ex)
		has(t, ibv.WC_WITH_IMM, flags&^ibv.WC_GRH, err) // Soft-RoCE sets GRH in every receive
		imm, err := verbs.WCReadImmData(ex)
		has(t, ibv.ToBE32(0x01020304), imm, err)
		number, err := verbs.WCReadQPNum(ex)
		has(t, p.B.QPNum, number, err)
		_, err = verbs.WCReadSrcQP(ex)
		assert.NoError(t, err)
		lid, err := verbs.WCReadSLID(ex)
		has(t, 0, lid, err)
		sl, err := verbs.WCReadSL(ex)
		has(t, 0, sl, err)
		bits, err := verbs.WCReadDLIDPathBits(ex)
		has(t, 0, bits, err)
		vendor, err := verbs.WCReadVendorErr(ex)
		has(t, 0, vendor, err)
		_, err = verbs.WCReadInvalidatedRKey(ex) // it shares storage with imm_data
		assert.NoError(t, err)
	}
	assert.ErrorIs(t, verbs.NextPoll(ex), unix.ENOENT)
	for name, read := range map[string]func() error{
		"completion_ts":           func() error { _, err := verbs.WCReadCompletionTS(ex); return err },
		"completion_wallclock_ns": func() error { _, err := verbs.WCReadCompletionWallclockNs(ex); return err },
		"cvlan":                   func() error { _, err := verbs.WCReadCVLAN(ex); return err },
		"flow_tag":                func() error { _, err := verbs.WCReadFlowTag(ex); return err },
		"tm_info":                 func() error { return verbs.WCReadTMInfo(ex, new(ibv.WCTMInfo)) },
	} {
		assert.True(t, errors.Is(read(), runtime.ErrNotSupported), name)
	}
	require.NoError(t, verbs.EndPoll(ex))
}

// has checks that a field was read and has the expected value.
func has[T comparable](t *testing.T, want, got T, err error) {
	t.Helper()
	require.NoError(t, err)
	assert.Equal(t, want, got)
}
