// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestReregZeroBased: a zero-based region stays zero-based after its memory is changed.
func TestReregZeroBased(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	first, second := offHeap[byte](s.testbed, 64), offHeap[byte](s.testbed, 128)
	mr, err := verbs.RegMR(s.pd[1], pointerTo(&first[0]), 64, allAccess|ibv.ACCESS_ZERO_BASED)
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
	_, err = verbs.ReregMR(mr, ibv.REREG_MR_CHANGE_TRANSLATION, nil, pointerTo(&second[0]), 128, 0)
	require.NoError(t, err)
	copy(s.bufA.bytes, "again")
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 5))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 100, RKey: mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, "again", string(second[100:105]))
}

// TestConcurrentRereg: after concurrent calls of ibv_rereg_mr, the region has the attributes of one of them.
func TestConcurrentRereg(t *testing.T) {
	r := newTestbed(t, Options{})
	b := r.buffer(0, 64, allAccess)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 100 {
				if _, err := verbs.ReregMR(b.mr, ibv.REREG_MR_CHANGE_TRANSLATION, nil, pointerTo(&b.bytes[0]),
					uint64(16+i), 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	assert.Contains(t, []uint64{16, 17, 18, 19}, impl.Find[impl.Region](mem.AddressOf(b.mr)).Length)
}

// TestReregWithBoundWindow: ibv_rereg_mr of a region with a bound window changes neither the region nor the access
// through the window.
func TestReregWithBoundWindow(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	s.bufB = s.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
	w := s.window(ibv.MW_TYPE_1)
	bind := func(length uint64) {
		require.NoError(t, verbs.BindMW(s.p.b, w, &ibv.MWBind{SendFlags: ibv.SEND_SIGNALED, BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(s.bufB.mr), Addr: s.bufB.at(0), Length: length, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
		}}))
		require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bSend).Status)
	}
	again := func() (ibv.ReregMRErrCode, error) {
		code, err := verbs.ReregMR(s.bufB.mr, ibv.REREG_MR_CHANGE_TRANSLATION, nil, pointerTo(&s.bufB.bytes[0]), 64,
			0)
		return ibv.ReregMRErrCode(code), err
	}
	bind(4096)
	code, err := again()
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.Equal(t, ibv.REREG_MR_ERR_CMD, code)
	assert.EqualValues(t, 4096, s.bufB.mr.Length)
	assert.Equal(t, ibv.WC_SUCCESS, s.write(s.p, 4088, w.RKey))
	bind(0)
	_, err = again()
	assert.NoError(t, err)
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.p, 64, s.bufB.mr.RKey))
	require.NoError(t, verbs.DeallocMW(w))
}
