// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// calls matches an integer member whose comment names an enumeration.
	calls = regexp.MustCompile(`(?m)^[ \t]*(?:unsigned int|int|u?int(?:8|16|32|64)_t|__u(?:8|16|32|64)|__aligned_u64)\s+` +
		`(\w+);[ \t]*(?:\\f\[I\])?/\*.*?(?:[Uu]se|[Ff]rom|[Ee]num|between)\s+"?(?:enum\s+)?(\w+_\w+)`)
	declares = regexp.MustCompile(`(?m)^(?:enum|#define) (\w+)`)
)

// TestCommentsThatNameEnums checks that there is a row for each member whose comment names an enumeration, in the
// headers and man pages of every cached release.
func TestCommentsThatNameEnums(t *testing.T) {
	var files []string
	for _, pattern := range []string{"include/infiniband/*.h", "include/rdma/*.h", "man/*.3"} {
		found, err := filepath.Glob(filepath.Join("../../headers/cache/*", pattern))
		require.NoError(t, err)
		for _, file := range found {
			if !strings.Contains(file, "/freebsd-") { // rdma-core has all of its members
				files = append(files, file)
			}
		}
	}
	if len(files) == 0 {
		t.Skip("headers/cache is empty; make headers fills it")
	}
	x, err := DefaultExceptions()
	require.NoError(t, err)
	held := map[string]bool{}
	for _, row := range x.Rows {
		if e := exceptionOf(row); e.Action == Holds {
			held[e.C[strings.LastIndexByte(e.C, '.')+1:]] = true
		}
	}
	held["general_odp_caps"] = true // the man page's name for general_caps
	held["type"] = true             // a member of a structure that was removed
	texts, enums := map[string]string{}, map[string]bool{}
	for _, file := range files {
		header := "header " + filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file)
		if x.find(Skip, header) != nil {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		texts[file] = string(text)
		for _, m := range declares.FindAllStringSubmatch(string(text), -1) {
			enums[m[1]] = true
		}
	}
	members := 0
	for file, text := range texts {
		for _, m := range calls.FindAllStringSubmatch(text, -1) {
			if enums[m[2]] { // other enumerations belong to the kernel
				members++
				assert.True(t, held[m[1]], "%s: %s holds %s; add a holds row to "+
					"gen/rules/exceptions.txt", file, m[1], m[2])
			}
		}
	}
	assert.Greater(t, members, 50)
}
