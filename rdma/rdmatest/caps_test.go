// SPDX-License-Identifier: BSD-2-Clause

package rdmatest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestExactCaps: on a fabric of NewFabric, a queue pair rejects more inline data than requested. On others, inline data
// may use the space of entries.
func TestExactCaps(t *testing.T) {
	plain, err := soft.New(soft.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plain.Close()) })
	exact := rdmatest.NewFabric(t, soft.Options{})
	for fabric, room := range map[*soft.Fabric]uint32{plain: 32, exact: 0} {
		for _, requested := range []uint32{0, 20, 50} {
			device, err := rdma.OpenOn(fabric, "soft0")
			require.NoError(t, err)
			qp, err := device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2,
				MaxRecvSGE: 1, MaxInlineData: requested}})
			require.NoError(t, err)
			assert.Equal(t, max(requested, room), qp.Cap().MaxInlineData)
			local, err := qp.Endpoint()
			require.NoError(t, err)
			require.NoError(t, qp.Connect(local))
			mr, err := qp.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
			require.NoError(t, err)
			b, err := rdma.NewSendBatch(1, 1, 64)
			require.NoError(t, err)
			for _, n := range []uint32{max(requested, room), max(requested, room) + 1} {
				b.Reset()
				b.Write(1, mr.Address(), mr.RKey()).Inline(make([]byte, n)).Signaled()
				_, err = qp.PostSend(b)
				assert.Equal(t, n <= max(requested, room), err == nil, "%d bytes inline: %v", n, err)
			}
			require.NoError(t, b.Close())
			require.NoError(t, qp.Close())
			require.NoError(t, device.Close())
		}
	}
}
