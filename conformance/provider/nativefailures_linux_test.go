// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/provider/kernel"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/rdma/native"
)

// failingKernel is a kernel of which one ioctl or mapping fails.
type failingKernel struct {
	native.Kernel
	calls, fails int
	mapped       int
	open         map[int32]bool // device files
}

func (k *failingKernel) fail() bool {
	k.calls++
	return k.calls == k.fails
}

func (k *failingKernel) Open(path string) (int32, syscall.Errno) {
	fd, errno := k.Kernel.Open(path)
	if errno == 0 {
		k.open[fd] = true
	}
	return fd, errno
}

func (k *failingKernel) Close(fd int32) syscall.Errno {
	delete(k.open, fd)
	return k.Kernel.Close(fd)
}

func (k *failingKernel) Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno {
	if k.fail() {
		return syscall.ENOSPC
	}
	return k.Kernel.Ioctl(fd, request, command)
}

func (k *failingKernel) Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno) {
	if k.fail() {
		return nil, syscall.ENOSPC
	}
	b, errno := k.Kernel.Mmap(fd, offset, length)
	if errno == 0 {
		k.mapped++
	}
	return b, errno
}

func (k *failingKernel) Munmap(b []byte) syscall.Errno {
	k.mapped--
	return k.Kernel.Munmap(b)
}

// TestNativeFailedCalls makes each call of a session with dynamic connections and raw packets fail once. The session
// returns the error, everything can be closed, and nothing remains mapped or open.
func TestNativeFailedCalls(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		return
	}
	own, err := kernel.Open()
	require.NoError(t, err)
	k := &failingKernel{Kernel: own, open: map[int32]bool{}}
	b, err := native.New(k)
	require.NoError(t, err)
	failed := 0
	for fails := 1; ; fails++ {
		k.calls, k.fails = 0, fails
		s := &failingSession{b: b}
		err := s.run()
		s.close(t)
		assert.Zero(t, k.mapped, "mappings after call %d failed", fails)
		assert.Empty(t, k.open, "files after call %d failed", fails)
		if err != nil {
			failed++
		}
		if k.calls < fails {
			require.NoError(t, err)
			break
		}
	}
	assert.Greater(t, failed, 20)
}

type failingSession struct {
	b    *native.Backend
	open []interface{ Close() error }
}

// close closes all objects, the last one first. A close that failed is repeated.
func (s *failingSession) close(t *testing.T) {
	for _, o := range slices.Backward(s.open) {
		if err := o.Close(); err != nil {
			assert.ErrorIs(t, err, syscall.ENOSPC)
			assert.NoError(t, o.Close())
		}
	}
}

// added adds an object to a session.
func added[T interface{ Close() error }](s *failingSession, o T, err error) (T, error) {
	if err == nil {
		s.open = append(s.open, o)
	}
	return o, err
}

func (s *failingSession) run() error {
	d, err := rdma.OpenOn(s.b, Device)
	if d, err = added(s, d, err); err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if pd, err = added(s, pd, err); err != nil {
		return err
	}
	cq, err := d.CreateCQ(64, nil, 0)
	if cq, err = added(s, cq, err); err != nil {
		return err
	}
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	if srq, err = added(s, srq, err); err != nil {
		return err
	}
	attr := &ibv.QPAttr{PortNum: 1, PathMTU: ibv.MTU_1024, AHAttr: ibv.AHAttr{IsGlobal: 1, PortNum: 1}}
	attr.AHAttr.GRH.SGIDIndex = 1
	steps := func(qp *rdma.QP, masks ...ibv.QPAttrMask) error {
		for i, mask := range masks {
			attr.QPState = ibv.QPS_INIT + ibv.QPState(i)
			if err := qp.Modify(attr, ibv.QP_STATE|mask); err != nil {
				return err
			}
		}
		return nil
	}
	init := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC, DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCT}}
	dct, err := mlx5.CreateQP(d, init, dv, rdma.QueueOptions{})
	if dct, err = added(s, dct, err); err != nil {
		return err
	}
	if err := steps(dct, ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS,
		ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU); err != nil {
		return err
	}
	dv.DCInitAttr.DCType = mlx5dv.DCTYPE_DCI
	init.SRQ, init.Cap = 0, ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}
	init.CompMask, init.SendOpsFlags = ibv.QP_INIT_ATTR_PD|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, ibv.QP_EX_WITH_SEND
	dci, err := mlx5.CreateQP(d, init, dv, rdma.QueueOptions{})
	if dci, err = added(s, dci, err); err != nil {
		return err
	}
	if err := steps(dci, ibv.QP_PKEY_INDEX|ibv.QP_PORT, ibv.QP_PATH_MTU); err != nil {
		return err
	}
	if _, err := dci.NewWRProgram(); err != nil {
		return err
	}
	raw := &ibv.QPInitAttrEx{QPType: ibv.QPT_RAW_PACKET, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}, MaxTSOHeader: 64,
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_MAX_TSO_HEADER | ibv.QP_INIT_ATTR_CREATE_FLAGS}
	packets, err := d.CreateQPEx(raw, rdma.QueueOptions{})
	if packets, err = added(s, packets, err); err != nil {
		return err
	}
	return steps(packets, ibv.QP_PORT, 0, 0)
}
