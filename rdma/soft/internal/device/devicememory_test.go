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
	own "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

func TestDeviceMemory(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	caps := new(ibv.DeviceAttrEx)
	require.NoError(t, verbs.QueryDeviceEx(s.context[1], nil, caps))
	_, err := verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: caps.MaxDMSize + 1})
	assert.ErrorIs(t, err, syscall.EINVAL)
	dm, err := verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: 100, LogAlignReq: 3})
	require.NoError(t, err)
	_, err = verbs.AllocDM(s.context[1], &ibv.AllocDMAttr{Length: caps.MaxDMSize})
	assert.ErrorIs(t, err, syscall.ENOMEM, "a part is given out")

	copy(s.here.bytes, "to the device")
	require.NoError(t, verbs.MemcpyToDM(dm, 16, pointerTo(&s.here.bytes[0]), 16))
	assert.ErrorIs(t, verbs.MemcpyToDM(dm, 92, pointerTo(&s.here.bytes[0]), 12), syscall.EFAULT)
	assert.ErrorIs(t, verbs.MemcpyToDM(dm, 2, pointerTo(&s.here.bytes[0]), 4), syscall.EINVAL, "an odd offset")
	assert.ErrorIs(t, verbs.MemcpyFromDM(pointerTo(&s.here.bytes[0]), dm, 4, 2), syscall.EINVAL, "an odd length")
	assert.ErrorIs(t, verbs.MemcpyFromDM(pointerTo(&s.here.bytes[0]), dm, ^uint64(0), 1), syscall.EFAULT)
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.here.bytes[64]), dm, 16, 16))
	assert.Equal(t, "to the device", string(s.here.bytes[64:77]))

	const access = ibv.ACCESS_ZERO_BASED | ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE |
		ibv.ACCESS_REMOTE_ATOMIC
	_, err = verbs.RegDMMR(s.pd[1], dm, 16, 64, access&^ibv.ACCESS_ZERO_BASED)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegDMMR(s.pd[1], dm, 16, 85, access)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegDMMR(s.pd[0], dm, 16, 64, access)
	assert.ErrorIs(t, err, syscall.EINVAL, "another device")
	empty, err := verbs.RegDMMR(s.pd[1], dm, 16, 0, access)
	require.NoError(t, err, "no bytes")
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
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_READ, 3, s.here.sge(128, 10)))
	assert.Equal(t, "the device", string(s.here.bytes[128:138]))
	copy(s.here.bytes, "by the peer")
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_WRITE, 32, s.here.sge(0, 11)))
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.there.bytes[0]), dm, 48, 12))
	assert.Equal(t, "by the peer", string(s.there.bytes[:11]))
	require.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_ATOMIC_FETCH_AND_ADD, 56, s.here.sge(0, 8)))
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.there.bytes[0]), dm, 16+56, 8))
	assert.EqualValues(t, 5, binary.NativeEndian.Uint64(s.there.bytes))

	// The owner receives into it, by an address that counts from 0.
	s.recv(s.p.b, 7, ibv.SGE{Addr: 8, Length: 32, LKey: mr.LKey})
	copy(s.here.bytes, "received")
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.here.sge(0, 8))))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bRecv).Status)
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	require.NoError(t, verbs.MemcpyFromDM(pointerTo(&s.there.bytes[0]), dm, 24, 8))
	assert.Equal(t, "received", string(s.there.bytes[:8]))

	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_READ, 60, s.here.sge(0, 8)),
		"beyond the region, not beyond the memory")
	require.NoError(t, verbs.DeregMR(mr))
	assert.NoError(t, verbs.FreeDM(dm))
}

// TestNullRegion: zeros come out of it, and nothing goes into it, also where only a part of a message does.
func TestNullRegion(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	var null [2]*ibv.MR
	for d := range null {
		mr, err := verbs.AllocNullMR(s.pd[d])
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		assert.Equal(t, ^uint64(0), mr.Length)
		null[d] = mr
	}
	nowhere := func(d, length int) ibv.SGE { return ibv.SGE{Addr: 1 << 40, Length: uint32(length), LKey: null[d].LKey} }
	for i := range s.there.bytes {
		s.here.bytes[i], s.there.bytes[i] = 1, 2
	}
	// 8 bytes, 100 zeros and 8 bytes arrive as 4 bytes, 50 that are dropped and the rest.
	s.recv(s.p.b, 7, s.there.sge(0, 4), nowhere(1, 50), s.there.sge(8, 100))
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.here.sge(0, 8), nowhere(0, 100), s.here.sge(8, 8))))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bRecv).Status)
	want := append(bytes.Repeat([]byte{1}, 4), bytes.Repeat([]byte{2}, 4)...)
	want = append(append(want, make([]byte, 54)...), bytes.Repeat([]byte{1}, 8)...)
	assert.Equal(t, want, s.there.bytes[:len(want)])
	assert.EqualValues(t, 2, s.there.bytes[len(want)])

	require.NoError(t, s.post(s.p.a, s.remote(s.send(2, ibv.WR_RDMA_READ, nowhere(0, 8), s.here.sge(100, 4)), 8)))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, make([]byte, 4), s.here.bytes[100:104])
	require.NoError(t, s.post(s.p.a, s.remote(s.send(3, ibv.WR_RDMA_WRITE, nowhere(0, 64)), 1024)))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, append(make([]byte, 64), 2), s.there.bytes[1024:1089])

	_, err := verbs.ReregMR(null[0], ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, everything)
	assert.ErrorIs(t, err, syscall.EINVAL)
	wr := s.send(4, ibv.WR_RDMA_WRITE, s.here.sge(0, 8))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 1 << 40, RKey: null[1].LKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.poll(s.p.aSend).Status, "peers may not use it")
}

func TestAdvice(t *testing.T) {
	r := newRig(t, Options{})
	onDemand, plain, fixed := r.buffer(0, 4096, everything|ibv.ACCESS_ON_DEMAND), r.buffer(0, 4096, everything),
		r.buffer(0, 4096, ibv.ACCESS_ON_DEMAND)
	const read, write = ibv.ADVISE_MR_ADVICE_PREFETCH, ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE
	advise := func(pd *ibv.PD, advice ibv.IBUverbsAdviseMRAdvice, flags ibv.IBUverbsAdviseMRFlag, sge ibv.SGE) error {
		sges := outside[ibv.SGE](r, 1)
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

func TestNoOptionsOfAVendor(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	ece := new(ibv.ECE)
	assert.ErrorIs(t, verbs.QueryECE(s.p.a, ece), syscall.EOPNOTSUPP)
	assert.ErrorIs(t, verbs.SetECE(s.p.a, ece), syscall.EOPNOTSUPP)
	ece.VendorID, ece.Options = 0x15b3, 7
	require.NoError(t, verbs.SetECE(s.p.a, ece))
	assert.Zero(t, ece.Options, "none is taken")
}

// TestDeviceMemoryEnds: device memory is limited, and freed memory can be allocated again.
func TestDeviceMemoryEnds(t *testing.T) {
	r := newRig(t, Options{})
	for range 3 {
		all, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: own.MaxDM})
		require.NoError(t, err)
		_, err = verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 1})
		assert.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, verbs.FreeDM(all))
	}
}
