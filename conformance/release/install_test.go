// SPDX-License-Identifier: BSD-2-Clause

// Package release tests a version of this module as users get it: the content of its zip file, go install, and release
// notes.
package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

const (
	root = "../.."
	path = "github.com/goverbs/goverbs"
)

// version is unknown to any proxy.
var version = module.Version{Path: path, Version: "v0.0.1-test"}

// checkout copies the current files of the repository to a directory.
func checkout(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Skip("not a checkout: ", err)
	}
	dir := t.TempDir()
	for name := range bytes.SplitSeq(bytes.Trim(out, "\x00"), []byte{0}) {
		text, err := os.ReadFile(filepath.Join(root, string(name)))
		if os.IsNotExist(err) { // it was removed without a commit
			continue
		}
		require.NoError(t, err)
		write(t, filepath.Join(dir, string(name)), text)
	}
	return dir
}

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, text, 0o644))
}

// proxy creates a module proxy in a directory, with this tree as a version.
func proxy(t *testing.T) string {
	t.Helper()
	tree, dir := checkout(t), t.TempDir()
	at := filepath.Join(dir, path, "@v")
	write(t, filepath.Join(at, "list"), []byte(version.Version+"\n"))
	write(t, filepath.Join(at, version.Version+".info"), []byte(`{"Version":"`+version.Version+`"}`))
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	require.NoError(t, err)
	write(t, filepath.Join(at, version.Version+".mod"), mod)
	f, err := os.Create(filepath.Join(at, version.Version+".zip"))
	require.NoError(t, err)
	require.NoError(t, modzip.CreateFromDir(f, version, tree))
	size, err := f.Seek(0, 1)
	require.NoError(t, err)
	t.Logf("the zip file of the module has %d KB", size>>10)
	assert.Less(t, size, int64(16<<20), "every user downloads it")
	require.NoError(t, f.Close())
	return dir
}

// commands are those that pages tell users to install, with arguments for a test.
var commands = map[string][]string{
	"cmd/goverbs":                  {"explain", "12"},
	"conformance/abi/cmd/verbsabi": {"-dump", "-pkg", "efadv"},
	"examples/demo":                {"-time", "1ms", "-only", "FLUSH"},
}

// TestInstall checks that go install with a version finds all packages of each command that a page names in the
// module's zip file and its dependencies. make test-all also compiles and runs the commands.
func TestInstall(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("compiles programs; GOVERBS_LONG=1, which make test sets, runs it")
	}
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)
	cache := strings.TrimSpace(string(out))
	bin, mods := t.TempDir(), t.TempDir()
	env := append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+mods, "GOSUMDB=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0",
		"GOPROXY=file://"+proxy(t)+",file://"+filepath.Join(cache, "cache/download"))
	compile := os.Getenv("GOVERBS_EVERYTHING") != ""
	for command, try := range commands {
		install := exec.Command("go", "install", "-n="+strconv.FormatBool(!compile), path+"/"+command+"@latest")
		install.Dir, install.Env = bin, env
		out, err := install.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
		program := filepath.Join(bin, filepath.Base(strings.TrimSuffix(command, "/...")))
		if !compile {
			assert.Contains(t, string(out), program)
			continue
		}
		out, err = exec.Command(program, try...).CombinedOutput()
		assert.NoError(t, err, "%s: %s", command, out)
		assert.NotEmpty(t, out, command)
	}
}

// commandRE matches commands with a version that a page tells users to install or run.
var commandRE = regexp.MustCompile(path + `/([\w/-]+(?:/\.\.\.)?)@`)

// TestCommandsInPages checks that TestInstall covers each command that a page names with a version.
func TestCommandsInPages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	require.NoError(t, err)
	seen := 0
	pages = append(pages, filepath.Join(root, "README.md"), filepath.Join(root, ".github/workflows/release.yml"))
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range commandRE.FindAllStringSubmatch(string(text), -1) {
			seen++
			assert.Contains(t, commands, m[1], page)
		}
	}
	assert.Greater(t, seen, 4)
}

// TestNotes checks that the workflow's script extracts only the section of a version, and fails without one.
func TestNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "CHANGELOG.md")
	write(t, file, []byte("# Changelog\n\n## Unreleased\n\nnew\n\n## v0.1.1, 2026-12-01\n\nfixed\n\n### API\n\n"+
		"none\n\n## v0.1.0\n\nfirst\n\n## v0.0.9\n\n## v0.0.8\n\nold\n"))
	for tag, want := range map[string]string{
		"v0.1.1": "\nfixed\n\n### API\n\nnone\n", "v0.1.0": "\nfirst\n", "v0.0.9": "", "v0.1": "", "v9": "",
	} {
		out, err := exec.Command(filepath.Join(root, ".ci/notes"), tag, file).Output()
		assert.Equal(t, want, string(out), tag)
		assert.Equal(t, want == "", err != nil, tag)
	}
}
