// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

const (
	rereg      = ibv.REREG_MR_CHANGE_TRANSLATION
	bothWays   = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE
	nothingNow = "the region is unchanged"
)

// isPinned reports whether a Pinned holds the slice.
func isPinned(b []byte) (yes bool) {
	pinned.Range(func(p, _ any) bool {
		yes = yes || &p.(*Pinned).bytes[0] == &b[0]
		return !yes
	})
	return yes
}

// Rereg changes the memory, the protection domain and the access of a region. Each change releases the old memory or
// domain.
func TestRereg(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	device := e.pd.Device()
	first, second := make([]byte, 64), make([]byte, 128)
	mr, err := e.pd.RegMR(first, bothWays)
	mr = closeAtEnd(t, mr, err)

	require.NoError(t, mr.Rereg(rereg, nil, second, 0))
	assert.False(t, isPinned(first))
	assert.True(t, isPinned(second))
	assert.Same(t, &second[0], &mr.Bytes()[0])
	assert.EqualValues(t, 128, mr.Len())
	assert.Equal(t, Region{mr.Address(), 128, mr.LKey()}, mr.Region())
	from, err := e.pd.RegMR([]byte("to the second"), 0)
	from = closeAtEnd(t, from, err)
	write := func() error {
		b := sendBatch(t, 1, 1, 0)
		b.Write(1, mr.Address(), mr.RKey()).Add(from.SGE(0, uint32(from.Len()))).Signaled()
		_, err := e.qp.PostSend(b)
		require.NoError(t, err)
		wc := softCompletion(t, e.cq)
		return CompletionErr(&wc)
	}
	require.NoError(t, write())
	assert.Equal(t, "to the second", string(second[:13]))

	require.NoError(t, mr.Rereg(ibv.REREG_MR_CHANGE_ACCESS, nil, nil, ibv.ACCESS_LOCAL_WRITE))
	assert.ErrorContains(t, write(), "IBV_WC_REM_ACCESS_ERR")

	other, err := device.AllocPD()
	require.NoError(t, err)
	require.NoError(t, mr.Rereg(ibv.REREG_MR_CHANGE_PD, other, nil, 0))
	assert.Same(t, other, mr.PD())
	assert.ErrorContains(t, other.Close(), mr.name)
	assert.False(t, mr.life.Needs(&e.pd.life))
	require.NoError(t, mr.Close())
	assert.NoError(t, other.Close())
	assert.False(t, isPinned(second))
}

// During Rereg, getters return keys, entries and memory that are consistent with each other.
func TestReregDuringUse(t *testing.T) {
	pd := softPD(t)
	all := [2][]byte{make([]byte, 64), make([]byte, 128)}
	mr, err := pd.RegMR(all[0], bothWays)
	mr = keep(t, mr, err)
	var users sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		users.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				r := mr.Region()
				which := all[r.Length/64-1]
				assert.Equal(t, addressOfBytes(which), r.Address)
				s := mr.SGE(0, 64)
				assert.Contains(t, []uint64{addressOfBytes(all[0]), addressOfBytes(all[1])}, s.Addr)
				_, _, _, _, _, _ = mr.LKey(), mr.RKey(), mr.Address(), mr.Len(), mr.PD(), mr.Bytes()
			}
		})
	}
	var changes sync.WaitGroup
	for range 2 {
		changes.Go(func() {
			for i := range 1000 {
				assert.NoError(t, mr.Rereg(rereg, nil, all[i%2], 0))
			}
		})
	}
	changes.Wait()
	close(done)
	users.Wait()
}

func addressOfBytes(b []byte) uint64 { return uint64(address(&b[0])) }

// The error code of C determines which memory stays pinned and whether the region stays valid.
func TestReregFails(t *testing.T) {
	for code, is := range map[ibv.ReregMRErrCode]struct {
		says        string
		first, next bool // still pinned
	}{
		ibv.REREG_MR_ERR_INPUT:               {nothingNow, true, false},
		ibv.REREG_MR_ERR_DONT_FORK_NEW:       {nothingNow, true, false},
		ibv.REREG_MR_ERR_DO_FORK_OLD:         {"the region was changed", false, true},
		ibv.REREG_MR_ERR_CMD:                 {"no longer valid", true, true},
		ibv.REREG_MR_ERR_CMD_AND_DO_FORK_NEW: {"no longer valid", true, true},
	} {
		t.Run(code.String(), func(t *testing.T) {
			f, _, pd := fakePD(t)
			first, next := make([]byte, 16), make([]byte, 32)
			mr, err := pd.RegMR(first, 0)
			require.NoError(t, err)
			f.Do["ibv_rereg_mr"] = func([]uintptr) uintptr { return uintptr(code) }
			err = mr.Rereg(rereg, nil, next, 0)
			assert.ErrorContains(t, err, is.says)
			assert.Equal(t, is.first, isPinned(first))
			assert.Equal(t, is.next, isPinned(next))
			want := first
			if code == ibv.REREG_MR_ERR_DO_FORK_OLD {
				want = next
			}
			assert.Equal(t, Region{addressOfBytes(want), uint64(len(want)), mr.LKey()}, mr.Region())
			require.NoError(t, mr.Close())
			assert.False(t, isPinned(first) || isPinned(next), "Close unpins all memory")
		})
	}
}

func TestReregRefused(t *testing.T) {
	f, _, pd := fakePD(t)
	mr, err := pd.RegMR(make([]byte, 16), 0)
	mr = keep(t, mr, err)
	away := softPD(t)
	f.Took()
	for expected, call := range map[string]func() error{
		"invalid flags 0; valid flags are": func() error { return mr.Rereg(0, nil, nil, 0) },
		"requires memory":                  func() error { return mr.Rereg(rereg, nil, nil, 0) },
		"requires a protection domain":     func() error { return mr.Rereg(ibv.REREG_MR_CHANGE_PD, nil, nil, 0) },
		"belongs to another device": func() error {
			return mr.Rereg(ibv.REREG_MR_CHANGE_PD, away, nil,
				0)
		},
		"but flags lack IBV_REREG_MR_CHANGE_ACCESS": func() error {
			return mr.Rereg(rereg, nil, make([]byte, 8),
				ibv.ACCESS_LOCAL_WRITE)
		},
		"IBV_ACCESS_LOCAL_WRITE": func() error {
			return mr.Rereg(ibv.REREG_MR_CHANGE_ACCESS, nil, nil,
				ibv.ACCESS_REMOTE_WRITE)
		},
	} {
		err := call()
		assert.ErrorContains(t, err, expected)
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	assert.Empty(t, f.Took(), "C was not called")
}
