// SPDX-License-Identifier: BSD-2-Clause

package registration_test

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
)

const mib = 1 << 20

// TestPieces: pieces are adjacent and cover all of the memory, and entries contain each byte of a range once.
func TestPieces(t *testing.T) {
	pd := newPD(t)
	buffer, err := rdma.NewBuffer(20*mib, rdma.MapOptions{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, buffer.Close()) }()
	skip := -buffer.Address() % (2 * mib) // offset of the first boundary
	all := buffer.Bytes()[skip:]
	for _, c := range []struct{ from, length, n, pieces uint64 }{
		{0, 8 * mib, 4, 4}, {0, 8 * mib, 3, 2}, {0, 100, 4, 1}, {mib, 8 * mib, 4, 3}, {100, 2*mib - 50, 8, 2},
		{2*mib - 1, 2, 2, 2}, {5, 17 * mib, 1, 1}, {5, 17 * mib, 9, 9},
	} {
		b := all[c.from:][:c.length]
		p, err := registration.Parallel(pd, b, write, int(c.n))
		require.NoError(t, err)
		assert.Len(t, p.MRs(), int(c.pieces), "%+v", c)
		at := address(b)
		for i, mr := range p.MRs() {
			assert.Equal(t, at, mr.Address())
			if at += mr.Len(); i < len(p.MRs())-1 {
				assert.Zero(t, at%(2*mib))
			}
		}
		assert.Equal(t, address(b)+c.length, at)
		for _, r := range [][2]uint64{
			{0, c.length}, {c.length, 0}, {c.length - 1, 1}, {0, 1}, {c.length / 3, c.length / 2},
		} {
			at := address(b) + r[0]
			list := p.AppendSGE([]ibv.SGE{{Addr: 7}}, r[0], r[1])
			assert.EqualValues(t, 7, list[0].Addr)
			for _, entry := range list[1:] {
				assert.Equal(t, at, entry.Addr)
				at += uint64(entry.Length)
				inside := false
				for _, mr := range p.MRs() {
					inside = inside || mr.LKey() == entry.LKey && mr.Address() <= entry.Addr &&
						at <= mr.Address()+mr.Len()
				}
				assert.True(t, inside)
			}
			assert.Equal(t, address(b)+r[0]+r[1], at)
		}
		assert.Panics(t, func() { p.AppendSGE(nil, 1, c.length) })
		assert.Panics(t, func() { p.AppendSGE(nil, c.length+1, 0) })
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
	}
	p, err := registration.Parallel(pd, make([]byte, 64*mib), write, 0)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(p.MRs()), runtime.GOMAXPROCS(0))
	require.NoError(t, p.Close())

	for _, wrong := range []func() (*registration.Pieces, error){
		func() (*registration.Pieces, error) { return registration.Parallel(pd, all, write, -1) },
		func() (*registration.Pieces, error) { return registration.Parallel(pd, nil, write, 1) },
		func() (*registration.Pieces, error) { return registration.Parallel(nil, all, write, 1) },
	} {
		_, err = wrong()
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = registration.Parallel(pd, all[:8*mib], ibv.ACCESS_REMOTE_WRITE, 4)
	assert.ErrorContains(t, err, "LOCAL_WRITE") // nothing stays registered, or closing the domain would fail
}
