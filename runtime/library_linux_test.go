// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

func TestMissingLibrary(t *testing.T) {
	gone := &runtime.Library{Name: "libgone", SOName: "libgone.so.7", Project: "rdma-core"}
	f := &runtime.Function{Library: gone, Name: "ibv_open_device"}
	for range 2 {
		err := f.Exported().Errno()
		require.ErrorIs(t, err, runtime.ErrNotSupported)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		assert.ErrorContains(t, err,
			"ibv_open_device: libgone.so.7 cannot be opened; install it (rdma-core), or name its file in "+
				"GOVERBS_LIBGONE: ")
		assert.Equal(t, err, f.Available())
	}
	assert.ErrorIs(t, gone.Open(), runtime.ErrNotSupported)
	err := (&runtime.Function{Library: gone, Name: "ibv_reg_mr_ex", Since: "65.0"}).Available()
	assert.ErrorContains(t, err, "(rdma-core has it since 65.0): ", "the release to install")
}

func TestMissingSymbol(t *testing.T) {
	f := &runtime.Function{Library: &runtime.Library{Name: "calls", SOName: pathOf("calls.so"),
		Project: "rdma-core"}, Name: "ibv_reg_mr_ex",
		Since: "65.0"}
	err := f.Exported().Errno()
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	assert.EqualError(t, err, "ibv_reg_mr_ex: "+pathOf("calls.so")+" does not export it (rdma-core has it since 65.0)")
	assert.Equal(t, err, f.Available())
	assert.NoError(t, function("weigh0").Available())
}

func TestLibraryPath(t *testing.T) {
	byVariable := &runtime.Library{Name: "somewhere", SOName: "libsomewhere.so.1"}
	t.Setenv("GOVERBS_SOMEWHERE", pathOf("calls.so"))
	require.NoError(t, byVariable.Open())

	t.Setenv("GOVERBS_SOMEWHERE", "/nowhere/at/all.so")
	byPath := &runtime.Library{Name: "somewhere", SOName: "libsomewhere.so.1"}
	assert.ErrorContains(t, byPath.Open(), "/nowhere/at/all.so cannot be opened")
	require.NoError(t, byPath.SetPath(pathOf("calls.so")), "another path may be set after a failure")
	require.NoError(t, byPath.Open())
	assert.ErrorContains(t, byPath.SetPath("/another.so"),
		"somewhere: the library is already open ("+pathOf("calls.so")+"); set its path before the first call")
	require.NoError(t, byPath.Open())
}

func TestRejectedLibrary(t *testing.T) {
	reason := errors.New("its mutexes have another size")
	l := &runtime.Library{Name: "calls", SOName: pathOf("calls.so"), Check: func(l *runtime.Library) error {
		address, err := l.Symbol("weigh0")
		assert.NoError(t, err)
		assert.NotZero(t, address)
		assert.Equal(t, "calls", l.Name)
		return reason
	}}
	err := (&runtime.Function{Library: l, Name: "weigh0"}).Exported().Errno()
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	require.ErrorIs(t, err, reason)
	assert.EqualError(t, err, "weigh0: "+pathOf("calls.so")+" cannot be used: its mutexes have another size")
}

func TestDefaultSymbolVersion(t *testing.T) {
	got, err := (&runtime.Function{Library: versions, Name: "which"}).Exported().Value()
	require.NoError(t, err)
	assert.EqualValues(t, 2, int32(got))
}

// TestSymbolsOfOtherLibraries checks that a symbol is looked up only in its library.
func TestSymbolsOfOtherLibraries(t *testing.T) {
	require.NoError(t, calls.Open())
	require.NoError(t, versions.Open())
	for library, names := range map[*runtime.Library][2]string{calls: {"weigh0", "which"},
		versions: {"which", "weigh0"}} {
		own, err := library.Symbol(names[0])
		require.NoError(t, err)
		assert.NotZero(t, own)
		other, err := library.Symbol(names[1])
		require.NoError(t, err)
		assert.Zero(t, other)
		assert.ErrorIs(t, (&runtime.Function{Library: library, Name: names[1]}).Available(), runtime.ErrNotSupported)
	}
}

func TestConcurrentFirstCalls(t *testing.T) {
	checks := 0
	l := &runtime.Library{Name: "calls", SOName: pathOf("calls.so"),
		Check: func(*runtime.Library) error { checks++; return nil }}
	f := &runtime.Function{Library: l, Name: "weigh1"}
	var wg sync.WaitGroup
	for g := range uintptr(16) {
		wg.Go(func() {
			got, err := f.Exported().Value(g)
			assert.NoError(t, err)
			assert.EqualValues(t, weigh(g), got)
		})
	}
	wg.Wait()
	assert.Equal(t, 1, checks)
}
