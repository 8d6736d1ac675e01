// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pathRE matches paths from the root of the repository: a top-level directory and the rest. "..." ends a package
// pattern.
var pathRE = regexp.MustCompile(`(?:^|[\s(` + "`" + `"])(?:\./)?` +
	`((?:cmd|conformance|docs|examples|gen|generated|headers|rdma|rpma|runtime)/[\w*./-]+)`)

// placeholder matches a placeholder in a name: headers/macros/GOARCH.h.
var placeholder = regexp.MustCompile(`\b[A-Z]{3,}\b`)

// notCommitted are paths that a command creates, and an example release.
var notCommitted = []string{"conformance/vm/cache", "headers/cache", "headers/models/66.0.json"}

// paths returns the paths in a text.
func paths(text string) (all []string) {
	for _, m := range pathRE.FindAllStringSubmatch(text, -1) {
		path := strings.TrimSuffix(strings.TrimRight(m[1], "."), "/")
		all = append(all, placeholder.ReplaceAllString(path, "*"))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestPaths checks that paths in documents for contributors exist.
func TestPaths(t *testing.T) {
	documents, err := filepath.Glob("../../docs/dev/*.md")
	require.NoError(t, err)
	for _, document := range []string{"CONTRIBUTING.md", "ARCHITECTURE.md", "RATIONALE.md", "README.md"} {
		documents = append(documents, filepath.Join("../..", document))
	}
	for _, document := range documents {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, path := range paths(string(text)) {
			if under(path, notCommitted...) {
				continue
			}
			found, err := filepath.Glob(filepath.Join("../..", path))
			require.NoError(t, err)
			if len(found) == 0 {
				t.Errorf("%s: %s does not exist", document, path)
			}
			// A cache that an earlier command filled would hide a path that a clean checkout lacks.
			assert.NotContains(t, path, "/cache/", "%s: list the directory of %s in notCommitted", document, path)
		}
	}
}

// makeRE matches make commands in documents.
var makeRE = regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z0-9-]*)")

// TestMakeTargets checks that the Makefile has the targets in documents.
func TestMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	documents, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	nested, err := filepath.Glob("../../docs/*/*.md")
	require.NoError(t, err)
	seen := 0
	documents = append(documents, nested...)
	for _, document := range append(documents, "../../CONTRIBUTING.md", "../../ARCHITECTURE.md", "../../README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, m := range makeRE.FindAllStringSubmatch(string(text), -1) {
			seen++
			assert.Regexp(t, `(?m)^`+m[1]+`:`, string(makefile), "%s names make %s", document, m[1])
		}
	}
	assert.Greater(t, seen, 20)
}

func TestPathsAreFound(t *testing.T) {
	text := "`rdma/cq.go`, [page](docs/guide.md), go test ./gen/... ./rdma/internal/life -run X, results/soft.txt, " +
		"headers/macros/GOARCH.h."
	want := []string{"docs/guide.md", "gen", "headers/macros/*.h", "rdma/cq.go", "rdma/internal/life"}
	assert.Equal(t, want, paths(text))
}
