// SPDX-License-Identifier: BSD-2-Clause

package record

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/headers"
)

const cache = "../../headers/cache"

// TestRecordedModels reads the headers of every pinned release again and compares with the committed model. A release
// whose headers cannot be had on this machine is skipped by name.
func TestRecordedModels(t *testing.T) {
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	require.NoError(t, err)
	for _, rel := range lock.Releases {
		t.Run(rel.Name, func(t *testing.T) {
			err := fetch.Verify(cache, rel)
			if errors.Is(err, fetch.ErrNotCached) {
				t.Skipf("rdma-core %s is not in headers/cache (make headers says why): its model was not compared",
					rel.Name)
			}
			if lacking := (*fetch.PagesMissingError)(nil); errors.As(err, &lacking) {
				t.Skipf("rdma-core %s: %v: its model was not compared", rel.Name, err)
			}
			require.NoError(t, err)
			r, err := FromCache(cache, rel)
			require.NoError(t, err)
			got, err := r.Encode()
			require.NoError(t, err)
			want, err := headers.Model(rel.Name)
			require.NoError(t, err)
			assert.True(t, string(want) == string(got),
				"headers/models/%s.json is not what its headers say; run make record and look at the diff", rel.Name)
		})
	}
}

func TestMissing(t *testing.T) {
	_, err := FromCache(t.TempDir(), &fetch.Release{Name: "9.9"})
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "9.9")
}
