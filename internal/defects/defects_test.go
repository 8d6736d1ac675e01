// SPDX-License-Identifier: BSD-2-Clause

package defects

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of docs/hardware.md")

// TestIn: a release has the defect if it is not older than Since, and neither it nor an earlier release of its branch
// has the fix.
func TestIn(t *testing.T) {
	d := Defect{Since: "34.0", Fixed: []string{"59.0", "56.3", "44.11"}}
	for release, want := range map[string]bool{
		"33.2": false, "34.0": true, "41.0": true, "44.0": true, "44.9": true, "44.11": false, "44.12": false,
		"45.0": true, "56.1": true, "56.3": false, "58.1": true, "59.0": false, "59.2": false, "100.0": false,
	} {
		assert.Equal(t, want, d.In(release), release)
	}
	never := Defect{Since: "34.0"}
	assert.True(t, never.In("65.0"))
	assert.True(t, Of("rxe", "next-poll"))
	assert.False(t, Of("mlx5", "next-poll"))
}

// documented marks a defect that programs must work around.
const documented = "documented"

// TestRows: every row is complete, defect names are unique, and releases are in descending order. Every row names an
// existing test, unless the defect is only documented.
func TestRows(t *testing.T) {
	release := regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	seen := map[string]bool{}
	for _, d := range All() {
		name := d.Library + " " + d.Name
		assert.False(t, seen[name], name)
		seen[name] = true
		assert.Regexp(t, release, d.Since, name)
		for i, f := range d.Fixed {
			assert.Regexp(t, release, f, name)
			assert.True(t, slices.Compare(numbers(f), numbers(d.Since)) > 0, name)
			assert.True(t, i == 0 || numbers(f)[0] < numbers(d.Fixed[i-1])[0], name)
		}
		assert.Regexp(t, `^(avoided|refused|documented)\b`, d.Remedy, name)
		assert.NotEmpty(t, d.Effect, name)
		if d.Test == documented {
			assert.NotEqual(t, "rxe", d.Library, "%s: Soft-RoCE can be tested in guests", name)
			assert.True(t, strings.HasPrefix(d.Remedy, documented), "%s: remedy %q has no test", name, d.Remedy)
			continue
		}
		assert.True(t, hasTest(t, d.Test), "%s: test %s does not exist", name, d.Test)
	}
	assert.Greater(t, len(seen), 50)
}

// hasTest reports whether a test exists, named as "`DIRECTORY -run NAME`".
func hasTest(t *testing.T, test string) bool {
	dir, name, _ := strings.Cut(strings.Trim(test, "`"), " -run ")
	files, err := filepath.Glob("../../" + dir + "/*_test.go")
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		return f.Scope.Lookup(name) != nil
	})
}

// TestPage: docs/hardware.md contains the table.
func TestPage(t *testing.T) {
	const file, begin, end = "../../docs/hardware.md", "<!-- defects -->\n", "<!-- end of defects -->\n"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	require.True(t, ok && ok2, "the markers of the table are missing")
	var b strings.Builder
	b.WriteString("\n| row | releases | what a program sees | what goverbs does | test |\n|---|---|---|---|---|\n")
	for _, d := range All() {
		fmt.Fprintf(&b, "| %s: %s | %s | %s | %s | %s |\n", d.Library, d.Name, releases(&d), d.Effect, d.Remedy, d.Test)
	}
	want := before + begin + b.String() + "\n" + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	assert.True(t, want == string(text), "docs/hardware.md is stale: go test ./internal/defects -run TestPage -update")
}

// releases describes the affected releases, such as "34.0 until 59.0; fixed in 58.1, 57.2".
func releases(d *Defect) string {
	if len(d.Fixed) == 0 {
		return "since " + d.Since
	}
	text := fmt.Sprintf("%s until %s", d.Since, d.Fixed[0])
	if len(d.Fixed) > 1 {
		text += "; not " + strings.Join(d.Fixed[1:], ", ")
	}
	return text
}
