// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestInGuests checks the list of packages that guest programs depend on, including the parts of the software device
// that they use.
func TestInGuests(t *testing.T) {
	for room, in := range map[string]bool{
		"rdma": true, "rdma/cm": true, "rdma/stream": true, "rdma/internal/life": true, "rdma/software": true,
		"conformance/vm/rxe": true, "rdma/soft": false,
		"rdma/soft/internal/device": false, "rdma/soft/internal/rate": true,
	} {
		assert.Equal(t, in, inGuests(room), room)
	}
	for _, room := range append(absent, present...) {
		assert.DirExists(t, filepath.Join(moduleRoot(), room))
	}
}

// TestSourceDigest checks that a package's digest changes with any of its files, unless guests do not use it.
func TestSourceDigest(t *testing.T) {
	root := t.TempDir()
	of := func(room, text, name string) string {
		s := source{ImportPath: "m/" + room, Dir: filepath.Join(moduleRoot(), room)}
		s.Module = &struct {
			Path, Version string
			Main          bool
		}{"m", "", true}
		relative, err := filepath.Rel(s.Dir, put(t, root, name, []byte(text)))
		require.NoError(t, err)
		s.GoFiles = []string{relative}
		digest, err := s.digest()
		require.NoError(t, err)
		return digest
	}
	assert.Equal(t, of("rdma", "one", "a.go"), of("rdma", "one", "a.go"))
	assert.NotEqual(t, of("rdma", "one", "a.go"), of("rdma", "two", "a.go"))
	assert.NotEqual(t, of("rdma", "one", "a.go"), of("rdma", "one", "b.go"))
	assert.Equal(t, of("rdma/soft", "one", "a.go"), of("rdma/soft", "two", "a.go"))
}

// TestSourceDigests checks that the digest of a test program covers its tests, its packages and its build flags.
func TestSourceDigests(t *testing.T) {
	const program = "github.com/goverbs/goverbs/conformance/vm/misbehave"
	plain, err := sourceDigests(t.Context(), []string{"./misbehave", "./rxe"}, nil)
	require.NoError(t, err)
	assert.NotEmpty(t, plain[program])
	test := plain["github.com/goverbs/goverbs/conformance/vm/rxe.test"]
	assert.NotEmpty(t, test)
	assert.NotEqual(t, test, plain["github.com/goverbs/goverbs/conformance/vm/rxe"], "the tests count")
	again, err := sourceDigests(t.Context(), []string{"./misbehave"}, nil)
	require.NoError(t, err)
	assert.Equal(t, plain[program], again[program])
	tagged, err := sourceDigests(t.Context(), []string{"./misbehave"}, []string{"-tags=x"})
	require.NoError(t, err)
	assert.NotEqual(t, plain[program], tagged[program])
}
