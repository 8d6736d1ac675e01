// SPDX-License-Identifier: BSD-2-Clause

package dropin

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatic compares the result of static with that of debug/elf for programs of this host and for damaged copies.
func TestStatic(t *testing.T) {
	files, err := filepath.Glob("/usr/*bin/[a-l]*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		want := false
		if f, err := elf.Open(name); err == nil {
			want = true
			for _, p := range f.Progs {
				want = want && p.Type != elf.PT_INTERP
			}
			f.Close()
		}
		assert.Equal(t, want, static(name), name)
	}

	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(shell))
	require.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "sh")
	write := func(text []byte) { require.NoError(t, os.WriteFile(copied, text, 0o700)) }
	write(shell)
	assert.Empty(t, Without(copied))
	const headers, size = 64, 56 // of ELF of 64 bits
	if f.Class == elf.ELFCLASS64 {
		for i, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				shell[headers+i*size] = 0
			}
		}
		write(shell)
		assert.Equal(t, "statically linked", Without(copied))
	}
	for n := range 200 {
		write(shell[:n])
		static(copied) // must not panic
	}
	assert.Empty(t, Without("no such program"))
}

// TestSetuid checks a setuid program.
func TestSetuid(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"), 0o700))
	require.NoError(t, os.Chmod(name, 0o755|os.ModeSetuid))
	assert.Empty(t, Without(name), "owned by this user")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	require.NoError(t, os.Chown(name, 1, 1))
	require.NoError(t, os.Chmod(name, 0o755|os.ModeSetuid))
	assert.Contains(t, Without(name), "setuid")
}
