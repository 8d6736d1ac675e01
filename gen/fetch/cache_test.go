// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// filled returns a cache that holds the complete release.
func filled(t *testing.T) (string, *Release) {
	rel, cache := pinned(t), t.TempDir()
	_, err := FromDir(unpacked(t, packageFiles), rel, cache, nil)
	require.NoError(t, err)
	require.NoError(t, Verify(cache, rel))
	return cache, rel
}

func TestVerifyNotCached(t *testing.T) {
	err := Verify(t.TempDir(), pinned(t))
	assert.ErrorIs(t, err, ErrNotCached)
	var m *MismatchError
	assert.False(t, errors.As(err, &m))
}

func TestVerifyMismatch(t *testing.T) {
	verbs := sum([]byte("int verbs;\n"))
	for name, c := range map[string]struct {
		damage func(home string) error
		want   Diff
	}{
		"changed header": {
			func(home string) error { return os.WriteFile(home+"/include/infiniband/verbs.h", []byte("x"), 0o644) },
			Diff{"include/infiniband/verbs.h", verbs, sum([]byte("x"))},
		},
		"missing header": {
			func(home string) error { return os.Remove(home + "/include/infiniband/verbs.h") },
			Diff{"include/infiniband/verbs.h", verbs, "<missing>"},
		},
		"header is a directory": {
			func(home string) error {
				return errors.Join(os.Remove(home+"/include/infiniband/verbs.h"),
					os.Mkdir(home+"/include/infiniband/verbs.h", 0o755))
			},
			Diff{"include/infiniband/verbs.h", verbs, "<missing>"},
		},
		"changed page": {
			func(home string) error { return os.WriteFile(home+"/man/ibv_post_send.3", nil, 0o644) },
			Diff{"man/ibv_post_send.3", sum([]byte(".TH post_send\n")), sum(nil)},
		},
		"link elsewhere": {
			func(home string) error {
				return errors.Join(os.Remove(home+"/man/ibv_wr_send.3"),
					os.Symlink("ibv_post_send.3", home+"/man/ibv_wr_send.3"))
			},
			Diff{"man/ibv_wr_send.3", "<link to ibv_wr_post.3>", "<link to ibv_post_send.3>"},
		},
		"stranger": {
			func(home string) error { return os.WriteFile(home+"/include/infiniband/sa.h", nil, 0o644) },
			Diff{"include/infiniband/sa.h", "<not pinned>", sum(nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cache, rel := filled(t)
			require.NoError(t, c.damage(filepath.Join(cache, "9.0")))
			err := Verify(cache, rel)
			var m *MismatchError
			require.ErrorAs(t, err, &m)
			assert.Equal(t, []Diff{c.want}, m.Diffs)
			assert.NotErrorIs(t, err, ErrNotCached)
			assert.ErrorContains(t, err, "fetch the release again")
		})
	}
}

func TestUnwritableCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	_, err := FromDir(unpacked(t, packageFiles), pinned(t), filepath.Join(file, "cache"), nil)
	assert.ErrorContains(t, err, "rdma-core 9.0: cannot write the cache: ")
	assert.ErrorContains(t, err, file)
}

// breakRename makes the nth and all later renames fail, as if the disk or the process had failed there.
func breakRename(t *testing.T, nth int) {
	n := 0
	rename = func(from, to string) error {
		if n++; n >= nth {
			return errors.New("interrupted")
		}
		return os.Rename(from, to)
	}
	t.Cleanup(func() { rename = os.Rename })
}

func TestInterruptedSwap(t *testing.T) {
	fill := func(t *testing.T, cache string, rel *Release) error {
		_, err := FromDir(unpacked(t, packageFiles), rel, cache, nil)
		return err
	}
	t.Run("before the old release moved", func(t *testing.T) {
		cache, rel := filled(t)
		breakRename(t, 1)
		assert.ErrorContains(t, fill(t, cache, rel), "interrupted")
		assert.NoError(t, Verify(cache, rel), "the old release is unchanged")
	})
	t.Run("only the new release fails to move", func(t *testing.T) {
		cache, rel := filled(t)
		n := 0
		rename = func(from, to string) error {
			if n++; n == 2 {
				return errors.New("interrupted")
			}
			return os.Rename(from, to)
		}
		t.Cleanup(func() { rename = os.Rename })
		assert.ErrorContains(t, fill(t, cache, rel), "interrupted")
		assert.NoError(t, Verify(cache, rel), "the old release is restored")
	})
	t.Run("nothing works after the old release moved", func(t *testing.T) {
		cache, rel := filled(t)
		breakRename(t, 2)
		assert.ErrorContains(t, fill(t, cache, rel), "interrupted")
		assert.ErrorIs(t, Verify(cache, rel), ErrNotCached, "absent, not incomplete")
		rename = os.Rename
		require.NoError(t, fill(t, cache, rel))
		assert.NoError(t, Verify(cache, rel))
	})
}

func TestSweep(t *testing.T) {
	cache, rel := t.TempDir(), pinned(t)
	old, young := filepath.Join(cache, ".put-1"), filepath.Join(cache, ".put-2")
	require.NoError(t, os.Mkdir(old, 0o755))
	require.NoError(t, os.Mkdir(young, 0o755))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	_, err := FromDir(unpacked(t, packageFiles), rel, cache, nil)
	require.NoError(t, err)
	assert.NoDirExists(t, old)
	assert.DirExists(t, young, "its process may still run")
}
