// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const columns, tab = 120, 4

// tooLong is the numbers of the lines of a text that are wider than that. It leaves out raw strings, which
// are data, long words such as links, and in Markdown tables and code.
func tooLong(name, text string) (long []int) {
	markdown := strings.HasSuffix(name, ".md")
	inside := false // a raw string or code
	number := 0
	for line := range strings.Lines(text) {
		number++
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
			!strings.HasPrefix(line, "//go:build ") && !strings.HasPrefix(line, "//verbs:c ") { // which are one line
			long = append(long, number)
		}
	}
	return long
}

// TestColumns checks that code, comments and sentences of Markdown fit into 120 columns.
func TestColumns(t *testing.T) {
	list := exec.Command("git", "ls-files", "-z", "*.go", "*.md", ":!generated",
		":!conformance/*/results/*.md", ":!docs/verbs.md") // which programs write
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Skip("this is no checkout: ", err)
	}
	files := 0
	for name := range bytes.SplitSeq(bytes.Trim(out, "\x00"), []byte{0}) {
		text, err := os.ReadFile(path.Join("../..", string(name)))
		if os.IsNotExist(err) { // it was removed, and that is not committed yet
			continue
		}
		require.NoError(t, err)
		files++
		for _, line := range tooLong(string(name), string(text)) {
			t.Errorf("%s:%d: the line has more than %d columns", name, line, columns)
		}
	}
	assert.Greater(t, files, 500)
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
		"prototype":  {"a.go", "//verbs:c " + long, 0},
		"one word":   {"a.go", "// " + strings.Repeat("x", 200), 0},
	} {
		assert.Len(t, tooLong(c.file, c.text), c.n, name)
	}
}
