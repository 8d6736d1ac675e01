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

// TestAllMemory: one on-demand region covers all memory of the process, including memory mapped after its registration.
// Access to an unmapped address ends in a status on the side of that address, and the fabric keeps working.
func TestAllMemory(t *testing.T) {
	for name, over := range wires {
		t.Run(name, func(t *testing.T) { allMemory(t, over) })
	}
}

func allMemory(t *testing.T, over func(*rig)) {
	s := newStage(t, ibv.QPT_RC, Options{})
	over(s.rig)
	var all [2]*ibv.MR
	for d := range all {
		mr, err := verbs.RegMR(s.pd[d], 0, ^uint64(0), everything|ibv.ACCESS_ON_DEMAND)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		assert.Equal(t, [2]uint64{0, ^uint64(0)}, [2]uint64{uint64(mr.Addr), mr.Length})
		all[d] = mr
	}
	page := unix.Getpagesize()
	later, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(later)) }()
	require.NoError(t, unix.Mprotect(later[page:2*page], unix.PROT_NONE)) // as if nothing were there
	at := uint64(pointerTo(&later[0]))
	hole := at + uint64(page)

	// do posts a request over a new pair, and returns its status.
	do := func(op ibv.WROpcode, here, there uint64, length uint32) ibv.WCStatus {
		p := s.pair(ibv.QPT_RC)
		s.recv(p.b, 7, ibv.SGE{Addr: there, Length: length, LKey: all[1].LKey})
		wr := s.send(1, op, ibv.SGE{Addr: here, Length: length, LKey: all[0].LKey})
		if op != ibv.WR_SEND {
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: there, RKey: all[1].RKey}
		}
		require.NoError(t, s.post(p.a, wr))
		return s.statuses(p.aSend)[0]
	}
	for _, op := range []ibv.WROpcode{ibv.WR_SEND, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
		from, to := later[:8], later[3*page:3*page+8]
		copy(from, op.String())
		here, there := at, at+3*uint64(page)
		if op == ibv.WR_RDMA_READ {
			here, there = there, here
		}
		require.Equal(t, ibv.WC_SUCCESS, do(op, here, there, 8), op)
		assert.Equal(t, from, to, op)
		clear(to)
	}
	const far = 1 << 63 // where no processor has memory of programs
	for _, nowhere := range []uint64{0, hole - 4, hole, far, ^uint64(0) - 7} {
		assert.Equal(t, ibv.WC_LOC_PROT_ERR, do(ibv.WR_RDMA_WRITE, nowhere, at, 8), "from %#x", nowhere)
		assert.Equal(t, ibv.WC_LOC_PROT_ERR, do(ibv.WR_RDMA_READ, nowhere, at, 8), "read into %#x", nowhere)
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_WRITE, at, nowhere, 8), "to %#x", nowhere)
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, do(ibv.WR_RDMA_READ, at, nowhere, 8), "of %#x", nowhere)
		assert.Equal(t, ibv.WC_REM_OP_ERR, do(ibv.WR_SEND, at, nowhere, 8), "received at %#x", nowhere)
	}
	assert.Equal(t, ibv.WC_SUCCESS, do(ibv.WR_RDMA_WRITE, at, at+3*uint64(page), 8))

	sges := outside[ibv.SGE](s.rig, 1)
	for addr, want := range map[uint64]error{at: nil, hole: syscall.EFAULT, 0: syscall.EFAULT} {
		sges[0] = ibv.SGE{Addr: addr, Length: 8, LKey: all[0].LKey}
		err := verbs.AdviseMR(s.pd[0], ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE, ibv.ADVISE_MR_FLAG_FLUSH, &sges[0], 1)
		assert.ErrorIs(t, err, want, "%#x", addr)
	}
	_, err = verbs.ReregMR(all[0], ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, everything)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = verbs.RegMR(s.pd[0], 0, ^uint64(0), everything)
	assert.ErrorIs(t, err, syscall.EINVAL, "not on demand")
	_, err = verbs.RegMRIOVA(s.pd[0], 0, ^uint64(0), 4096, everything|ibv.ACCESS_ON_DEMAND)
	assert.ErrorIs(t, err, syscall.EINVAL, "peers have no other addresses for it")
}
