// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const columns, tab = 120, 4

// tooLong counts the lines of a text that are wider than that. It leaves out raw strings, which are data, long words
// such as links, and in Markdown tables and code.
func tooLong(name, text string) (n int) {
	markdown := strings.HasSuffix(name, ".md")
	inside := false // a raw string or code
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		within := inside
		if markdown {
			if strings.HasPrefix(line, "```") {
				inside = !inside
			}
			within = within || strings.HasPrefix(line, "|")
		} else if strings.Count(line, "`")%2 == 1 && !strings.HasPrefix(strings.TrimSpace(line), "//") {
			within, inside = true, !inside
		}
		wide := utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
		if !within && wide > columns && len(strings.Fields(line)) > 2 && !strings.Contains(line, "://") &&
			!strings.HasPrefix(line, "//go:build ") { // which is one line
			n++
		}
	}
	return n
}

// TestColumns checks that code, comments and sentences of Markdown fit into 120 columns. columns.txt says how many
// lines of a folder do not.
func TestColumns(t *testing.T) {
	const file = "columns.txt"
	list := exec.Command("git", "ls-files", "-z", "*.go", "*.md", ":!generated", ":!conformance/*/results",
		":!docs/verbs.md")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Skip("this is no checkout: ", err)
	}
	have := map[string]int{}
	for name := range bytes.SplitSeq(bytes.Trim(out, "\x00"), []byte{0}) {
		text, err := os.ReadFile(path.Join("../..", string(name)))
		if os.IsNotExist(err) { // it was removed, and that is not committed yet
			continue
		}
		require.NoError(t, err)
		have[path.Dir(string(name))] += tooLong(string(name), string(text))
	}
	assert.Greater(t, len(have), 50)
	maps.DeleteFunc(have, func(_ string, n int) bool { return n == 0 })
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	rows := map[string]int{}
	comment := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			comment += line
			continue
		}
		folder, number, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, err := strconv.Atoi(number)
		require.NoError(t, err, "%s: %q", file, line)
		rows[folder] = n
	}
	if *update {
		for _, folder := range slices.Sorted(maps.Keys(have)) {
			comment += fmt.Sprintf("%s\t%d\n", folder, have[folder])
		}
		require.NoError(t, os.WriteFile(file, []byte(comment), 0o644))
		return
	}
	for folder, n := range have {
		if n > rows[folder] {
			t.Errorf("%s: %d lines have more than %d columns, and %d is the most", folder, n, columns, rows[folder])
		}
	}
	for folder, n := range rows {
		if have[folder] < n {
			t.Errorf("%s: %d lines have more than %d columns, and its row of %s has %d: "+
				"go test ./conformance/house -run TestColumns -update", folder, have[folder], columns, file, n)
		}
	}
}

func TestWhatIsTooLong(t *testing.T) {
	long := strings.Repeat("word ", 24) + "w" // 121
	for name, c := range map[string]struct {
		file, text string
		n          int
	}{
		"code":       {"a.go", long, 1},
		"fits":       {"a.go", long[1:], 0},
		"tabs":       {"a.go", "\t" + long[4:] + "\n\t" + long[5:], 1},
		"runes":      {"a.go", strings.Repeat("→ü ", 40), 0},
		"raw string": {"a.go", "x := `\n" + long + "\n" + long + "`\n" + long, 1},
		"link":       {"a.md", long + "https://x", 0},
		"table":      {"a.md", "| " + long + "|\n" + long, 1},
		"md code":    {"a.md", "```\n" + long + "\n```\n" + long, 1},
		"build line": {"a.go", "//go:build " + long, 0},
		"one word":   {"a.go", "// " + strings.Repeat("x", 200), 0},
	} {
		assert.Equal(t, c.n, tooLong(c.file, c.text), name)
	}
}
