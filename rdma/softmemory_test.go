// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestDeviceMemoryAndNullMR: work requests use device memory and a null region.
func TestDeviceMemoryAndNullMR(t *testing.T) {
	pd := softPD(t)
	a, b := newSoftPeer(t, pd, ibv.QPT_RC), newSoftPeer(t, pd, ibv.QPT_RC)
	connectSoft(t, a.qp, b.qp)
	dm, err := pd.Device().AllocDM(&ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	const access = ibv.ACCESS_ZERO_BASED | ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE
	mr, err := pd.RegDMMR(dm, 16, 32, access)
	require.NoError(t, err)
	null, err := pd.AllocNullMR()
	null = keep(t, null, err)

	copy(a.mr.Bytes(), "to the device")
	wc := a.post(func(s *SendBatch) { s.Write(1, mr.Address()+4, mr.RKey()).Add(a.mr.SGE(0, 13)).Signaled() })
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	got := make([]byte, 16)
	_, err = dm.ReadAt(got, 20)
	require.NoError(t, err)
	assert.Equal(t, "to the device", string(got[:13]))
	wc = a.post(func(s *SendBatch) { s.Write(2, mr.Address()+4, mr.RKey()).Add(null.SGE(0, 13)).Signaled() })
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	_, err = dm.ReadAt(got, 20)
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 13), got[:13])

	_, err = dm.WriteAt(make([]byte, 8), 60)
	assert.ErrorIs(t, err, io.ErrShortWrite)
	_, err = dm.ReadAt(got[:6], 20)
	assert.ErrorContains(t, err, "multiples of 4")
	assert.ErrorIs(t, dm.Close(), ErrInUse)
	require.NoError(t, mr.Close())
	require.NoError(t, dm.Close())
}

func TestAdviseMRAndVendorOptions(t *testing.T) {
	pd := softPD(t)
	mr, err := pd.RegMR(make([]byte, 4096), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_ON_DEMAND)
	mr = keep(t, mr, err)
	assert.NoError(t, pd.Advise(ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE, ibv.ADVISE_MR_FLAG_FLUSH,
		[]ibv.SGE{mr.SGE(0, 4096)}))
	assert.ErrorIs(t, pd.Advise(ibv.ADVISE_MR_ADVICE_PREFETCH, 0,
		[]ibv.SGE{{Addr: mr.Address() + 4000, Length: 100, LKey: mr.LKey()}}), syscall.EFAULT)
	e := newSoftPeer(t, pd, ibv.QPT_RC)
	_, err = e.qp.ECE()
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	ece := &ibv.ECE{VendorID: 1, Options: 1}
	require.NoError(t, e.qp.SetECE(ece))
	assert.Zero(t, ece.Options)
}
