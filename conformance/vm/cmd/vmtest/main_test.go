// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm"
)

// TestPrograms: packages and files come first; from the first flag or behind another -- everything is the programs'.
func TestPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.WriteFile(file, nil, 0o755))
	for _, c := range []struct{ args, want []string }{
		{[]string{file}, []string{}},
		{[]string{file, "-x", "y"}, []string{"-x", "y"}},
		{[]string{file, "--", "y", "-x"}, []string{"y", "-x"}},
		{[]string{file, "-x", "--", "y"}, []string{"-x", "--", "y"}},
	} {
		all, err := programs(t.Context(), options{timeout: time.Second, env: []string{"A=b"}}, t.TempDir(), c.args, nil)
		require.NoError(t, err)
		require.Len(t, all, 1)
		assert.Equal(t, vm.Program{Name: "tool", Host: file, Args: c.want, Env: []string{"A=b"}, Timeout: time.Second},
			all[0])
	}
	_, err := programs(t.Context(), options{}, t.TempDir(), []string{"./not/there"}, nil)
	assert.ErrorContains(t, err, "go list ./not/there")
	_, err = programs(t.Context(), options{}, t.TempDir(), []string{"../../wire"}, nil)
	assert.EqualError(t, err, "no tests and no programs in ../../wire")
}

func TestFiles(t *testing.T) {
	all, err := files([]string{"a=/etc/b"})
	require.NoError(t, err)
	assert.Equal(t, []vm.File{{Name: "/etc/b", Host: "a"}}, all)
	for _, bad := range []string{"a", "a=b"} {
		_, err := files([]string{bad})
		assert.ErrorContains(t, err, "absolute path in the guest")
	}
}

// TestWrite: what a guest leaves stays below the directory.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, write(dir, map[string][]byte{"a/b": []byte("x")}))
	text, err := os.ReadFile(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(text))
	assert.ErrorContains(t, write(dir, map[string][]byte{"../c": nil}), "not below")
}

// TestClock: each line begins with the time, also one that comes in pieces; a line of our own does not end up in the
// middle.
func TestClock(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	c := &clock{began: time.Now(), to: f, prefix: "0| "}
	for _, part := range []string{"one\ntw", "o\n", "thr"} {
		_, err := c.Write([]byte(part))
		require.NoError(t, err)
	}
	c.printf("own %d", 1)
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.Equal(t, "   0.0  0| one\n   0.0  0| two\n   0.0  0| thr\n   0.0  0| vm: own 1\n", string(text))
}
