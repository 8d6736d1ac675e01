// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package siw

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// kernel is the kernel's side of queues, which it maps by their keys.
type kernel struct {
	memory map[int64][]uint64
	mapped int
	fails  int // the call of mmap that fails, from 1
	rings  int // of doorbells
	errno  syscall.Errno
}

func (k *kernel) Ioctl(int32, uintptr, unsafe.Pointer) syscall.Errno {
	k.rings++
	return k.errno
}

func (k *kernel) Mmap(_ int32, offset int64, length int) ([]byte, syscall.Errno) {
	if k.fails--; k.fails == 0 {
		return nil, syscall.EAGAIN
	}
	words := make([]uint64, (length+7)/8)
	k.memory[offset] = words
	k.mapped++
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), length), 0
}

func (k *kernel) Munmap([]byte) syscall.Errno {
	k.mapped--
	return 0
}

func at[T any](k *kernel, key int64, i int) *T {
	return &unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(k.memory[key]))), i+1)[i]
}

type backend struct{}

func (backend) Function(string, string) runtime.Func { return nil }

func newDevice(t *testing.T) (*kernel, *device) {
	space, err := runtime.NewSpace(backend{})
	require.NoError(t, err)
	k := &kernel{memory: map[int64][]uint64{}}
	f := &driver.File{Kernel: k, Commands: &driver.Commands{Space: space}}
	c, errno := Open(f, func(_, out []byte) syscall.Errno {
		assert.Len(t, out, int(unsafe.Sizeof(uapi.SIWUrespAllocCtx{})))
		return 0
	})
	require.Zero(t, errno)
	return k, c.(*device)
}

// answers returns a command that the kernel answers with a structure.
func answers[T any](own T) driver.Command {
	return func(_, out []byte) syscall.Errno {
		*(*T)(unsafe.Pointer(unsafe.SliceData(out))) = own
		return 0
	}
}

const cqKey, sqKey, rqKey = 0x1000, 0x2000, 0x3000

func newQP(t *testing.T, d *device) *queuePair {
	q, errno := d.CreateQP(&uapi.IBUverbsCreateQP{}, &uapi.IBUverbsCreateQPResp{QPHandle: 9, MaxSendSGE: 2, MaxRecvSGE: 2,
		MaxRecvWR: 2}, answers(uapi.SIWUrespCreateQP{NumSQE: 2, NumRQE: 2, SQKey: sqKey, RQKey: rqKey}))
	require.Zero(t, errno)
	t.Cleanup(q.Free)
	path, errno := q.Path(nil, ibv.QPCap{}, false)
	require.Zero(t, errno)
	return path.(*queuePair)
}

// TestSends: requests are translated, a full queue rejects more until the kernel has cleared an element, and what iWARP
// lacks is rejected.
func TestSends(t *testing.T) {
	k, d := newDevice(t)
	q := newQP(t, d)
	sges := []ibv.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}
	wr := &ibv.SendWR{WRID: 7, SGList: ibv.PtrTo(&sges[0]), NumSGE: 2, Opcode: ibv.WR_RDMA_WRITE,
		SendFlags: ibv.SEND_SIGNALED | ibv.SEND_FENCE}
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 8, RKey: 9}
	var bad ibv.Ptr[ibv.SendWR]
	post := func() syscall.Errno { return syscall.Errno(q.PostSend(nil, wr, &bad)) }
	require.Zero(t, post())
	assert.Equal(t, 1, k.rings)
	e := at[uapi.SIWSQE](k, sqKey, 0)
	assert.EqualValues(t, 7, e.ID)
	assert.Equal(t, uapi.SIW_WQE_VALID|uapi.SIW_WQE_SIGNALLED|uapi.SIW_WQE_READ_FENCE, e.Flags)
	assert.Equal(t, uapi.SIW_OP_WRITE, e.Opcode)
	assert.EqualValues(t, 2, e.NumSGE)
	assert.EqualValues(t, 8, *e.RAddr())
	assert.EqualValues(t, 9, e.RKey)
	assert.Equal(t, uapi.SIWSGE{Laddr: 4, Length: 5, LKey: 6}, e.SGE()[1])

	require.Zero(t, post())
	assert.Equal(t, syscall.ENOMEM, post())
	assert.Equal(t, ibv.PtrTo(wr), bad)
	e.Flags = 0
	data := []byte("inline")
	sges[0] = ibv.SGE{Addr: uint64(uintptr(unsafe.Pointer(&data[0]))), Length: uint32(len(data))}
	wr.NumSGE, wr.Opcode, wr.SendFlags = 1, ibv.WR_SEND, ibv.SEND_INLINE
	require.Zero(t, post())
	assert.Equal(t, uapi.SIW_WQE_VALID|uapi.SIW_WQE_INLINE, e.Flags)
	assert.EqualValues(t, len(data), e.SGE()[0].Length)
	assert.Equal(t, data, unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE()[1])), len(data)))

	at[uapi.SIWSQE](k, sqKey, 1).Flags = 0
	large := make([]byte, uapi.SIW_MAX_INLINE+1)
	sges[0] = ibv.SGE{Addr: uint64(uintptr(unsafe.Pointer(&large[0]))), Length: uint32(len(large))}
	assert.Equal(t, syscall.EINVAL, post(), "too much inline data")
	wr.SendFlags, wr.NumSGE = 0, 3
	assert.Equal(t, syscall.EINVAL, post(), "too many entries")
	wr.NumSGE = 1
	for _, op := range []ibv.WROpcode{ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_ATOMIC_FETCH_AND_ADD,
		ibv.WR_BIND_MW, ibv.WR_LOCAL_INV, 99} {
		wr.Opcode = op
		assert.Equal(t, syscall.EINVAL, post(), "%v", op)
	}
	wr.Opcode, k.errno = ibv.WR_SEND, syscall.ENOTCONN
	assert.Equal(t, syscall.ENOTCONN, post())
}

// TestReceives: receives fill the queue until the kernel has used one.
func TestReceives(t *testing.T) {
	k, d := newDevice(t)
	q := newQP(t, d)
	sge := []ibv.SGE{{Addr: 1, Length: 2, LKey: 3}}
	wr := &ibv.RecvWR{WRID: 5, SGList: ibv.PtrTo(&sge[0]), NumSGE: 1}
	var bad ibv.Ptr[ibv.RecvWR]
	post := func() syscall.Errno { return syscall.Errno(q.PostRecv(nil, wr, &bad)) }
	require.Zero(t, post())
	require.Zero(t, post())
	assert.Equal(t, syscall.ENOMEM, post())
	e := at[uapi.SIWRQE](k, rqKey, 0)
	assert.EqualValues(t, 5, e.ID)
	assert.Equal(t, uapi.SIW_WQE_VALID, e.Flags)
	assert.EqualValues(t, 1, e.NumSGE)
	assert.Equal(t, uapi.SIWSGE{Laddr: 1, Length: 2, LKey: 3}, e.SGE[0])
	e.Flags = 0
	require.Zero(t, post())
	wr.NumSGE = 0
	at[uapi.SIWRQE](k, rqKey, 1).Flags = 0
	assert.Equal(t, syscall.EINVAL, post())
}

// TestCompletions: completions are translated in order and their elements returned to the kernel; undefined values
// are errors. Arming stores the request behind the ring.
func TestCompletions(t *testing.T) {
	k, d := newDevice(t)
	created, errno := d.CreateCQ(nil, nil, answers(uapi.SIWUrespCreateCQ{NumCQE: 2, CQKey: cqKey}))
	require.Zero(t, errno)
	q := created.(*completionQueue)
	var wcs [4]ibv.WC
	require.Zero(t, q.Poll(nil, wcs[:]))
	complete := func(i int, id uint64, op uapi.SIWOpcode, status uapi.SIWWCStatus, flags uapi.SIWWQEFlags) {
		e := at[uapi.SIWCQE](k, cqKey, i)
		e.ID, e.Opcode, e.Status, e.Bytes = id, op, status, 11
		*e.QPID(), e.Flags = 12, uint8(flags|uapi.SIW_WQE_VALID)
	}
	complete(0, 1, uapi.SIW_OP_READ, uapi.SIW_WC_SUCCESS, 0)
	complete(1, 2, uapi.SIW_OP_RECEIVE, uapi.SIW_WC_LOC_LEN_ERR, uapi.SIW_WQE_REM_INVAL)
	require.EqualValues(t, 2, q.Poll(nil, wcs[:]))
	assert.Equal(t, ibv.WC{WRID: 1, Opcode: ibv.WC_RDMA_READ, ByteLen: 11, QPNum: 12}, wcs[0])
	assert.Equal(t, ibv.WC_LOC_LEN_ERR, wcs[1].Status)
	assert.Equal(t, ibv.WC_RECV, wcs[1].Opcode)
	assert.Equal(t, ibv.WC_WITH_INV, wcs[1].WCFlags)
	require.Zero(t, q.Poll(nil, wcs[:]))
	complete(0, 3, 200, 300, 0)
	require.EqualValues(t, 1, q.Poll(nil, wcs[:1]))
	assert.Equal(t, ibv.WC_GENERAL_ERR, wcs[0].Status)

	control := (*uapi.SIWCQCtrl)(unsafe.Add(unsafe.Pointer(at[uapi.SIWCQE](k, cqKey, 1)), unsafe.Sizeof(uapi.SIWCQE{})))
	assert.Zero(t, q.Arm(nil, true))
	assert.Equal(t, uapi.SIW_NOTIFY_SOLICITED, control.Flags)
	assert.Zero(t, q.Arm(nil, false))
	assert.Equal(t, uapi.SIW_NOTIFY_SOLICITED|uapi.SIW_NOTIFY_NEXT_COMPLETION, control.Flags)
	q.Free()
	assert.EqualValues(t, -1, q.Poll(nil, wcs[:]))
	assert.Zero(t, k.mapped)
}

// TestQueuesOutOfRange: sizes of the kernel that no queue has are an error.
func TestQueuesOutOfRange(t *testing.T) {
	k, d := newDevice(t)
	for _, own := range []uapi.SIWUrespCreateCQ{{NumCQE: 0, CQKey: cqKey}, {NumCQE: 3, CQKey: cqKey},
		{NumCQE: 1 << 31, CQKey: cqKey}, {NumCQE: 4, CQKey: uapi.SIW_INVAL_UOBJ_KEY}} {
		_, errno := d.CreateCQ(nil, nil, answers(own))
		assert.Equal(t, syscall.EIO, errno)
	}
	assert.Zero(t, k.mapped)
}

// TestMappingsThatFail: a queue pair of which one queue cannot be mapped leaves none.
func TestMappingsThatFail(t *testing.T) {
	k, d := newDevice(t)
	for n := 1; n <= 2; n++ {
		k.fails = n
		q, errno := d.CreateQP(&uapi.IBUverbsCreateQP{}, &uapi.IBUverbsCreateQPResp{MaxRecvWR: 2},
			answers(uapi.SIWUrespCreateQP{NumSQE: 2, NumRQE: 2, SQKey: sqKey, RQKey: rqKey}))
		assert.Equal(t, syscall.EAGAIN, errno)
		q.Free()
		assert.Zero(t, k.mapped)
	}
}
