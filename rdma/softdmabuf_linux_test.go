// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestExportedBuffer: regions registered by address and by dma-buf descriptor share memory.
func TestExportedBuffer(t *testing.T) {
	pd := softPD(t)
	a, b := newSoftPeer(t, pd, ibv.QPT_RC), newSoftPeer(t, pd, ibv.QPT_RC)
	connectSoft(t, a.qp, b.qp)
	buf, err := pd.AllocBuf(8192)
	buf = keep(t, buf, err)
	fd, err := buf.ExportDMABuf()
	require.NoError(t, err)
	mr, err := pd.RegDMABuf(fd, 4096+8, 64, 8, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	mr = keep(t, mr, err)
	require.NoError(t, syscall.Close(fd))
	copy(a.mr.Bytes(), "by descriptor")
	wc := a.post(func(s *SendBatch) { s.Write(1, mr.Address()+1, mr.RKey()).Add(a.mr.SGE(0, 13)).Signaled() })
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(t, "by descriptor", string(buf.Bytes()[4096+9:4096+22]))
	_, err = pd.RegDMABuf(-1, 0, 64, 0, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, err, syscall.EBADF)
}
