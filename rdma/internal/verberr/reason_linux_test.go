// SPDX-License-Identifier: BSD-2-Clause

package verberr

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestErrnosOfExistingVerbs(t *testing.T) {
	verbs := map[string]bool{}
	files, err := filepath.Glob("../../../generated/libibverbs/*.go")
	require.NoError(t, err)
	c := regexp.MustCompile(`(?m)^// C: [^(]*?([a-z_0-9]+)\(`)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range c.FindAllStringSubmatch(string(text), -1) {
			verbs[m[1]] = true
		}
	}
	require.Greater(t, len(verbs), 150)
	seen := map[string]bool{}
	for _, r := range errnoReasons {
		assert.NotEmpty(t, r.reason, r.verbs)
		assert.NotEmpty(t, r.source, r.verbs)
		assert.NotZero(t, r.errno, r.verbs)
		for v := range strings.FieldsSeq(r.verbs) {
			assert.True(t, verbs[v], "%s is not a verb", v)
			key := v + " " + r.errno.Error()
			assert.False(t, seen[key], "duplicate %s", key)
			seen[key] = true
		}
	}
}
