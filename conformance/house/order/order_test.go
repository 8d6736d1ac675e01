// SPDX-License-Identifier: BSD-2-Clause

package order

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// load reads a package of the files given.
func load(t *testing.T, files map[string]string) Room {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module room\n\ngo 1.26\n"), 0o644))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("package room\n"+text), 0o644))
	}
	rooms, err := Load(dir, ".")
	require.NoError(t, err)
	require.Len(t, rooms, 1)
	return rooms[0]
}

// TestWhatCounts checks what a call is: a function or method, called or named, also of a generic type. What is called
// through an interface, types and variables are no calls. They make arrows.
func TestWhatCounts(t *testing.T) {
	r := load(t, map[string]string{
		"a.go": `
func top() { t := new(T); t.Method(); G[int]{}.Method(); f := helper; f(); var i I = t; i.Method(); variable() }
var variable = func() {}`,
		"b.go": `
type T struct{ next *T }
func (*T) Method() { variable(); top() }
type I interface{ Method() }
type G[V any] struct{}
func (G[V]) Method() {}
func (G[V]) unused() { new(T).next.Method() }
func helper() {}`,
		"c_test.go":    "func test() { top() }",
		"d_windows.go": "func other() { top() }",
	})
	assert.Equal(t, []string{"a.go", "b.go"}, r.Files)
	assert.Equal(t, 4, r.Calls.All, "three and one back")
	require.Len(t, r.Calls.Back, 1)
	assert.Equal(t, "b.go:4 → a.go top", r.Calls.Back[0].String())
	assert.Equal(t, 2, r.Arrows.All)
	require.Len(t, r.Arrows.Back, 1)
	assert.Equal(t, "a.go:3 → b.go T", r.Arrows.Back[0].String(), "the type; of two that are as good, one is taken")
}

func TestNamesOfMethods(t *testing.T) {
	r := load(t, map[string]string{
		"a.go": "func a() { new(T).b(); T.c(T{}); _ = (*T).b }",
		"b.go": "type T struct{}\nfunc (*T) b() { a() }\nfunc (T) c() {}",
	})
	require.Len(t, r.Calls.Back, 1, "three calls weigh more than one")
	r = load(t, map[string]string{
		"a.go": "func a() { new(T).b(); T.c(T{}) }",
		"b.go": "type T struct{}\nfunc (*T) b() { a(); a(); a() }\nfunc (T) c() {}",
	})
	assert.Equal(t, []string{"b.go", "a.go"}, r.Calls.Files)
	require.Len(t, r.Calls.Back, 2)
	assert.Equal(t, "a.go:2 → b.go (*T).b", r.Calls.Back[0].String())
	assert.Equal(t, "a.go:2 → b.go (T).c", r.Calls.Back[1].String())
}

// TestFewest holds the order against every order of small graphs, and against one that is known for large ones.
func TestFewest(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	random := func(n, arrows int) *graph {
		g := newGraph(n)
		for range arrows {
			if a, b := draw.IntN(n), draw.IntN(n); a != b {
				g.add(a, b, 1+draw.IntN(4))
			}
		}
		return g
	}
	for range 60 {
		n := 2 + draw.IntN(6)
		g := random(n, draw.IntN(3*n))
		order, least := make([]int, n), 1<<30
		var every func(int)
		every = func(i int) {
			if i == n {
				least = min(least, g.back(order))
				return
			}
			for j := i; j < n; j++ {
				order[i], order[j] = order[j], order[i]
				every(i + 1)
				order[i], order[j] = order[j], order[i]
			}
		}
		for i := range order {
			order[i] = i
		}
		every(0)
		found := g.order()
		assert.Equal(t, least, g.back(found))
		slices.Sort(found)
		slices.Sort(order)
		assert.Equal(t, order, found, "every node once")
	}
	for range 5 { // a ladder with a few steps back, its nodes renamed
		const n = 60
		name, g := draw.Perm(n), newGraph(n)
		for i := range n {
			for j := i + 1; j < min(n, i+8); j++ {
				g.add(name[i], name[j], 2)
			}
		}
		for range 12 {
			i := draw.IntN(n - 7)
			g.add(name[i+7], name[i], 1)
		}
		again := g.order()
		assert.LessOrEqual(t, g.back(again), 12)
		assert.Equal(t, again, g.order(), "the same graph has the same order")
	}
}
