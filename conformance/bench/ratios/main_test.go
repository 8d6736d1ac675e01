// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlower(t *testing.T) {
	const before = "SEND RC,1000\ngoos: linux\nBenchmarkEcho-2   100   1000 ns/op  5 MB/s\nSEND RC,900\nSEND RC,800\n"
	for after, slower := range map[string]string{
		before: "",
		// only the medians are slower
		"SEND RC,1000\nSEND RC,500\nSEND RC,400\nBenchmarkEcho-2 9 1000 ns/op\n": "",
		// only the best rounds are slower
		"SEND RC,960\nSEND RC,900\nSEND RC,800\nBenchmarkEcho-2 9 1000 ns/op\n": "",
		"SEND RC,960\nSEND RC,860\nSEND RC,800\nBenchmarkEcho-2 9 1029 ns/op\n": "SEND RC", // 3 % slower in the other
		"SEND RC,999\nBenchmarkEcho-2 9 1040.5 ns/op\n":                         "Echo-2",
		"SEND RC,999\n": "has no Echo-2",
	} {
		dir := t.TempDir()
		files := []string{filepath.Join(dir, "before"), filepath.Join(dir, "after")}
		require.NoError(t, os.WriteFile(files[0], []byte(before), 0o600))
		require.NoError(t, os.WriteFile(files[1], []byte(after), 0o600))
		var out strings.Builder
		err := run(&out, files, limits{most: 3})
		if slower == "" {
			require.NoError(t, err, after)
			continue
		}
		require.ErrorContains(t, err, slower)
		require.NotContains(t, err.Error(), "SEND RC, Echo", after)
	}
}

// TestLimits checks that an operation may have its own limit.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "before"), filepath.Join(dir, "after")}
	require.NoError(t, os.WriteFile(files[0], []byte("1 MiB message,100\n64 bytes and back,100\n"), 0o600))
	require.NoError(t, os.WriteFile(files[1], []byte("1 MiB message,71\n64 bytes and back,63\n"), 0o600))
	for but, wrong := range map[string]string{
		"64 bytes and back=37.5": "",
		"1 MiB message=40":       "64 bytes and back, by more than 30 %",
		"64 bytes and back=36":   "64 bytes and back, by more than 36 %",
		"64 bytes=37.5":          "no operation 64 bytes",
	} {
		may := limits{most: 30}
		require.NoError(t, may.but(but))
		err := run(io.Discard, files, may)
		if wrong == "" {
			require.NoError(t, err, but)
		} else {
			require.ErrorContains(t, err, wrong, but)
		}
	}
	require.Error(t, new(limits).but("64 bytes and back"))
}
