// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tree writes a module of two packages and gives its directory.
func tree(t *testing.T, public, internal string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module x\n\ngo 1.26\n", "a/a.go": "package a\n" + public,
		"a/internal/b/b.go": "package b\n" + internal,
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
	}
	return dir
}

// A type that moves behind an alias, under another name even, changes nothing for programs; what is gone, new or of
// another type is told.
func TestDiff(t *testing.T) {
	before := tree(t, `
type Query struct{ Port int; hidden int }
func (*Query) Next(Querying) *Query { return nil }
type Querying int
type Device struct{ base }
type base struct{}
func (base) Close() error { return nil }
func Find(q Query, all []*Query) (QueryList, error) { return nil, nil }
type QueryList []Query
const Most = 3
var Gone int
`, "")
	after := tree(t, `
import "x/a/internal/b"
type Query = b.Q
type Querying = b.Querying
type Device struct{ base }
type base struct{}
func (base) Close() error { return nil }
func (base) New() {}
func Find(query Query, all []*Query) (list QueryList, err error) { return nil, nil }
type QueryList []Query
const Most = 4
`, `
type Q struct{ Port int32 }
func (*Q) Next(Querying) *Q { return nil }
type Querying int
`)
	old, err := List(before, "./...")
	require.NoError(t, err)
	now, err := List(after, "./...")
	require.NoError(t, err)
	assert.Equal(t, []string{
		"- a.Gone var int",
		"! a.Most const untyped int = 3 → const untyped int = 4",
		"! a.Query.Port field int → field int32",
		"+ a.Device.New func()",
	}, Diff(old, now))
	assert.Empty(t, Diff(now, now))
	_, err = List(before, "./none")
	assert.Error(t, err)
}

// What a changelog has to name: what is gone, means something else or is new, and of a new type no more than the type.
func TestUnlisted(t *testing.T) {
	lines := []string{"- a.Gone var int", "! a.Find func() → func(int)", "+ a.Device.New func()", "+ a.List struct",
		"+ a.List.Len func() int", "+ a.Other struct", "+ a.Other.Size func() int"}
	assert.Equal(t, lines, Unlisted(lines, "Goner and Devices find news."))
	assert.Empty(t, Unlisted(lines, "`Gone` is `a.Find`. `Device` has `New`. There are `List` and `Other`."))
	assert.Equal(t, lines[3:5], Unlisted(lines, "Gone, Find, New, and an Other."))
}
