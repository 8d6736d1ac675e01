// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm"
)

// TestPrograms checks that arguments from the first flag on, or after another --, are passed to the programs.
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
	test := file + ".test"
	require.NoError(t, os.WriteFile(test, nil, 0o755))
	all, err := programs(t.Context(), options{pair: true}, t.TempDir(), []string{test, file, "-x"}, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"-test.failfast", "-x"}, all[0].Args)
	assert.Equal(t, []string{"-x"}, all[1].Args)
	_, err = programs(t.Context(), options{}, t.TempDir(), []string{"./not/there"}, nil)
	assert.ErrorContains(t, err, "go list ./not/there")
	_, err = programs(t.Context(), options{}, t.TempDir(), []string{"../../wire"}, nil)
	assert.EqualError(t, err, "no tests and no programs in ../../wire")
}

// TestRetried checks that a failure counts after all attempts are used up, that a kernel fault counts immediately, and
// that a pass after a failure is reported as a flake.
func TestRetried(t *testing.T) {
	exited, passed := &vm.Outcome{Kind: vm.Exited, Status: 1}, &vm.Outcome{Kind: vm.Passed}
	for name, c := range map[string]struct {
		boots   [][]*vm.Outcome
		retries int
		want    int // number of boots
		status  int
		flake   bool
	}{
		"passed":               {[][]*vm.Outcome{{passed}}, 1, 1, 0, false},
		"no retries":           {[][]*vm.Outcome{{exited}}, 0, 1, 1, false},
		"flake":                {[][]*vm.Outcome{{passed, exited}, {passed, passed}}, 1, 2, 0, true},
		"failed twice":         {[][]*vm.Outcome{{exited}, {exited}}, 1, 2, 1, false},
		"fault of the kernel":  {[][]*vm.Outcome{{{Kind: vm.Oops}}}, 1, 1, vm.StatusKernel, false},
		"hung, and then fault": {[][]*vm.Outcome{{{Kind: vm.Hang}}, {{Kind: vm.Panic}}}, 1, 2, vm.StatusKernel, false},
	} {
		t.Run(name, func(t *testing.T) {
			boots, logged := 0, ""
			logf := func(format string, args ...any) { logged += fmt.Sprintf(format, args...) }
			outcomes, err := retried(c.retries, logf, func() ([]*vm.Outcome, error) {
				boots++
				return c.boots[boots-1], nil
			})
			require.NoError(t, err)
			assert.Equal(t, c.want, boots)
			status := 0
			for _, o := range outcomes {
				status = max(status, o.ExitStatus())
			}
			assert.Equal(t, c.status, status)
			assert.Equal(t, c.flake, strings.Contains(logged, "FLAKE"), logged)
		})
	}
	_, err := retried(1, nil, func() ([]*vm.Outcome, error) { return nil, errors.New("no guest") })
	assert.EqualError(t, err, "no guest")
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

// TestWrite checks that files from a guest stay below the output directory.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, write(dir, map[string][]byte{"a/b": []byte("x")}))
	text, err := os.ReadFile(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(text))
	assert.ErrorContains(t, write(dir, map[string][]byte{"../c": nil}), "not below")
}

// TestClock checks that each line begins with the time, including a line that is written in pieces, and that vmtest's
// own lines do not split it.
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
