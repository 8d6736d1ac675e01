// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestDrainBeforeRTS drains and closes a queue pair that has receives but never reached RTS, like that of a rejected
// connection. libmlx5 accepts no sends on it, and therefore no markers.
func TestDrainBeforeRTS(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	device := openDevice(t)
	quick := false
	for i := 0; i < 5 && !quick; i++ { // a busy machine may be slow
		qp, err := device.NewRC(rdma.QPParts{})
		require.NoError(t, err)
		mr, err := qp.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
		require.NoError(t, err)
		require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1},
			ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
		receive(t, qp.PostRecv, mr.SGE(0, 10), mr.SGE(10, 10))
		require.NoError(t, qp.Drain(t.Context()))
		assert.Equal(t, 2, polledOf(t, qp.RecvCQ(), ibv.WC_WR_FLUSH_ERR))
		receive(t, qp.PostRecv, mr.SGE(0, 10))
		start := time.Now()
		require.NoError(t, qp.Close())
		quick = time.Since(start) < time.Second
	}
	assert.True(t, quick, "less than half of Close's timeout for a drain")
}

// polledOf counts a queue's completions with a status.
func polledOf(t *testing.T, cq *rdma.CQ, status ibv.WCStatus) (n int) {
	t.Helper()
	wcs := make([]ibv.WC, 16)
	k, err := cq.Poll(wcs)
	require.NoError(t, err)
	for _, wc := range wcs[:k] {
		assert.Equal(t, status, wc.Status)
		n++
	}
	return n
}
