// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestImplicitODP: one on-demand region covers the entire address space, including memory mapped after its
// registration. Access to an unmapped address fails with a status on that side, and the fabric keeps working.
func TestImplicitODP(t *testing.T) {
	for name, setWire := range wires {
		t.Run(name, func(t *testing.T) { testImplicitODP(t, setWire) })
	}
}

func testImplicitODP(t *testing.T, setWire func(*testbed)) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	setWire(s.testbed)
	var all [2]*ibv.MR
	for d := range all {
		mr, err := verbs.RegMR(s.pd[d], 0, ^uint64(0), allAccess|ibv.ACCESS_ON_DEMAND)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		assert.Equal(t, [2]uint64{0, ^uint64(0)}, [2]uint64{uint64(mr.Addr), mr.Length})
		all[d] = mr
	}
	page := unix.Getpagesize()
	mapping, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapping)) }()
	require.NoError(t, unix.Mprotect(mapping[page:2*page], unix.PROT_NONE)) // like unmapped memory
	at := uint64(pointerTo(&mapping[0]))
	unmappedAddr := at + uint64(page)

	// do posts a request over a new pair, and returns its status.
	do := func(op ibv.WROpcode, localAddr, remoteAddr uint64, length uint32) ibv.WCStatus {
		p := s.pair(ibv.QPT_RC)
		s.recv(p.b, 7, ibv.SGE{Addr: remoteAddr, Length: length, LKey: all[1].LKey})
		wr := s.send(1, op, ibv.SGE{Addr: localAddr, Length: length, LKey: all[0].LKey})
		if op != ibv.WR_SEND {
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remoteAddr, RKey: all[1].RKey}
		}
		require.NoError(t, s.post(p.a, wr))
		return s.statuses(p.aSend)[0]
	}
	for _, op := range []ibv.WROpcode{ibv.WR_SEND, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
		from, to := mapping[:8], mapping[3*page:3*page+8]
		copy(from, op.String())
		localAddr, remoteAddr := at, at+3*uint64(page)
		if op == ibv.WR_RDMA_READ {
			localAddr, remoteAddr = remoteAddr, localAddr
		}
		require.Equal(t, ibv.WC_SUCCESS, do(op, localAddr, remoteAddr, 8), op)
		assert.Equal(t, from, to, op)
		clear(to)
	}
	const far = 1 << 63 // outside the user address space of all processors
	for _, invalid := range []uint64{0, unmappedAddr - 4, unmappedAddr, far, ^uint64(0) - 7} {
		assert.Equal(t, ibv.WC_LOC_PROT_ERR, do(ibv.WR_RDMA_WRITE, invalid, at, 8), "write from %#x", invalid)
		assert.Equal(t, ibv.WC_LOC_PROT_ERR, do(ibv.WR_RDMA_READ, invalid, at, 8), "read into %#x", invalid)
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_WRITE, at, invalid, 8), "write to %#x", invalid)
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_READ, at, invalid, 8), "read of %#x", invalid)
		assert.Equal(t, ibv.WC_REM_OP_ERR, do(ibv.WR_SEND, at, invalid, 8), "receive at %#x", invalid)
	}
	assert.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_WRITE, at, at+3*uint64(page), 8))

	sges := offHeap[ibv.SGE](s.testbed, 1)
	for addr, want := range map[uint64]error{at: nil, unmappedAddr: syscall.EFAULT, 0: syscall.EFAULT} {
		sges[0] = ibv.SGE{Addr: addr, Length: 8, LKey: all[0].LKey}
		err := verbs.AdviseMR(s.pd[0], ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE, ibv.ADVISE_MR_FLAG_FLUSH, &sges[0], 1)
		assert.ErrorIs(t, err, want, "%#x", addr)
	}
	_, err = verbs.ReregMR(all[0], ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, allAccess)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegMR(s.pd[0], 0, ^uint64(0), allAccess)
	assert.ErrorIs(t, err, syscall.EINVAL, "without ON_DEMAND")
	_, err = verbs.RegMRIOVA(s.pd[0], 0, ^uint64(0), 4096, allAccess|ibv.ACCESS_ON_DEMAND)
	assert.ErrorIs(t, err, syscall.EINVAL, "implicit ODP does not support an IOVA")
}
