// SPDX-License-Identifier: BSD-2-Clause

package project

import (
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRows checks that included projects come first, file names are unique, and no project installs a header of
// another.
func TestRows(t *testing.T) {
	prefixes := map[string]string{}
	for i, p := range All {
		assert.Same(t, p, Named(p.Name))
		assert.Empty(t, prefixes[p.Prefix], "%s and %s: releases with the same number would share a file", p.Name,
			prefixes[p.Prefix])
		prefixes[p.Prefix] = p.Name
		if p.Includes != "" {
			before := slices.Index(Names(), p.Includes)
			assert.GreaterOrEqual(t, before, 0, "%s includes headers of %s, which has no row", p.Name, p.Includes)
			assert.Less(t, before, i, "%s must follow %s", p.Name, p.Includes)
		}
		if p.GOOS == "" {
			assert.Equal(t, p, Of(p.Mark), "%s: %s belongs to another project", p.Name, p.Mark)
		} else {
			assert.True(t, p.Has(p.Mark), p.Name)
			assert.NotEqual(t, p, Of(p.Mark), "%s: headers belong to Linux unless a package names the project", p.Name)
			assert.NotContains(t, Linux(), p)
		}
		assert.NotEmpty(t, p.Packages)
		for _, pattern := range append(p.Headers(), p.Installs...) {
			_, err := path.Match(pattern, "")
			assert.NoError(t, err, "%s: %s", p.Name, pattern)
		}
		for _, of := range p.Packages {
			for _, pattern := range of.Pages {
				_, err := path.Match(pattern, "")
				assert.NoError(t, err, "%s: %s", p.Name, pattern)
			}
		}
	}
	assert.Nil(t, Named("libnone"))
	assert.Equal(t, "linux", Of("rdma/ib_user_verbs.h").Name, "a kernel header in rdma-core's directory")
	assert.Nil(t, Of("linux/types.h"), "the shim's")
	assert.True(t, Named("rdma-core").Pages())
	assert.False(t, Named("linux").Pages())
}

func TestCompareReleases(t *testing.T) {
	assert.Negative(t, CompareReleases("9.1", "44.0"))
	assert.Negative(t, CompareReleases("56.0", "56.1"))
	assert.Positive(t, CompareReleases("56.1", "56"))
	assert.Zero(t, CompareReleases("56.1", "56.1"))
}
