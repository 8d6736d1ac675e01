// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// notOurs are directories whose text is written by a program or comes from elsewhere.
var notOurs = []string{"generated", "headers/cache", "conformance/vm/cache", "conformance/vm/results",
	"conformance/bench/results"}

// texts calls see for every Go and Markdown file of the repository, with its path from the root.
func texts(t *testing.T, see func(path, text string)) {
	root := "../.."
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		switch {
		case d.IsDir() &&
			(slices.Contains(notOurs, path) || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") &&
				name != root):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go" && filepath.Ext(name) != ".md" || path == "docs/verbs.md":
			return nil
		}
		text, err := os.ReadFile(name)
		see(path, string(text))
		return err
	}))
}

// riddles are shapes of sentences that readers stumble over, with what to write instead.
var riddles = []struct {
	shape   *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?:^|[.:;,] )[Ww]ho\b[^?]*$`), `name the subject: "a goroutine that posts", not "who posts"`},
	{regexp.MustCompile(`\b(?:of|to|by|for|from|with|under|than|and|wakes|lets|makes|excludes|costs) who\b`),
		`name the person or the part: "for a goroutine that waits", not "for who waits"`},
	{regexp.MustCompile(`\b(?:[Aa]n|[Tt]he) own\b`), `"its own", "a … of its own"`},
	{regexp.MustCompile(`\bis no [a-z ]+ that is known\b`), `"is not a known …"`},
}

// sentences returns what a reader reads of a file: comments of Go, or Markdown without code, by line.
func sentences(path, text string) map[int]string {
	said := map[int]string{}
	if filepath.Ext(path) == ".md" {
		fenced := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			} else if !fenced {
				said[i+1] = strings.TrimLeft(line, " -|*#0123456789.")
			}
		}
		return said
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	lastLine, lastText := 0, ""
	for pos, tok, lit := s.Scan(); tok != token.EOF; pos, tok, lit = s.Scan() {
		if tok != token.COMMENT {
			continue
		}
		line := file.Position(pos).Line
		lit = strings.TrimSpace(strings.TrimPrefix(lit, "//"))
		if lastLine == line-1 && lastText != "" && !strings.ContainsAny(lastText[len(lastText)-1:], ".:;") {
			lit = ", " + lit // the sentence goes on
		}
		said[line], lastLine, lastText = lit, line, lit
	}
	return said
}

// stillRiddles are rooms whose comments are still to be written in plain sentences.
var stillRiddles = []string{}

func TestWords(t *testing.T) {
	seen, stale := 0, slices.Clone(stillRiddles)
	texts(t, func(path, text string) {
		for line, sentence := range sentences(path, text) {
			seen++
			for _, r := range riddles {
				if found := r.shape.FindString(sentence); found == "" {
					continue
				}
				excepted := func(room string) bool { return under(path, room) }
				if i := slices.IndexFunc(stillRiddles, excepted); i >= 0 {
					stale = slices.DeleteFunc(stale, func(room string) bool { return room == stillRiddles[i] })
				} else {
					assert.Fail(t, "a riddle", "%s:%d: %q: %s", path, line, strings.TrimSpace(sentence), r.instead)
				}
			}
		}
	})
	assert.Greater(t, seen, 5000)
	assert.Empty(t, stale, "these rooms have no riddles any more: their rows go")
}

func TestWordsFail(t *testing.T) {
	for sentence, riddle := range map[string]bool{
		"// Who posts does the work.":                   true,
		"// Close wakes all: who waits looks again.":    true,
		"// for who wants it":                           true,
		"// the own address":                            true,
		"// 7 is no type that is known":                 true,
		"// who imports whom?":                          false,
		"// goroutines of those who wait, which look":   false,
		"// it says who may open it, and why":           false,
		"var x = \"a string is not looked at: who is\"": false,
	} {
		found := false
		for _, said := range sentences("a.go", "package p\n\n"+sentence+"\n") {
			for _, r := range riddles {
				found = found || r.shape.MatchString(said)
			}
		}
		assert.Equal(t, riddle, found, "%s", sentence)
	}
	assert.Len(t, sentences("a.md", "# Title\n\nText.\n```\nwho\n```\n"), 4, fmt.Sprint("text without code"))
}
