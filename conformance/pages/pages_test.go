// SPDX-License-Identifier: BSD-2-Clause

package pages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	// Imports of the pages' code, so that go test does not use a cached result when they change.
	_ "github.com/goverbs/goverbs/rdma/cm"
	_ "github.com/goverbs/goverbs/rdma/soft"
	_ "github.com/goverbs/goverbs/rdma/stream"
)

const (
	root   = "../.."
	module = "github.com/goverbs/goverbs"
)

// pages returns README.md and docs/ by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	require.NoError(t, err)
	texts := map[string]string{}
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		texts[strings.TrimPrefix(filepath.ToSlash(file), root+"/")] = string(text)
	}
	return texts
}

// userModule returns the directory of a user's module that requires this tree.
func userModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tree, err := filepath.Abs(root)
	require.NoError(t, err)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	write(t, filepath.Join(dir, "go.sum"), string(sum))
	write(t, filepath.Join(dir, "go.mod"),
		"module user\n\ngo 1.26\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+tree+"\n")
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
}

// run runs a command in a directory and returns its output.
func run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off",
		"GOVERBS_DEVICE=soft0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPages compiles all Go code in README.md and docs/, runs complete programs and tests on the software device, and
// compares their output with the page.
func TestPages(t *testing.T) {
	dir := userModule(t)
	harness, err := os.ReadFile("testdata/body.go.txt")
	require.NoError(t, err)
	type ran struct{ name, where, output string }
	var programs []ran
	counts := map[kind]int{}
	for page, text := range pages(t) {
		if os.Getenv("GOVERBS_LONG") == "" && filepath.Base(page) != "README.md" {
			continue // make test sets it
		}
		all, err := blocks(text)
		require.NoError(t, err, page)
		short := strings.TrimSuffix(filepath.Base(page), ".md")
		for i, b := range all {
			if b.info != "go" || strings.Contains(b.text, "gofakes3") { // s3rdma/sdktest runs it
				continue
			}
			k, from, err := kindOf(b)
			require.NoError(t, err, page)
			counts[k]++
			name, where := fmt.Sprintf("%s-%d", strings.ToLower(short), b.line), fmt.Sprintf("%s:%d", page, b.line)
			switch k {
			case program:
				write(t, filepath.Join(dir, name, "main.go"), b.text)
				want := ""
				if i+1 < len(all) && all[i+1].info == "output" {
					want = all[i+1].text
				}
				programs = append(programs, ran{name, where, want})
			case test:
				write(t, filepath.Join(dir, name, "user_test.go"), b.text)
			case body:
				write(t, filepath.Join(dir, name, "body.go"),
					string(harness)+"\nfunc page() error {\n"+b.text+"\nreturn nil\n}\n")
			case fragment:
				source, err := os.ReadFile(filepath.Join(root, from))
				require.NoError(t, err, where)
				assert.Contains(t, flat(string(source)), flat(b.text), "%s: not found in %s", where, from)
			}
		}
	}
	out, err := run(t, dir, "go", "vet", "./...")
	require.NoError(t, err, "%s", out)
	out, err = run(t, dir, "go", "build", "-o", "bin/", "./...")
	require.NoError(t, err, "%s", out)
	for _, p := range programs {
		out, err := run(t, dir, filepath.Join(dir, "bin", p.name))
		assert.NoError(t, err, "%s: %s", p.where, out)
		if p.output != "" {
			assert.Equal(t, p.output, out, p.where)
		}
	}
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Log("GOVERBS_LONG is not set: only the programs of README.md are run")
		return
	}
	out, err = run(t, dir, "go", "test", "-vet=off", "./...")
	assert.NoError(t, err, "%s", out)
	assert.Contains(t, out, "ok  \t", "tests of the pages ran")
	for k, least := range map[kind]int{program: 4, test: 1, body: 3, fragment: 10} {
		assert.GreaterOrEqual(t, counts[k], least, "blocks of kind %d", k)
	}
}

func TestBlocks(t *testing.T) {
	all, err := blocks("# Page\n\n<!-- from a.go -->\n```go\nx := 1\n```\nText.\n\n" +
		"<!-- body -->\n\nText between.\n```go\ny\n```\n```\nmake\n```\n")
	require.NoError(t, err)
	assert.Equal(t, []block{{5, "go", "from a.go", "x := 1\n"}, {13, "go", "", "y\n"}, {16, "", "", "make\n"}}, all)
	k, from, err := kindOf(all[0])
	require.NoError(t, err)
	assert.Equal(t, fragment, k)
	assert.Equal(t, "a.go", from)
	_, _, err = kindOf(all[1])
	assert.ErrorContains(t, err, "line 13")
	for text, want := range map[string]kind{
		"package main\n\nfunc main() {}\n":               program,
		"package my_test\n\nfunc TestIt(t *testing.T) {": test,
	} {
		k, _, err := kindOf(block{text: text})
		require.NoError(t, err)
		assert.Equal(t, want, k, text)
	}
	_, err = blocks("```go\nx\n")
	assert.ErrorContains(t, err, "line 1: the fence is not closed")
}

// TestLinks checks that links within this tree have a target.
func TestLinks(t *testing.T) {
	seen := 0
	for page, text := range pages(t) {
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, "](")
			if !ok {
				break
			}
			link, _, _ := strings.Cut(after, ")")
			rest = after
			file, heading, _ := strings.Cut(link, "#")
			if strings.Contains(link, "://") || strings.ContainsAny(link, " \n") {
				continue
			}
			seen++
			target := filepath.Join(root, filepath.Dir(page), file)
			if file == "" {
				target = filepath.Join(root, page)
			}
			_, err := os.Stat(target)
			assert.NoError(t, err, "%s links to %s", page, link)
			if heading != "" && err == nil {
				targetData, err := os.ReadFile(target)
				require.NoError(t, err)
				assert.True(t, hasHeading(string(targetData), heading), "%s links to %s: no such heading", page, link)
			}
		}
	}
	assert.Greater(t, seen, 30)
}

// hasHeading reports whether a page has a heading with that anchor.
func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			slug := strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
					return r
				}
				return -1
			}, strings.ToLower(strings.TrimSpace(title)))
			if slug == anchor {
				return true
			}
		}
	}
	return false
}
