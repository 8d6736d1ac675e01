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
	poster  *runtime.Poster
	unusual int
	results []int32
}

var errRefused = errors.New("refused")

func postings(t *testing.T, fn uintptr) []*posting {
	stack := newStack(t)
	stack.Call3(cfunc(t, "weigh0"), 0, 0, 0) // owned by this goroutine from here on
	t.Cleanup(stack.Release)
	shared, owned := runtime.NewPoster(fn, 7, true), runtime.NewPosterOn(stack, fn, 7, true)
	all := []*posting{{name: "shared", poster: &shared}, {name: "owned", poster: &owned}}
	for _, p := range all {
		p.poster.Unusual = func(*runtime.Chain) error { p.unusual++; return nil }
		p.poster.Failed = func(_ *runtime.Chain,
			result int32) error {
			p.results = append(p.results, result)
			return errRefused
		}
		p.post = shared.Post
		if p.name == "owned" {
			p.post = owned.PostOwned
		}
	}
	return all
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
	stack := newStack(t)
	for name, p := range map[string]runtime.Poster{
		"not usual":        runtime.NewPoster(fn, 7, false),
		"nobody's stack":   runtime.NewPosterOn(stack, fn, 7, true),
		"owned, not usual": runtime.NewPosterOn(stack, fn, 7, false),
	} {
		calls := 0
		p.Unusual = func(*runtime.Chain) error { calls++; return errRefused }
		post := p.PostOwned
		if name == "not usual" {
			post = p.Post
		}
		assert.ErrorIs(t, post(c), errRefused, name)
		assert.Equal(t, 1, calls, name)
	}
}

func TestPoller(t *testing.T) {
	m := mapped(t, 4096)
	wcs := unsafe.Pointer(&m.Bytes()[0])
	stack := newStack(t)
	stack.Call3(cfunc(t, "weigh0"), 0, 0, 0)
	defer stack.Release()
	fn := cfunc(t, "weigh3")
	shared, owned := runtime.NewPoller(fn, 7, true), runtime.NewPollerOn(stack, fn, 7, true)
	other := func(int, unsafe.Pointer) int { return -77 }
	shared.Unusual, owned.Unusual = other, other
	want := int(int32(weigh(7, 16, uintptr(wcs))))
	if !runtime.PrivateStacks() {
		want = -77
	}
	assert.Equal(t, want, shared.Poll(16, wcs))
	assert.Equal(t, want, owned.PollOwned(16, wcs))
	slow := runtime.NewPoller(fn, 7, false)
	slow.Unusual = other
	assert.Equal(t, -77, slow.Poll(16, wcs))
}
