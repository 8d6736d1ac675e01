// SPDX-License-Identifier: BSD-2-Clause

package formats

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Versions of the programs that run workflows on this host.
const (
	act         = "github.com/nektos/act@v0.2.89"
	gitlabLocal = "gitlab-ci-local@4.56.0"
)

// root is this repository.
const root = "../../.."

// program returns a git repository with a module that has verbsabi as its tool.
func program(t *testing.T) string {
	t.Helper()
	if os.Getenv("GOVERBS_RUNNERS") == "" {
		t.Skip("GOVERBS_RUNNERS=1 runs the workflows of docs/abi-ci.md, with programs that it downloads")
	}
	dir := t.TempDir()
	thisDir, err := filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(`module example.org/program

go 1.26.3

require github.com/goverbs/goverbs v0.0.0

replace github.com/goverbs/goverbs => `+thisDir+`

tool github.com/goverbs/goverbs/conformance/abi/cmd/verbsabi
`), 0o644))
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	command(t, dir, "go", "mod", "tidy")
	command(t, dir, "git", "init", "-q")
	return dir
}

// block returns the YAML of a section of the page.
func block(t *testing.T, section string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/abi-ci.md"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "\n## "+section+"\n")
	require.True(t, ok)
	_, rest, ok = strings.Cut(rest, "```yaml\n")
	require.True(t, ok)
	yaml, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok)
	return yaml
}

// without removes the lines that match, each of which must match one.
func without(t *testing.T, yaml string, lines ...string) string {
	t.Helper()
	for _, line := range lines {
		match := regexp.MustCompile(`(?m)^` + line + `\n`)
		require.Regexp(t, match, yaml)
		yaml = match.ReplaceAllString(yaml, "")
	}
	return yaml
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.org", "XDG_CACHE_HOME="+filepath.Join(t.TempDir(), "cache"))
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, args, out)
	return string(out)
}

func commit(t *testing.T, dir string) {
	t.Helper()
	command(t, dir, "git", "add", "-A")
	command(t, dir, "git", "commit", "-q", "-m", "all")
}

// TestAction runs the workflow of the page with act on this host: without its container, and with the action of this
// repository.
func TestAction(t *testing.T) {
	dir := program(t)
	dir2, policy := headers(t)
	yaml := without(t, block(t, "GitHub Actions"), `    strategy:`, `      fail-fast:.*`, `      matrix:`, `        image:.*`,
		`    container:.*`, `      - run: apt-get.*`, `      - uses: actions/setup-go@.*`, `        with:\n          go-version.*`,
		`      - uses: github/codeql-action.*\n.*\n.*\n.*`)
	yaml = regexp.MustCompile(`goverbs/goverbs/(\S+)@main`).ReplaceAllString(yaml, "./$1")
	yaml = strings.Replace(yaml, "require: ibv,libibverbs.so.1", "require: ibv\n          only: headers\n"+
		"          packages: ibv\n          include: "+dir2+"\n          policy: "+policy+"\n"+
		"      - if: always()\n        run: echo \"exit code ${{ steps.check.outputs.exit-code }}\"; cp verbsabi.* "+dir, 1)
	yaml = strings.Replace(yaml, "      - uses: ./", "      - id: check\n        uses: ./", 1)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".github/workflows"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".github/workflows/abi.yml"), []byte(yaml), 0o644))
	require.NoError(t, os.CopyFS(filepath.Join(dir, ".github/actions"), os.DirFS(filepath.Join(root, ".github/actions"))))
	commit(t, dir)
	bin := t.TempDir()
	install := exec.CommandContext(t.Context(), "go", "install", act)
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=")
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := exec.CommandContext(t.Context(), filepath.Join(bin, "act"), "push", "-P", "ubuntu-latest=-self-hosted")
	run.Dir = dir
	out, err = run.CombinedOutput()
	require.Error(t, err, "the headers are incompatible: %s", out)
	assert.Contains(t, string(out), "IBV_WR_SEND: value is 9 in these headers, 2 in Go")
	assert.Contains(t, string(out), "## verbsabi: incompatible")
	assert.Contains(t, string(out), "exit code 1")
	for _, name := range []string{"verbsabi.sarif", "verbsabi.xml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(text), "IBV_WR_SEND")
	}
}

// TestGitLab runs the job of the page with gitlab-ci-local on this host, without its image.
func TestGitLab(t *testing.T) {
	dir := program(t)
	_, err := exec.LookPath("npx")
	if err != nil {
		t.Skip("npx is not installed")
	}
	include, policy := headers(t)
	yaml := without(t, block(t, "GitLab"), `  image:.*`, `  before_script:`, `    - apt-get.*`)
	yaml = strings.Replace(yaml, "-require ibv,libibverbs.so.1", "-only headers -pkg ibv -require ibv -I "+include+
		" -policy "+policy, 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitlab-ci.yml"), []byte(yaml), 0o644))
	commit(t, dir)
	run := exec.CommandContext(t.Context(), "npx", "--yes", gitlabLocal, "--shell-executor-no-image", "abi")
	run.Dir = dir
	out, err := run.CombinedOutput()
	require.Error(t, err, "the headers are incompatible: %s", out)
	assert.Contains(t, string(out), "IBV_WR_SEND: value is 9 in these headers, 2 in Go")
	assert.Contains(t, string(out), "FAIL")
}
