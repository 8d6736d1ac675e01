// SPDX-License-Identifier: BSD-2-Clause

package headers

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "compress the models again that have changed")

// TestModels: the embedded models equal the recorded ones.
func TestModels(t *testing.T) {
	recorded, err := filepath.Glob("models/*.json")
	require.NoError(t, err)
	packed, err := filepath.Glob("models/*.json.gz")
	require.NoError(t, err)
	if *update {
		packed = recorded
	}
	assert.Len(t, packed, len(recorded))
	for _, path := range recorded {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		have, _ := Model(strings.TrimSuffix(filepath.Base(path), ".json"))
		if *update && !bytes.Equal(want, have) {
			var b bytes.Buffer
			w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
			require.NoError(t, err)
			_, err = w.Write(want)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			require.NoError(t, os.WriteFile(path+".gz", b.Bytes(), 0o644))
			continue
		}
		assert.True(t, bytes.Equal(want, have), "%s.gz is not %s: go test ./headers -update", path, path)
	}
}

// TestSystems: another system's C library headers hide Linux's, and its macros are its own.
func TestSystems(t *testing.T) {
	for _, c := range []struct{ goos, has string }{{"", "char bytes["}, {"freebsd", "struct pthread_mutex *"}} {
		text, err := fs.ReadFile(ShimOf(c.goos), "pthread.h")
		require.NoError(t, err)
		assert.Contains(t, string(text), c.has)
		text, err = fs.ReadFile(ShimOf(c.goos), "string.h")
		require.NoError(t, err)
		assert.Contains(t, string(text), "memset")
	}
	var files []string
	require.NoError(t, fs.WalkDir(ShimOf("freebsd"), ".", func(path string, d fs.DirEntry, err error) error {
		files = append(files, path)
		return err
	}))
	assert.Subset(t, files, []string{"pthread.h", "string.h", "sys/socket.h", "sys/uio.h", "infiniband/types.h"})
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(files))), len(files))
	assert.Equal(t, []string{"amd64", "arm64"}, TargetsOf("freebsd"))
	assert.Equal(t, "amd64", Targets()[0])
	for _, target := range TargetsOf("freebsd") {
		text, err := MacrosOf("freebsd", target)
		require.NoError(t, err)
		assert.Contains(t, text, "#define __FreeBSD__ 12\n")
	}
	_, err := MacrosOf("freebsd", "s390x")
	assert.ErrorIs(t, err, fs.ErrNotExist)
}
