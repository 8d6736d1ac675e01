// SPDX-License-Identifier: BSD-2-Clause

package targets

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestErrorsByTarget checks that errors on some targets are reported for exactly those.
func TestErrorsByTarget(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"p/p.go": `package p

import (
	"syscall"
	"unsafe"
)

type S struct {
	a uint32
	b uint64
}

// 64-bit alignment, as in C on 64-bit machines
const _ = uint(unsafe.Offsetof(S{}.b) - 8)

var Dup = syscall.Dup
`,
		"p/p_windows.go": "package p\n\nfunc f() { undefined() }\n",
		"p/p_arm64.go":   "package p\n\nfunc inAssembly()\n\nfunc nowhere()\n",
		"p/p_arm64.s":    "TEXT ·inAssembly(SB), 4, $0\n\tRET\n",
		"q/q.go":         "package q\n\nimport _ \"example.com/m/p\"\n",
		"r/r.go":         "package r\n\nimport \"net\"\n\nvar Dial = net.Dial\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	c, err := New(dir)
	require.NoError(t, err)
	for _, p := range []string{"p", "q"} { // in a package, and in an imported one
		assert.NoError(t, c.Check("linux", "amd64", p))
		assert.ErrorContains(t, c.Check("linux", "386", p), "overflows uint")
		err = c.Check("linux", "arm64", p)
		assert.ErrorContains(t, err, "nowhere has no body")
		assert.NotContains(t, err.Error(), "inAssembly")
		err = c.Check("windows", "amd64", p)
		assert.ErrorContains(t, err, "undefined: undefined")
		assert.ErrorContains(t, err, "undefined: syscall.Dup")
	}
	description := func(goos, goarch string) string {
		text, err := c.Own(goos, goarch, "p", "q")
		require.NoError(t, err)
		return text
	}
	assert.Equal(t, description("darwin", "amd64"), description("darwin", "riscv64"))
	assert.NotEqual(t, description("linux", "amd64"), description("linux", "arm64"), "another file")
	assert.NotEqual(t, description("linux", "amd64"), description("linux", "386"), "other alignments")
	assert.NoError(t, c.Check("darwin", "arm64", "r"), "Go's library has copies of what it imports")
	assert.ErrorContains(t, c.Check("linux", "pdp11", "r"), "no such target")
	assert.ErrorContains(t, c.Check("linux", "amd64", "s"), "example.com/m/s")
}
