// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goverbs runs the command in this process.
func goverbs(args ...string) (code int, stdout, stderr string) {
	var out, problems bytes.Buffer
	code = run(args, &out, &problems)
	return code, out.String(), problems.String()
}

// completions returns the completions of a command line.
func completions(t *testing.T, line string) []string {
	t.Helper()
	t.Setenv("COMP_LINE", line)
	code, out, problems := goverbs("complete", "goverbs", "word", "--previous")
	require.Zero(t, code, problems)
	return strings.Fields(out)
}

func TestComplete(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	assert.Equal(t, []string{"devices"}, completions(t, "goverbs dev"))
	assert.Contains(t, completions(t, "goverbs "), "perf")
	assert.NotContains(t, completions(t, "goverbs "), "complete", "hidden from users")
	assert.Equal(t, []string{"send"}, completions(t, "goverbs perf se"))
	assert.Equal(t, []string{"--ib-dev"}, completions(t, "goverbs perf send --ib"))
	assert.ElementsMatch(t, []string{"soft0", "soft1"}, completions(t, "goverbs perf send -d so"))
	assert.ElementsMatch(t, []string{"soft0", "soft1"}, completions(t, "goverbs perf --ib-dev=so"))
	assert.Equal(t, []string{"soft1"}, completions(t, "goverbs gids soft1"))
	assert.Equal(t, []string{"--json"}, completions(t, "goverbs --js"))
	assert.Empty(t, completions(t, "goverbs devices no"))
	assert.Equal(t, []string{"zsh"}, completions(t, "goverbs completion z"))
	assert.Contains(t, completions(t, "goverbs --json "), "perf", "the flag has no value")
	assert.Contains(t, completions(t, "goverbs -"), "--json")
	assert.Empty(t, completions(t, "goverbs perf send --ib-dev soft0 --size "), "any value")
	assert.Equal(t, []string{"pid"}, completions(t, "goverbs exporter --once --by p"))
	t.Setenv("COMP_POINT", "11")
	assert.Equal(t, []string{"devices"}, completions(t, "goverbs dev --json"), "up to the cursor")
}

// shellTests make each shell complete a command line.
var shellTests = map[string]string{
	"bash": `source completion; COMP_LINE='goverbs perf send --ib-'
eval "$(complete -p goverbs | sed "s/.*-C '\(.*\)' goverbs/COMP_LINE='$COMP_LINE' \1 goverbs --ib- send/")"`,
	"fish": `source completion; complete -C 'goverbs perf send --ib-'`,
	"zsh": `autoload -Uz compinit; compinit -D; source completion
compadd() { for word; do [[ $word = --* ]] && print -r -- $word; done }; words=(goverbs perf send --ib-); CURRENT=4 PREFIX=--ib-; eval ${_comps[goverbs]/-o default/}`,
}

// TestShells tests completion in the installed shells. Bash is required.
func TestShells(t *testing.T) {
	dir := t.TempDir()
	executable, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(executable, filepath.Join(dir, "goverbs")))
	for name, script := range completionScripts {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil && name != "bash" {
				t.Skipf("%s is not installed; make deps installs it", name)
			}
			require.NoError(t, err)
			code, out, problems := goverbs("completion", name)
			require.Zero(t, code, problems)
			require.Equal(t, script, out)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "completion"), []byte(out), 0o600))
			cmd := exec.Command(path, "-c", shellTests[name])
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "GOVERBS_DEVICE=soft0")
			text, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", text)
			assert.Equal(t, "--ib-dev\n", string(text))
		})
	}
}

// TestMan checks that the page has every subcommand, argument and flag, and that groff accepts it without warnings.
func TestMan(t *testing.T) {
	code, out, problems := goverbs("man")
	require.Zero(t, code, problems)
	path, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed; make deps installs it")
	}
	cmd := exec.Command(path, "-man", "-ww", "-Kutf8", "-Tlatin1", "-P-cbou", "-rLL=1000n")
	cmd.Stdin = strings.NewReader(out)
	var output bytes.Buffer
	cmd.Stderr = &output
	text, err := cmd.Output()
	require.NoError(t, err)
	assert.Empty(t, output.String())
	page := strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{"GOVERBS(1) User Commands GOVERBS(1)", "NAME goverbs - ", "perf <verb> [<peer>]",
		"-d, --ib-dev=STRING Device; default:", "<what> ...: Term, such as 12, RETRY_EXC_ERR", "s * 2^N",
		"goverbs-%p.trace", "EXIT STATUS", "GOVERBS_DEVICE: Default", "GOVERBS_TRACE: File"} {
		assert.Contains(t, page, want)
	}
	for _, absent := range []string{"complete [<words>", "--CPU-freq"} {
		assert.NotContains(t, page, absent, "hidden")
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := goverbs("--version")
	assert.Zero(t, code)
	assert.Regexp(t, `^goverbs .*, go1\.`, out)
}

// TestVersionAnywhere checks that --version works with any other arguments.
func TestVersionAnywhere(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"perf", "--version"}, {"ping", "host", "--version"}} {
		code, out, problems := goverbs(args...)
		assert.Equal(t, exitOK, code, "%q: %s", args, problems)
		assert.Equal(t, version()+"\n", out)
	}
}
