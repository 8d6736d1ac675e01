// SPDX-License-Identifier: BSD-2-Clause

package headers

import (
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"path/filepath"
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
