// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// TestSharedRegister checks that a queue pair of the data path in Go writes only 8 bytes to its doorbell register, not
// a complete request, if it shares the register with a queue pair to which C posts. The order of creation does not
// matter.
func TestSharedRegister(t *testing.T) {
	if !insideReleases(t, pathC) {
		return
	}
	device := openDevice(t)
	path, err := mlx5.NewPath(device)
	require.NoError(t, err)
	const many = 40 // more than libmlx5 has registers; it assigns them round-robin
	isNative := func(i int) bool { return i%5 == 0 }
	var all []*rdma.QP
	for i := range many {
		o := rdma.QueueOptions{}
		if isNative(i) {
			o.Path = path
		}
		qp, err := device.NewUC(rdma.QPParts{Options: o, Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxInlineData: 16,
			MaxRecvWR: 1, MaxRecvSGE: 1}})
		keep(t, qp, err)
		peer, err := qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, qp.Connect(peer))
		all = append(all, qp)
	}
	inC := map[uintptr]bool{}
	for i, qp := range all {
		if !isNative(i) {
			inC[registerOf(t, qp).Reg] = true
		}
	}
	complete := map[bool]int{}
	for i, qp := range all {
		if !isNative(i) {
			continue
		}
		bf := registerOf(t, qp)
		at := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&bf.Reg))), max(8, 2*bf.Size))
		clear(at)
		send(t, qp, func(b *rdma.SendBatch) { b.Send(1).Inline([]byte("0123456789abcdef")).Signaled() })
		next(t, qp.SendCQ()) // the device cleared only the doorbell
		written := 0
		for _, b := range at {
			if b != 0 {
				written++
			}
		}
		shared := inC[bf.Reg]
		if shared || bf.Size == 0 { // such a register accepts only 8 bytes
			assert.LessOrEqual(t, written, 8, "queue pair %d of %v", i, bf)
		} else {
			assert.Greater(t, written, 16, "queue pair %d of %v", i, bf)
		}
		complete[shared]++
	}
	assert.NotZero(t, complete[true], "none shares a register with one of C's")
	assert.NotZero(t, complete[false], "all share a register with one of C's")
}

func registerOf(t *testing.T, qp *rdma.QP) mlx5dv.QPBF {
	t.Helper()
	out := new(mlx5dv.QP)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: qp.Ptr(), Out: ibv.PtrTo(out)}}
	require.NoError(t, libmlx5.InitObj(obj, mlx5dv.OBJ_QP))
	return out.BF
}
