// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/doctor.md and README.md")

// TestPage compares the list of causes in docs/doctor.md with causes.txt.
func TestPage(t *testing.T) {
	const file, begin, end = "../../../../docs/doctor.md", "<!-- causes -->\n", "<!-- end of causes -->\n"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	require.True(t, ok && ok2, "markers not found")
	var b strings.Builder
	topic := ""
	for _, c := range causes {
		if head, _, _ := strings.Cut(c.id, "."); head != topic {
			topic = head
			fmt.Fprintf(&b, "\n## %s\n\n| cause | level | description | fix |\n|---|---|---|---|\n", topic)
		}
		fix := strings.NewReplacer("%s", "…", "|", "\\|").Replace(c.fix)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.id, c.level, c.about, fix)
	}
	want := before + begin + b.String() + "\n" + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	assert.True(t, want == string(text),
		"docs/doctor.md is stale: go test ./cmd/goverbs/internal/doctor -run TestPage -update")
}

// TestReadme compares the output of doctor in README.md, for a user without permission to open a device node.
func TestReadme(t *testing.T) {
	const (
		file  = "../../../../README.md"
		begin = "RDMA problems on this host or between two hosts:\n\n```\n"
		end   = "```\n"
	)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	require.True(t, ok && ok2, "markers not found")
	p := newSimulated(t, "rxe")
	p.edit(t, "deny dev/infiniband/uverbs0 EACCES")
	var printed bytes.Buffer
	require.NoError(t, Examine(p.host()).WriteText(&printed))
	want := before + begin + printed.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	assert.Equal(t, want, string(text),
		"README.md is stale: go test ./cmd/goverbs/internal/doctor -run TestReadme -update")
}
