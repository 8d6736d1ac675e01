// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPage runs the program of docs/s3.md, which contains its text and its output.
func TestPage(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(&out))
	page, err := os.ReadFile("../../../docs/s3.md")
	require.NoError(t, err)
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, program, _ := strings.Cut(string(source), "\n\n// Command laptop")
	_, program, _ = strings.Cut(program, "\n")
	assert.Contains(t, string(page), "```go\n"+program+"```\n")
	assert.Contains(t, string(page), "```\n"+out.String()+"```\n")
}
