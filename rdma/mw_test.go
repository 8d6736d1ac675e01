// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// write writes 4 bytes to the start of the peer's memory with a remote key.
func write(a, b *softPeer, rkey uint32) ibv.WCStatus {
	return a.post(func(s *SendBatch) { s.Write(1, b.mr.Address(), rkey).Add(a.mr.SGE(0, 4)).Signaled() }).Status
}

func TestType1Window(t *testing.T) {
	pd := softPD(t)
	a, b := newSoftPeer(t, pd, ibv.QPT_RC), newSoftPeer(t, pd, ibv.QPT_RC)
	connectSoft(t, a.qp, b.qp)
	mw, err := pd.AllocMW(ibv.MW_TYPE_1)
	require.NoError(t, err)
	bind := &ibv.MWBind{WRID: 3, SendFlags: ibv.SEND_SIGNALED,
		BindInfo: ibv.MWBindInfo{MR: b.mr.Ptr(), Addr: b.mr.Address(), Length: 8,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}

	before := mw.RKey()
	require.NoError(t, b.qp.BindMW(mw, bind))
	wc := b.completion()
	assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(t, ibv.WC_BIND_MW, wc.Opcode)
	assert.NotEqual(t, before, mw.RKey(), "the key has changed")
	copy(a.mr.Bytes(), "ping")
	assert.Equal(t, ibv.WC_SUCCESS, write(a, b, mw.RKey()))
	assert.Equal(t, "ping", string(b.mr.Bytes()[:4]))
	assert.ErrorIs(t, b.mr.Close(), syscall.EBUSY, "a window is bound to the region")
	assert.Equal(t, 8, b.qp.SendQueue().Free(), "the slot is free again")

	for _, refused := range []struct {
		change func(b *ibv.MWBind)
		reason string
	}{
		{func(w *ibv.MWBind) { w.BindInfo.Length = 4097 }, "4097 bytes at "},
		{func(w *ibv.MWBind) { w.BindInfo.Addr-- }, "are not inside MR "},
		{func(w *ibv.MWBind) { w.BindInfo.MR = 0 }, "has an address or a length, but no memory region"},
		{func(w *ibv.MWBind) { w.BindInfo.MR += 8 }, "bind_info.mr is not an open object of soft0"},
		{func(w *ibv.MWBind) { w.BindInfo.MWAccessFlags = ibv.ACCESS_LOCAL_WRITE }, "IBV_ACCESS_LOCAL_WRITE"},
	} {
		own := *bind
		refused.change(&own)
		err := b.qp.BindMW(mw, &own)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, refused.reason)
	}
	key := mw.RKey()
	require.NoError(t, mw.Close())
	require.NoError(t, mw.Close())
	assert.ErrorIs(t, b.qp.BindMW(mw, bind), ErrClosed)
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, write(a, b, key), "the key is no longer valid")
}

func TestType2Window(t *testing.T) {
	pd := softPD(t)
	a, b := newSoftPeer(t, pd, ibv.QPT_RC), newSoftPeer(t, pd, ibv.QPT_RC)
	connectSoft(t, a.qp, b.qp)
	mw, err := pd.AllocMW(ibv.MW_TYPE_2)
	mw = keep(t, mw, err)
	info := ibv.MWBindInfo{MR: b.mr.Ptr(), Addr: b.mr.Address(), Length: 8, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}
	err = b.qp.BindMW(mw, &ibv.MWBind{BindInfo: info})
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "IBV_MW_TYPE_2", "ibv_bind_mw is only for type 1")

	old := mw.RKey()
	key := mw.NextRKey()
	assert.Equal(t, old>>8, key>>8)
	assert.Equal(t, uint8(old+1), uint8(key))
	assert.Equal(t, old, mw.RKey(), "providers read the key while the bind is posted")
	assert.Equal(t, ibv.WC_SUCCESS, b.post(func(s *SendBatch) { s.BindMW(7, mw.Ptr(), key, info).Signaled() }).Status)
	mw.SetRKey(key)
	assert.Equal(t, key, mw.RKey())
	assert.Equal(t, ibv.WC_SUCCESS, write(a, b, key))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, write(a, b, old))
}
