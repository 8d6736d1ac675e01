// SPDX-License-Identifier: BSD-2-Clause

package pages

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDockerfile builds the first program of README.md by the command in its Dockerfile. The program must be static and,
// as in a container from scratch, run in a directory with nothing else.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	all, err := blocks(string(text))
	require.NoError(t, err)
	var source, dockerfile string
	for _, b := range all {
		switch {
		case b.info == "dockerfile":
			dockerfile = b.text
		case source == "" && strings.HasPrefix(b.text, "package main\n"):
			source = b.text
		}
	}
	require.NotEmpty(t, source)
	assert.LessOrEqual(t, strings.Count(dockerfile, "\n"), 10)
	assert.Contains(t, dockerfile, "\nFROM scratch\n")
	_, command, ok := strings.Cut(dockerfile, "RUN cd /src && ")
	require.True(t, ok, dockerfile)
	command, _, _ = strings.Cut(command, "\n")
	dir := userModule(t)
	write(t, filepath.Join(dir, "main.go"), source)
	file := filepath.Join(t.TempDir(), "program")
	require.Contains(t, command, "-o /program ")
	out, err := run(t, dir, "sh", "-c", strings.Replace(command, "-o /program ", "-o "+file+" ", 1))
	require.NoError(t, err, "%s", out)

	f, err := elf.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		assert.NotContains(t, []elf.ProgType{elf.PT_INTERP, elf.PT_DYNAMIC}, p.Type)
	}
	cmd := exec.Command(file)
	if os.Getuid() == 0 {
		require.NoError(t, os.Chmod(filepath.Dir(file), 0o755))
		cmd = exec.Command("/program")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: filepath.Dir(file),
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir, cmd.Env = "/", []string{"GOVERBS_DEVICE=soft0"}
	result, err := cmd.CombinedOutput()
	assert.NoError(t, err)
	assert.Equal(t, "hello over RDMA\n", string(result))
}
