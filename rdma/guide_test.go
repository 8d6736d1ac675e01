package rdma_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuides: every piece of Go in the guides stands in a file that is compiled and run.
func TestGuides(t *testing.T) {
	var sources []string
	for _, pattern := range []string{"example*_test.go", "../examples/*/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sources = append(sources, string(text))
		}
	}
	require.NotEmpty(t, sources)
	for _, guide := range []string{"../docs/guide.md", "../docs/guide-libibverbs.md"} {
		text, err := os.ReadFile(guide)
		require.NoError(t, err)
		pieces := strings.Split(string(text), "```go\n")[1:]
		assert.Greater(t, len(pieces), 3, guide)
		for _, piece := range pieces {
			piece, _, _ = strings.Cut(piece, "```")
			found := false
			for _, source := range sources {
				found = found || strings.Contains(source, piece)
			}
			assert.True(t, found, "%s: no example has\n%s", guide, piece)
		}
	}
}
