// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

// posting is one way to post: a poster, and what its functions saw.
type posting struct {
	name    string
	post    func(*runtime.Chain) error
	poster  runtime.Poster
	unusual int
	results []int32
}

var errRefused = errors.New("refused")

func postings(t *testing.T, fn uintptr) []*posting {
	shared, owned := &posting{name: "shared"}, &posting{name: "owned"}
	shared.poster.Bind(fn, 7, true, shared)
	owned.poster.Bind(fn, 7, true, owned)
	owned.poster.Stack.Own()
	t.Cleanup(owned.poster.Stack.Release)
	shared.post, owned.post = shared.poster.Post, owned.poster.PostOwned
	return []*posting{shared, owned}
}

func (p *posting) PostUnusual(*runtime.Chain) error { p.unusual++; return nil }

func (p *posting) PostFailed(_ *runtime.Chain, result int32) error {
	p.results = append(p.results, result)
	return errRefused
}

func chain(t *testing.T) *runtime.Chain {
	m := mapped(t, 4096)
	return &runtime.Chain{First: 100, Bad: (*uintptr)(unsafe.Pointer(&m.Bytes()[64])), Len: 2, Closed: 2}
}

func TestPosterCallsWithItsObjectAndTheChain(t *testing.T) {
	c := chain(t)
	*c.Bad = 99
	// weigh3(a, b, c) is a result other than 0, and tells every argument
	for _, p := range postings(t, cfunc(t, "weigh3")) {
		err := p.post(c)
		if !runtime.PrivateStacks() {
			require.NoError(t, err)
			assert.Equal(t, 1, p.unusual)
			continue
		}
		require.ErrorIs(t, err, errRefused, p.name)
		want := int32(weigh(7, 100, uintptr(unsafe.Pointer(c.Bad))))
		assert.Equal(t, []int32{want}, p.results, p.name)
		assert.Zero(t, *c.Bad, "%s: C says which request it refused, or leaves 0", p.name)
		assert.Zero(t, p.unusual, p.name)

		c.Closed = 1
		require.NoError(t, p.post(c), p.name)
		assert.Equal(t, 1, p.unusual, "%s: the next pointers lead elsewhere", p.name)
		c.Closed = 2
	}
	for _, p := range postings(t, cfunc(t, "weigh0")) {
		assert.NoError(t, p.post(c), p.name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { p.post(c) }), p.name)
	}
}

func TestPosterIsUnusualWhereItMayNotCall(t *testing.T) {
	c, fn := chain(t), cfunc(t, "weigh3")
	not, nobodys := &posting{name: "not direct"}, &posting{name: "nobody's stack"}
	other := &posting{name: "owned, not direct"}
	not.poster.Bind(fn, 7, false, not)
	nobodys.poster.Bind(fn, 7, true, nobodys)
	other.poster.Bind(fn, 7, false, other)
	other.poster.Stack.Own()
	for _, p := range []*posting{not, nobodys, other} {
		p.post = p.poster.PostOwned
		if p == not {
			p.post = p.poster.Post
		}
		assert.NoError(t, p.post(c), p.name)
		assert.Equal(t, 1, p.unusual, p.name)
		assert.Empty(t, p.results, p.name)
	}
	if runtime.PrivateStacks() {
		assert.Equal(t, int32(weigh(7, 100, uintptr(unsafe.Pointer(c.Bad)))), not.poster.Call(c),
			"a queue that has seen the post makes the call")
	}
}

// unusually is what a Poller asks.
func unusually(int, unsafe.Pointer) int { return -77 }

func TestPoller(t *testing.T) {
	m := mapped(t, 4096)
	wcs := unsafe.Pointer(&m.Bytes()[0])
	fn := cfunc(t, "weigh3")
	var shared, owned, slow runtime.Poller
	shared.Bind(fn, 7, true, unusually)
	owned.Bind(fn, 7, true, unusually)
	assert.Equal(t, -77, owned.PollOwned(16, wcs), "nobody's stack")
	owned.Stack.Own()
	defer owned.Stack.Release()
	want := int(int32(weigh(7, 16, uintptr(wcs))))
	if !runtime.PrivateStacks() {
		want = -77
	}
	assert.Equal(t, want, shared.Poll(16, wcs))
	assert.Equal(t, want, owned.PollOwned(16, wcs))
	slow.Bind(fn, 7, false, unusually)
	assert.Equal(t, -77, slow.Poll(16, wcs))
}

// TestStacksOfAGoroutineShareMemory: however many stacks a goroutine has, C runs in one place; another goroutine's runs
// in another.
func TestStacksOfAGoroutineShareMemory(t *testing.T) {
	if !runtime.PrivateStacks() {
		t.Log("there are no private stacks here")
		return
	}
	here := cfunc(t, "here")
	at := func() int32 { return newStack(t).Call3(here, 0, 0, 0) }
	mine := at()
	for range 10 {
		assert.Equal(t, mine, at())
	}
	var others int32
	elsewhere(func() { others = at() })
	assert.NotEqual(t, mine, others)
}
