// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

func TestDeviceMemory(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	caps := new(ibv.DeviceAttrEx)
	require.NoError(t, verbs.QueryDeviceEx(s.context[1], nil, caps))
	_, err := verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: caps.MaxDMSize + 1})
	assert.ErrorIs(t, err, syscall.EINVAL)
	dm, err := verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: 100, LogAlignReq: 3})
	require.NoError(t, err)
	_, err = verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: caps.MaxDMSize})
	assert.ErrorIs(t, err, syscall.ENOMEM, "part of the memory is allocated")

	copy(s.bufA.bytes, "to the device")
	require.NoError(t, verbs.MemcpyToDM(dm, 16, pointerTo(&s.bufA.bytes[0]), 16))
	assert.ErrorIs(t, verbs.MemcpyToDM(dm, 92, pointerTo(&s.bufA.bytes[0]), 12), syscall.EFAULT)
	assert.ErrorIs(t, verbs.MemcpyToDM(dm, 2, pointerTo(&s.bufA.bytes[0]), 4), syscall.EINVAL, "unaligned offset")
	assert.ErrorIs(t, verbs.MemcpyFromDM(pointerTo(&s.bufA.bytes[0]), dm, 4, 2), syscall.EINVAL, "unaligned length")
	assert.ErrorIs(t, verbs.MemcpyFromDM(pointerTo(&s.bufA.bytes[0]), dm, ^uint64(0), 1), syscall.EFAULT)
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.bufA.bytes[64]), dm, 16, 16))
	assert.Equal(t, "to the device", string(s.bufA.bytes[64:77]))

	const access = ibv.ACCESS_ZERO_BASED | ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE |
		ibv.ACCESS_REMOTE_ATOMIC
	_, err = verbs.RegDMMR(s.pd[1], dm, 16, 64, access&^ibv.ACCESS_ZERO_BASED)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegDMMR(s.pd[1], dm, 16, 85, access)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegDMMR(s.pd[0], dm, 16, 64, access)
	assert.ErrorIs(t, err, syscall.EINVAL, "another device")
	empty, err := verbs.RegDMMR(s.pd[1], dm, 16, 0, access)
	require.NoError(t, err, "empty region")
	require.NoError(t, verbs.DeregMR(empty))
	mr, err := verbs.RegDMMR(s.pd[1], dm, 16, 64, access)
	require.NoError(t, err)
	assert.ErrorIs(t, verbs.FreeDM(dm), syscall.EBUSY)

	do := func(op ibv.WROpcode, remote uint64, sge ibv.SGE) ibv.WCStatus {
		wr := s.send(1, op, sge)
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: mr.RKey}
		if op == ibv.WR_ATOMIC_FETCH_AND_ADD {
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: remote, RKey: mr.RKey, CompareAdd: 5}
		}
		require.NoError(t, s.post(s.p.a, wr))
		return s.poll(s.p.aSend).Status
	}
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_READ, 3, s.bufA.sge(128, 10)))
	assert.Equal(t, "the device", string(s.bufA.bytes[128:138]))
	copy(s.bufA.bytes, "by the peer")
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_WRITE, 32, s.bufA.sge(0, 11)))
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.bufB.bytes[0]), dm, 48, 12))
	assert.Equal(t, "by the peer", string(s.bufB.bytes[:11]))
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_ATOMIC_FETCH_AND_ADD, 56, s.bufA.sge(0, 8)))
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.bufB.bytes[0]), dm, 16+56, 8))
	assert.EqualValues(t, 5, binary.NativeEndian.Uint64(s.bufB.bytes))

	// The owner receives into the region, at a zero-based address.
	s.recv(s.p.b, 7, ibv.SGE{Addr: 8, Length: 32, LKey: mr.LKey})
	copy(s.bufA.bytes, "received")
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 8))))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bRecv).Status)
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.bufB.bytes[0]), dm, 24, 8))
	assert.Equal(t, "received", string(s.bufB.bytes[:8]))

	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_READ, 60, s.bufA.sge(0, 8)),
		"beyond the region, within the memory")
	require.NoError(t, verbs.DeregMR(mr))
	assert.NoError(t, verbs.FreeDM(dm))
}

// TestNullMR: reads of a null region return zeros and writes are discarded, also if only a part of a message uses it.
func TestNullMR(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	var null [2]*ibv.MR
	for d := range null {
		mr, err := verbs.AllocNullMR(s.pd[d])
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		assert.Equal(t, ^uint64(0), mr.Length)
		null[d] = mr
	}
	nullSGE := func(d, length int) ibv.SGE { return ibv.SGE{Addr: 1 << 40, Length: uint32(length), LKey: null[d].LKey} }
	for i := range s.bufB.bytes {
		s.bufA.bytes[i], s.bufB.bytes[i] = 1, 2
	}
	// 8 bytes, 100 zeros and 8 bytes are received as 4 bytes, 50 discarded bytes and the rest.
	s.recv(s.p.b, 7, s.bufB.sge(0, 4), nullSGE(1, 50), s.bufB.sge(8, 100))
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 8), nullSGE(0, 100), s.bufA.sge(8, 8))))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bRecv).Status)
	want := append(bytes.Repeat([]byte{1}, 4), bytes.Repeat([]byte{2}, 4)...)
	want = append(append(want, make([]byte, 54)...), bytes.Repeat([]byte{1}, 8)...)
	assert.Equal(t, want, s.bufB.bytes[:len(want)])
	assert.EqualValues(t, 2, s.bufB.bytes[len(want)])

	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(2, ibv.WR_RDMA_READ, nullSGE(0, 8), s.bufA.sge(100, 4)), 8)))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, make([]byte, 4), s.bufA.bytes[100:104])
	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(3, ibv.WR_RDMA_WRITE, nullSGE(0, 64)), 1024)))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, append(make([]byte, 64), 2), s.bufB.bytes[1024:1089])

	_, err := verbs.ReregMR(null[0], ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, allAccess)
	assert.ErrorIs(t, err, syscall.EINVAL)
	wr := s.send(4, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 8))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 1 << 40, RKey: null[1].LKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.poll(s.p.aSend).Status, "peers cannot access it")
}

func TestAdviseMR(t *testing.T) {
	r := newTestbed(t, Options{})
	onDemand, plain, fixed := r.buffer(0, 4096, allAccess|ibv.ACCESS_ON_DEMAND), r.buffer(0, 4096, allAccess),
		r.buffer(0, 4096, ibv.ACCESS_ON_DEMAND)
	const read, write = ibv.ADVISE_MR_ADVICE_PREFETCH, ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE
	advise := func(pd *ibv.PD, advice ibv.IBUverbsAdviseMRAdvice, flags ibv.IBUverbsAdviseMRFlag, sge ibv.SGE) error {
		sges := offHeap[ibv.SGE](r, 1)
		sges[0] = sge
		return verbs.AdviseMR(pd, advice, flags, &sges[0], 1)
	}
	all := onDemand.sge(0, 4096)
	assert.NoError(t, advise(r.pd[0], read, 0, all))
	assert.NoError(t, advise(r.pd[0], write, ibv.ADVISE_MR_FLAG_FLUSH, all))
	assert.NoError(t, advise(r.pd[0], ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, all))
	assert.ErrorIs(t, advise(r.pd[0], write, 0, fixed.sge(0, 8)), syscall.EPERM)
	assert.ErrorIs(t, advise(r.pd[0], read, 0, onDemand.sge(1, 4096)), syscall.EFAULT)
	assert.ErrorIs(t, advise(r.pd[0], read, 0, plain.sge(0, 8)), syscall.EFAULT)
	assert.ErrorIs(t, advise(r.pd[0], read, 0, ibv.SGE{Addr: all.Addr, Length: 1, LKey: all.LKey ^ 1}), syscall.EFAULT)
	assert.ErrorIs(t, advise(r.pd[0], read, 2, all), syscall.EINVAL)
	assert.ErrorIs(t, advise(r.pd[0], 77, 0, all), syscall.EOPNOTSUPP)
	other, err := verbs.AllocPD(r.context[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DeallocPD(other)) }()
	assert.ErrorIs(t, advise(other, read, 0, all), syscall.EPERM)
}

func TestECE(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	ece := new(ibv.ECE)
	assert.ErrorIs(t, verbs.QueryECE(s.p.a, ece), syscall.EOPNOTSUPP)
	assert.ErrorIs(t, verbs.SetECE(s.p.a, ece), syscall.EOPNOTSUPP)
	ece.VendorID, ece.Options = 0x15b3, 7
	require.NoError(t, verbs.SetECE(s.p.a, ece))
	assert.Zero(t, ece.Options, "options are ignored")
}

// TestDeviceMemoryLimit: device memory is limited, and freed memory can be allocated again.
func TestDeviceMemoryLimit(t *testing.T) {
	r := newTestbed(t, Options{})
	for range 3 {
		all, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: impl.MaxDM})
		require.NoError(t, err)
		_, err = verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 1})
		assert.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, verbs.FreeDM(all))
	}
}
