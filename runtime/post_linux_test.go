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

func newPosting(fn uintptr) *posting {
	p := &posting{name: "direct"}
	p.poster.Bind(fn, 7, true, p)
	p.post = p.poster.Post
	return p
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
	p := newPosting(cfunc(t, "weigh3")) // weigh3(a, b, c) is a result other than 0, and depends on every argument
	err := p.post(c)
	if !runtime.Direct() {
		require.NoError(t, err)
		assert.Equal(t, 1, p.unusual)
		return
	}
	require.ErrorIs(t, err, errRefused)
	want := int32(weigh(7, 100, uintptr(unsafe.Pointer(c.Bad))))
	assert.Equal(t, []int32{want}, p.results)
	assert.Zero(t, *c.Bad, "C stores which request it refused, or leaves 0")
	assert.Zero(t, p.unusual)

	c.Closed = 1
	require.NoError(t, p.post(c))
	assert.Equal(t, 1, p.unusual, "the next pointers lead elsewhere")
	c.Closed = 2
	p = newPosting(cfunc(t, "weigh0"))
	assert.NoError(t, p.post(c))
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.post(c) }))
}

func TestPosterIsUnusualWhereItMayNotCall(t *testing.T) {
	c, fn := chain(t), cfunc(t, "weigh3")
	p := &posting{}
	p.poster.Bind(fn, 7, false, p)
	assert.NoError(t, p.poster.Post(c))
	assert.Equal(t, 1, p.unusual)
	assert.Empty(t, p.results)
	if runtime.Direct() {
		assert.Equal(t, int32(weigh(7, 100, uintptr(unsafe.Pointer(c.Bad)))), p.poster.Call(c),
			"a queue that has seen the post makes the call")
	}
}

// unusually is what a Poller asks.
func unusually(int, unsafe.Pointer) int { return -77 }

func TestPoller(t *testing.T) {
	m := mapped(t, 4096)
	wcs := unsafe.Pointer(&m.Bytes()[0])
	fn := cfunc(t, "weigh3")
	var shared, slow runtime.Poller
	shared.Bind(fn, 7, true, unusually)
	want := int(int32(weigh(7, 16, uintptr(wcs))))
	if !runtime.Direct() {
		want = -77
	}
	assert.Equal(t, want, shared.Poll(16, wcs))
	slow.Bind(fn, 7, false, unusually)
	assert.Equal(t, -77, slow.Poll(16, wcs))
}
