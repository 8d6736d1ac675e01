// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestNoAtomics checks that on a device without atomics, libmlx5 and the data path in Go reject atomic operations when
// they are posted, and that the queue pair remains usable.
func TestNoAtomics(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, path := range []string{pathC, pathGo} {
			again(t, emulated(t), path, "GOVERBS_EMULATED_NO_ATOMICS=1")
		}
		return
	}
	device := openDevice(t)
	qp := toItself(t, device)
	mr, err := qp.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	keep(t, mr, err)
	for _, rejected := range []bool{true, false} {
		b, err := rdma.NewSendBatch(1, 1, 0)
		require.NoError(t, err)
		defer b.Close()
		if rejected {
			b.FetchAdd(1, mr.Address(), mr.RKey(), 1).Add(mr.SGE(0, 8)).Signaled()
		} else {
			b.Write(2, mr.Address(), mr.RKey()).Add(mr.SGE(0, 8)).Signaled()
		}
		_, err = qp.PostSend(b)
		if rejected {
			assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
		} else {
			assert.NoError(t, err)
		}
	}
	assert.EqualValues(t, 2, next(t, qp.SendCQ()).WRID)
}
