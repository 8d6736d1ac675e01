// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/echo"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/filecopy"
)

// TestCopy copies files with sizes around that of a write, on software devices.
func TestCopy(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	const chunk = 1 << 20
	for _, size := range []int{0, 1, chunk, 20*chunk + 3} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		want := make([]byte, size)
		rand.New(rand.NewSource(int64(size))).Read(want)
		require.NoError(t, os.WriteFile(from, want, 0o400))
		at, received := make(chan string, 1), make(chan error, 1)
		go func() {
			_, err := filecopy.Receive(t.Context(), "127.0.0.1:0", to, 1<<30, func(address string) { at <- address },
				func(why error) { t.Error(why) })
			received <- err
		}()
		var last uint64
		result, err := filecopy.Send(t.Context(), from, <-at, func(done, of uint64) { last = done })
		require.NoError(t, err)
		require.NoError(t, <-received)
		have, err := os.ReadFile(to)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, have), "%d bytes", size)
		assert.Equal(t, uint64(size), result.Bytes)
		assert.Equal(t, uint64(size), last)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, left, 2, "no other files remain")
	}
}

// TestCopyRefused checks the limits and errors of a copy.
func TestCopyRefused(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, make([]byte, 100), 0o400))
	at, refused, received := make(chan string, 1), make(chan error, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, err := filecopy.Receive(ctx, "127.0.0.1:0", to, 99, func(address string) { at <- address },
			func(why error) { refused <- why })
		received <- err
	}()
	_, err := filecopy.Send(t.Context(), from, <-at, func(done, of uint64) {})
	assert.EqualError(t, err, `receiver refused the file: "file of 100 bytes exceeds 99 (--most)"`)
	assert.ErrorContains(t, <-refused, "file of 100 bytes exceeds 99 (--most)")
	stop()
	assert.ErrorIs(t, <-received, context.Canceled)
	_, err = filecopy.Send(t.Context(), from, "127.0.0.1:1", func(done, of uint64) {})
	assert.ErrorContains(t, err, "the connection is rejected; start goverbs cp --listen there")
	_, err = filecopy.Send(t.Context(), from, "no/host:1", func(done, of uint64) {})
	assert.ErrorContains(t, err, "no/host: no such host; give a known host name or an address")
	_, err = filecopy.Receive(t.Context(), "127.0.0.1:0", from, 99, nil, nil)
	assert.ErrorContains(t, err, "already exists")
	_, err = filecopy.Receive(t.Context(), "127.0.0.1:0", filepath.Join(dir, "nowhere", "to"), 99, nil, nil)
	assert.ErrorIs(t, err, os.ErrNotExist, "reported before waiting")
	code, _, problems := goverbs("cp", from)
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, problems, "give a destination")
	assert.Contains(t, problems, "; see goverbs cp --help")
	code, _, problems = goverbs("echo")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, problems, "give a host")
}

func TestEcho(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	ctx, stop := context.WithCancel(t.Context())
	at, served := make(chan string, 1), make(chan error, 1)
	go func() { served <- echo.Serve(ctx, "127.0.0.1:0", 8, func(address string) { at <- address }) }()
	var back bytes.Buffer
	text := strings.Repeat("a line\n", 1000)
	result, err := echo.RunClient(t.Context(), <-at, strings.NewReader(text), &back)
	require.NoError(t, err)
	assert.Equal(t, text, back.String())
	assert.EqualValues(t, len(text), result.Sent)
	assert.EqualValues(t, len(text), result.Returned)
	stop()
	assert.NoError(t, <-served)
}

// TestRun runs a program with a fake goverbs-run, which prints its arguments.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GOVERBS_LIBRARIES", dir)
	t.Setenv("GOVERBS_DEVICE", "")
	t.Setenv("GOVERBS_SOFT_CAPTURE", "")
	t.Chdir(dir)
	t.Setenv("PATH", "/usr/bin:/bin")
	code, _, problems := goverbs("run", "--", "ibv_devinfo")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "install the package goverbs-dropin, or run make dropin")
	const script = "#!/bin/sh\necho \"$GOVERBS_DEVICE $GOVERBS_SOFT_CAPTURE $*\"; exit 7\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "goverbs-run"), []byte(script), 0o700))
	code, out, problems := goverbs("run", "-d", "soft1", "--capture", "x.pcap", "--", "ibv_devinfo", "-v",
		"--json")
	assert.Equal(t, 7, code, problems)
	assert.Equal(t, "soft1 x.pcap ibv_devinfo -v --json\n", out)
}
