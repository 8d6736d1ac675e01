// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// CloseAll closes objects that depend on each other and skips closed ones. If another object depends on one of them, or
// ready fails, it closes nothing and all stay usable.
func TestCloseAll(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	connectToSelf(t, e.qp)
	mr, err := pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	all := []Object{e.qp, e.cq, e.channel, pd, d}
	works := func(id uint64) {
		t.Helper()
		e.write(id, 1)
		n, err := e.cq.Wait(timeout(t), e.wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, id, e.wcs[0].WRID)
	}

	failed := errors.New("not now")
	never := func() error { t.Error("ready was called although an object has other children"); return failed }
	for _, err := range []error{Needed(all...), CloseAll(never, all...)} {
		assert.ErrorIs(t, err, ErrInUse)
		assert.ErrorContains(t, err, "needed by "+mr.name+", which")
	}
	works(1)
	require.NoError(t, mr.Close())
	require.NoError(t, Needed(all...))
	works(2)

	assert.Equal(t, failed, CloseAll(func() error { return failed }, all...))
	works(3)
	assert.ErrorIs(t, Needed(e.channel, pd), ErrInUse, "its completion queue is not in the list")

	e.write(4, 3) // outstanding
	require.NoError(t, CloseAll(nil, all...))
	for _, removed := range []any{e.qp.C(), e.cq.C(), e.channel.C(), pd.C(), d.C()} {
		assert.Nil(t, removed)
	}
	require.NoError(t, CloseAll(nil, mr), "again")
	require.NoError(t, Needed(all...))
}

// CloseAll succeeds if two goroutines close the same objects at once, in different orders.
func TestCloseAllInAnyOrder(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	for range 2 {
		a, err := pd.RegMR(make([]byte, 64), 0)
		require.NoError(t, err)
		b, err := pd.RegMR(make([]byte, 64), 0)
		require.NoError(t, err)
		for _, busy := range []*MR{a, b} {
			require.NoError(t, busy.use("a call")) // in progress
		}
		done := make(chan error, 2)
		closed := func(all ...Object) { done <- CloseAll(nil, all...) }
		go closed(a, b, a)
		for !a.isClosed() && !b.isClosed() {
			goruntime.Gosched()
		}
		go closed(b, a)
		for range 100 {
			goruntime.Gosched()
		}
		a.done()
		b.done()
		assert.NoError(t, requireEnd(t, done))
		assert.NoError(t, requireEnd(t, done))
		assert.Nil(t, a.C())
		assert.Nil(t, b.C())
	}
}

// permutations calls f with every permutation of 0 to n-1.
func permutations(n int, f func(order []int)) {
	order := make([]int, 0, n)
	var next func()
	next = func() {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				order = append(order, i)
				next()
				order = order[:len(order)-1]
			}
		}
	}
	next()
}

// family returns a device and its descendants, parents before children, except that the region's protection domain is
// newer than the region.
func family(t *testing.T, b runtime.Backend, name string, kind ibv.QPType) []Object {
	t.Helper()
	d, err := OpenOn(b, name)
	require.NoError(t, err)
	old, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := old.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	require.NoError(t, mr.Rereg(ibv.REREG_MR_CHANGE_PD, pd, nil, 0))
	require.NoError(t, old.Close())
	channel, err := d.CreateCompChannel()
	require.NoError(t, err)
	cq, err := d.CreateCQ(8, channel, 0)
	require.NoError(t, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: kind, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}, QueueOptions{})
	require.NoError(t, err)
	return []Object{d, pd, mr, channel, cq, qp}
}

// CloseAll destroys children before parents in C, whatever the order of its arguments.
func TestCloseAllDestroysChildrenFirst(t *testing.T) {
	f, _, pd := fakePD(t)
	fakeQP(t, pd)
	f.Do["ibv_create_comp_channel"] = func([]uintptr) uintptr {
		channel := fakedevice.Object[ibv.CompChannel](f)
		channel.Context, channel.FD = ibv.PtrTo(&f.Context.Context), int32(f.Events.Fd())
		return address(channel)
	}
	f.Do["ibv_rereg_mr"] = func([]uintptr) uintptr { return 0 }
	before := map[string]string{ // child to parent
		"ibv_dereg_mr": "ibv_dealloc_pd", "ibv_destroy_qp": "ibv_dealloc_pd",
		"ibv_destroy_cq": "ibv_destroy_comp_channel",
		"ibv_dealloc_pd": "ibv_close_device", "ibv_destroy_comp_channel": "ibv_close_device",
	}
	permutations(6, func(order []int) {
		all := family(t, f, "fake", ibv.QPT_RAW_PACKET)
		mixed := make([]Object, len(all))
		for i, at := range order {
			mixed[i] = all[at]
		}
		f.Took()
		require.NoError(t, CloseAll(nil, mixed...))
		calls := f.Took()
		for child, parent := range before {
			require.Contains(t, calls, child)
			require.Contains(t, calls, parent)
			require.Less(t, slices.Index(calls, child), slices.Index(calls, parent), "order %v: %v", order, calls)
		}
		require.Less(t, slices.Index(calls, "ibv_destroy_qp"), slices.Index(calls, "ibv_destroy_cq"), "order %v", order)
	})
}

// CloseAll succeeds in every order on the software device, which, like the kernel, rejects destroying objects in use.
func TestCloseAllInEveryOrderOnSoft(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	permutations(6, func(order []int) {
		all := family(t, fabric, "soft0", ibv.QPT_RC)
		mixed := make([]Object, len(all))
		for i, at := range order {
			mixed[i] = all[at]
		}
		require.NoError(t, CloseAll(nil, mixed...), "order %v", order)
		for _, o := range all {
			require.True(t, o.itself().life.IsGone())
		}
	})
}

// Independent objects are destroyed in the given order.
func TestCloseAllKeepsOrderOfIndependentObjects(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	regions := make([]Object, 8)
	for i := range regions {
		mr, err := pd.RegMR(make([]byte, 8), 0)
		require.NoError(t, err)
		regions[i] = mr
	}
	slices.Reverse(regions)
	window, err := pd.AllocMW(ibv.MW_TYPE_1)
	require.NoError(t, err)
	busy := func() (bool, error) { return false, &VerbError{Errno: syscall.EBUSY} }
	window.itself().life.Begin("a window that C fails to destroy", busy, &pd.life)
	err = CloseAll(nil, append(regions, window)...)
	var names []string
	for _, o := range regions {
		names = append(names, o.itself().name)
		assert.True(t, o.itself().life.IsGone())
	}
	assert.ErrorContains(t, err, "closed before it: "+strings.Join(names, ", "))
	assert.False(t, window.isClosed())
	require.NoError(t, libibverbs.DeallocMW(window.c))
	window.life.Begin("a destroyed window", func() (bool, error) { return true, nil }, &pd.life)
	require.NoError(t, window.Close())
}
