// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"archive/tar"
	"bytes"
	"io"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/suites"
)

// TestRoot checks that a root contains packages with their dependencies, with merged /usr.
func TestRoot(t *testing.T) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		t.Skip("packages are Debian's: ", err)
	}
	if err := exec.Command("dpkg-query", "-W", Packages[0]).Run(); err != nil {
		t.Skip("make suites installs the packages of a root: no ", Packages[0])
	}
	var out bytes.Buffer
	require.NoError(t, writeRoot(t.Context(), &out, []string{"ibverbs-utils"}))
	all := map[string]*tar.Header{}
	for r := tar.NewReader(&out); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		assert.Nil(t, all[header.Name], "%s is duplicated", header.Name)
		all[header.Name] = header
	}
	assert.Equal(t, "usr/lib", all["lib"].Linkname)
	for _, name := range []string{"usr/bin/ibv_devinfo", "usr/lib/x86_64-linux-gnu/libc.so.6",
		"usr/lib/x86_64-linux-gnu/libibverbs.so.1", "etc/libibverbs.d/rxe.driver"} {
		assert.NotNil(t, all[name], name)
	}
	assert.EqualValues(t, 0o755, all["usr/bin/ibv_devinfo"].Mode)
	assert.Nil(t, all["usr/share/doc/libc6/copyright"])

	err := writeRoot(t.Context(), io.Discard, []string{"no-such-package"})
	assert.EqualError(t, err, "package no-such-package is not installed")
}

func TestNames(t *testing.T) {
	assert.Equal(t, []string{"libc6", "a", "b", "python3"}, names("libc6 (>= 2.34), a | b (= 1), , python3:any"))
}

// TestEvents parses the output of a guest, written in pieces, with output of programs between events.
func TestEvents(t *testing.T) {
	var logged []string
	e := &events{log: func(format string, args ...any) { logged = append(logged, args[0].(string)) }}
	var text bytes.Buffer
	Event{Begins: "a"}.Write(&text)
	Event{Result: &result}.Write(&text)
	text.WriteString("noise\r\n")
	Event{Begins: "b"}.Write(&text)
	for _, b := range text.Bytes() {
		_, _ = e.Write([]byte{b})
	}
	assert.Equal(t, "b", e.running)
	assert.Equal(t, []string{"a", "b"}, e.started)
	assert.Equal(t, "a", e.all[0].Case)
	assert.Equal(t, []string{"noise"}, logged)
	assert.False(t, e.done)
	Event{Done: true}.Write(e)
	assert.True(t, e.done)
}

var result = suites.Result{Case: "a", Ends: suites.Pass}
