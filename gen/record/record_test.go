// SPDX-License-Identifier: BSD-2-Clause

package record

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

const cache = "../../headers/cache"

// TestRecordedModels parses the headers of every pinned release again and compares the result with the committed model.
// It skips releases whose headers are unavailable and logs their names.
func TestRecordedModels(t *testing.T) {
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	require.NoError(t, err)
	for _, rel := range lock.Releases {
		t.Run(rel.File(), func(t *testing.T) {
			err := fetch.Verify(cache, rel)
			if errors.Is(err, fetch.ErrNotCached) {
				t.Skipf("%s is not in headers/cache (make headers reports why): its model was not compared", rel)
			}
			lacking := (*fetch.IncompleteError)(nil)
			if errors.As(err, &lacking) && len(lacking.Pages) > 0 {
				t.Skipf("%s: %v: its model was not compared", rel, err)
			}
			if lacking != nil {
				t.Logf("%s: %v: the symbols of these libraries were not compared", rel, err)
			} else {
				require.NoError(t, err)
			}
			want, err := headers.Model(rel.File())
			require.NoError(t, err)
			recorded, err := model.Decode(rel.File(), want)
			require.NoError(t, err)
			r, err := FromCache(cache, cache, lock, rel, recorded)
			require.NoError(t, err)
			got, err := r.Encode()
			require.NoError(t, err)
			assert.True(t, string(want) == string(got),
				"headers/models/%s.json does not match its headers; run make record and read the diff", rel.File())
		})
	}
}

// TestLibrariesExportDeclaredFunctions checks that the libraries of each recorded release export every function that
// the headers declare, and that newly linked programs get its default version.
func TestLibrariesExportDeclaredFunctions(t *testing.T) {
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	require.NoError(t, err)
	for _, rel := range lock.Releases {
		text, err := headers.Model(rel.File())
		require.NoError(t, err)
		r, err := model.Decode(rel.File(), text)
		require.NoError(t, err)
		found := 0
		for _, p := range rules.Calling() {
			lib := r.Library(p.Verbs.SOName)
			if lib == nil {
				continue
			}
			found++
			for _, h := range r.Headers {
				if !slices.Contains(p.Headers, h.Name) {
					continue
				}
				for _, f := range h.Funcs {
					if f.Inline != nil {
						continue
					}
					assert.True(t, slices.ContainsFunc(lib.Symbols, func(s model.Symbol) bool {
						return s.Name == f.Name && !s.Old && !s.Object
					}), "%s: %s does not export %s, which %s declares", r, lib.Name, f.Name, h.Name)
				}
			}
		}
		assert.Equal(t, len(r.Libraries), found, r)
		assert.Equal(t, map[string]int{"rdma-core": 2, "librpma": 1}[r.Project], found, r)
	}
}

func TestMissing(t *testing.T) {
	_, err := FromCache(t.TempDir(), cache, &fetch.Lock{}, &fetch.Release{Project: "rdma-core", Name: "9.9"}, nil)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "9.9")
}
