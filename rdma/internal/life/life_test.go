// SPDX-License-Identifier: BSD-2-Clause

package life

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// named returns a new life whose destruction succeeds.
func named(name string, parents ...*Life) *Life {
	l := new(Life)
	l.Begin(name, func() (bool, error) { return true, nil }, parents...)
	return l
}

// children returns n new lives with one parent.
func children(n int, parent *Life) []*Life {
	all := make([]*Life, n)
	for i := range all {
		all[i] = named(fmt.Sprint("child ", i), parent)
	}
	return all
}

func TestCloseNamesChildren(t *testing.T) {
	parent := named("parent")
	all := children(6, parent)
	err := parent.Close()
	needs := func(names string) string {
		return "Close: parent: needed by " + names + ", which must be closed first: in use"
	}
	assert.EqualError(t, err, needs("child 0, child 1, child 2, child 3, 2 more"))
	assert.ErrorIs(t, err, syscall.EBUSY)
	require.NoError(t, all[1].Close())
	require.NoError(t, all[0].Close())
	assert.EqualError(t, Needed(parent), needs("child 2, child 3, child 4, child 5"))
	assert.EqualError(t, Close(nil, all[3], parent, all[4]), needs("child 2, child 5"))
	assert.False(t, all[3].IsClosed(), "a failed Close closes nothing")
	other := named("other")
	all[2].Join(other)
	all[2].Leave(parent)
	require.NoError(t, Close(nil, parent, all[5], all[3], all[4]))
	assert.ErrorContains(t, other.Close(), "needed by child 2,")
	assert.EqualError(t, parent.Use("ibv_x"), "ibv_x: parent: closed")
	assert.NoError(t, parent.Close(), "again")
}

// TestCloseIsLinear: closing the children of an object takes linear time, one by one in either order or together: ten
// times as many take about ten times as long. One of several attempts suffices, for busy machines.
func TestCloseIsLinear(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	const few, many, tries = 10_000, 100_000, 8
	oneByOne := func(next func(n, i int) int) func(parent *Life, all []*Life) {
		return func(parent *Life, all []*Life) {
			for i := range all {
				require.NoError(t, all[next(len(all), i)].Close())
			}
			require.NoError(t, parent.Close())
		}
	}
	for name, end := range map[string]func(parent *Life, all []*Life){
		"oldest first":   oneByOne(func(_, i int) int { return i }),
		"youngest first": oneByOne(func(n, i int) int { return n - 1 - i }),
		"together": func(parent *Life, all []*Life) {
			require.NoError(t, Close(nil, append([]*Life{parent}, all...)...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			elapsed := func(n int) time.Duration {
				parent := named("parent")
				all := children(n, parent)
				begin := time.Now()
				end(parent, all)
				return time.Since(begin)
			}
			var ratio float64
			for begin, try := time.Now(), 0; try < tries && time.Since(begin) < 20*time.Second; try++ {
				if ratio = float64(elapsed(many)) / float64(elapsed(few)); ratio < 35 {
					return
				}
			}
			t.Errorf("%d children take %.0f times as long to close as %d", many, ratio, few)
		})
	}
}

// TestChildrenAreDestroyedFirst: children are destroyed before their parents, in any order of arguments and creation.
func TestChildrenAreDestroyedFirst(t *testing.T) {
	for range 300 {
		n := 2 + rand.IntN(9)
		all := make([]*Life, n)
		var order []*Life
		for i := range all {
			all[i] = new(Life)
			all[i].Begin(fmt.Sprint(i), func() (bool, error) { order = append(order, all[i]); return true, nil })
		}
		rank := rand.Perm(n) // parents have lower ranks; ranks are independent of age
		for i, a := range all {
			for j, b := range all {
				if rank[i] > rank[j] && rand.IntN(3) == 0 {
					a.Join(b)
				}
			}
		}
		given := append([]*Life{}, all...)
		rand.Shuffle(n, func(i, j int) { given[i], given[j] = given[j], given[i] })
		require.NoError(t, Close(nil, append(given, given[0])...))
		require.Len(t, order, n)
		gone := map[*Life]bool{}
		for _, l := range order {
			for _, p := range l.parents { // +checklocksignore
				require.False(t, gone[p], "%s was destroyed before %s, which needs it", p.name, l.name)
			}
			gone[l] = true
		}
	}
}

func TestPartialClose(t *testing.T) {
	parent := named("parent")
	first, last := named("first", parent), named("last", parent)
	revived := 0
	stuck := &Life{Hooks: Hooks{Revive: func() { revived++ }}}
	refusal := error(&verberr.Error{Verb: "ibv_destroy_x", Object: "stuck", Errno: syscall.EBUSY})
	stuck.Begin("stuck", func() (bool, error) { return false, refusal }, parent)
	err := Close(nil, parent, first, stuck, last)
	assert.EqualError(t, err, "ibv_destroy_x: stuck: closed before it: first: "+syscall.EBUSY.Error())
	assert.True(t, first.IsGone())
	for _, l := range []*Life{parent, stuck, last} {
		require.NoError(t, l.Use("x"))
		l.Done()
	}
	assert.Equal(t, 1, revived)
	not := errors.New("not ready")
	assert.Equal(t, not, Close(func() error { return not }, parent, stuck, last))
	assert.False(t, last.IsClosed())

	after := errors.New("the object is destroyed despite the error")
	last.destroy = func() (bool, error) { return true, after }
	assert.Equal(t, after, last.Close())
	assert.True(t, last.IsGone())
	assert.NoError(t, last.Close())
}

// TestErrorOfDestroyedObject: an error of an object that is gone does not keep the other objects open.
func TestErrorOfDestroyedObject(t *testing.T) {
	parent := named("parent")
	all := append(children(3, parent), parent)
	lateErrors := [2]error{errors.New("first misused"), errors.New("second misused")}
	for i, err := range lateErrors {
		all[i].destroy = func() (bool, error) { return true, err }
	}
	err := Close(nil, all...)
	for i := range lateErrors {
		assert.ErrorIs(t, err, lateErrors[i])
	}
	for _, l := range all {
		assert.True(t, l.IsGone(), l.name)
	}
	require.NoError(t, Close(nil, all...))
}

// TestConcurrentClose: goroutines that close the same objects in different orders, during calls, do not deadlock.
func TestConcurrentClose(t *testing.T) {
	for range 200 {
		parent := named("parent")
		all := append(children(6, parent), parent)
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				for _, l := range all {
					for range 20 {
						if l.TryUse() {
							l.Done()
						}
					}
				}
			})
			mixed := append([]*Life{}, all...)
			rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			running.Go(func() { assert.NoError(t, Close(nil, mixed...)) })
		}
		running.Wait()
		for _, l := range all {
			assert.True(t, l.IsGone())
		}
	}
}

// TestCloseOfOneObjectDoesNotAllocate: closing one object does not allocate. A connection closes a dozen of them.
func TestCloseOfOneObjectDoesNotAllocate(t *testing.T) {
	const runs = 100
	all := make([]*Life, runs+1) // AllocsPerRun runs once before it counts
	for i := range all {
		all[i] = named("alone")
	}
	next := 0
	assert.Zero(t, testing.AllocsPerRun(runs, func() {
		all[next].Close()
		next++
	}))
	assert.True(t, all[runs].IsGone())
}
