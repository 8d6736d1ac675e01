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

	"github.com/goverbs/goverbs/cmd/goverbs/internal/shell"
)

// goverbs runs the command in this process.
func goverbs(args ...string) (code int, stdout, stderr string) {
	var out, problems bytes.Buffer
	code = run(args, &out, &problems)
	return code, out.String(), problems.String()
}

// offered are the words that are offered in place of the last one.
func offered(t *testing.T, words ...string) []string {
	t.Helper()
	code, out, problems := goverbs(append([]string{"complete", "--"}, words...)...)
	require.Zero(t, code, problems)
	var all []string
	for line := range strings.Lines(out) {
		word, _, _ := strings.Cut(line, "\t")
		all = append(all, word)
	}
	return all
}

func TestComplete(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	assert.Equal(t, []string{"devices"}, offered(t, "dev"))
	assert.Contains(t, offered(t, ""), "perf")
	assert.NotContains(t, offered(t, ""), "complete", "it is for shells")
	assert.Equal(t, []string{"send"}, offered(t, "perf", "se"))
	assert.Equal(t, []string{"--ib-dev"}, offered(t, "perf", "send", "--ib"))
	assert.Equal(t, []string{"soft0", "soft1"}, offered(t, "perf", "send", "-d", "so"))
	assert.Equal(t, []string{"--ib-dev=soft0", "--ib-dev=soft1"}, offered(t, "perf", "--ib-dev=so"))
	assert.Equal(t, []string{"soft1"}, offered(t, "gids", "soft1"))
	assert.Equal(t, []string{"--json"}, offered(t, "--js"))
	assert.Empty(t, offered(t, "devices", "no"))
	assert.Equal(t, []string{"zsh"}, offered(t, "completion", "z"))
	assert.Empty(t, offered(t, "gids", "--", "--js"), "nothing behind -- is an option")
}

// shellTests ask each shell what it offers behind a beginning, in the shell's own way.
var shellTests = map[string]string{
	"bash": `source completion; COMP_WORDS=(goverbs perf send --ib-); COMP_CWORD=3; _goverbs; echo "${COMPREPLY[@]}"`,
	"fish": `source completion; complete -C 'goverbs perf send --ib-' | cut -f 1`,
	"zsh": `autoload -Uz compinit; compinit -D; source completion
_describe() { print -r -- ${(P)2} }; _files() { print files }; words=(goverbs perf send --ib-); CURRENT=4; _goverbs`,
}

// TestShells has the shells that are here judge their scripts. Every host of these tests has bash.
func TestShells(t *testing.T) {
	dir := t.TempDir()
	own, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(own, filepath.Join(dir, "goverbs")))
	for _, name := range shell.Shells {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil && name != "bash" {
				t.Skipf("this host has no %s: make deps brings it", name)
			}
			require.NoError(t, err)
			_, script, _ := goverbs("completion", name)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "completion"), []byte(script), 0o600))
			cmd := exec.Command(path, "-c", shellTests[name])
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "GOVERBS_DEVICE=soft0")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Regexp(t, `^--ib-dev(:.*)?\n$`, string(out))
		})
	}
}

// TestMan has the page of every subcommand, and groff judges it where it is.
func TestMan(t *testing.T) {
	code, out, problems := goverbs("man")
	require.Zero(t, code, problems)
	for _, want := range []string{".SH \"NAME\"\ngoverbs", `.SS "goverbs perf VERB [PEER]"`,
		`.B "\-d, \-\-ib\-dev=STRING"`,
		`.SS "goverbs explain WHAT..."`, "GOVERBS_DEVICE", "GOVERBS_TRACE"} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "goverbs complete ")
	for line := range strings.Lines(out) {
		if line[0] == '.' {
			assert.Regexp(t, `^\.(TH|SH|SS|PP|TP|B|I|RI|BR)( |\n)`, line)
		}
	}
	if path, err := exec.LookPath("groff"); err == nil {
		cmd := exec.Command(path, "-man", "-ww", "-z", "-Kutf8")
		cmd.Stdin = strings.NewReader(out)
		said, err := cmd.CombinedOutput()
		assert.NoError(t, err)
		assert.Empty(t, string(said))
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := goverbs("--version")
	assert.Zero(t, code)
	assert.Regexp(t, `^goverbs .*, go1\.`, out)
}
