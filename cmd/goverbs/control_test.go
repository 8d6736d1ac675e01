// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestControlCharacters checks that no control sequence in a file name, trace or error reaches the terminal.
func TestControlCharacters(t *testing.T) {
	const evil = "\x1b[2J\u009b2J\u202e\x7f"
	file := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(file, []byte(`{"trace":1,"program":"\u001b[2J\u009b2J\u202e\u007f","pid":1,`+
		`"time":"2026-01-01T00:00:00Z"}`+"\n"+`{"t":1,"verb":"\u001b[2J","errno":1,"error":"\u001b[2J"}`+"\n"), 0o600))
	bad := filepath.Join(t.TempDir(), evil)
	require.NoError(t, os.WriteFile(bad, []byte(evil), 0o600))
	for _, line := range [][]string{
		{"trace", "show", file}, {"trace", "explain", file}, {"trace", "show", bad}, {"trace", "show", bad + "no"},
		{evil}, {"explain", evil}, {"gids", evil}, {"query", evil}, {"top", "-1", "--since", bad},
		{"cp", "--listen", evil, bad}, {"cp", bad + "no", evil}, {"run", "--", evil}, {"top", "-1", "-d", evil},
	} {
		_, out, problems := goverbs(line...)
		assert.NotEmpty(t, out+problems, "%q", line)
		assert.False(t, strings.ContainsAny(out+problems, evil[:1]+"\u009b\u202e\x7f"), "%q: %q", line, out+problems)
	}
}
