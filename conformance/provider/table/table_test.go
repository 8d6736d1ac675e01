// SPDX-License-Identifier: BSD-2-Clause

package table

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of rdma/internal/provider")

// TestTable checks that the table of rdma/internal/provider is up to date with the results and the sources.
func TestTable(t *testing.T) {
	const of = "../../../rdma/internal/provider/"
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	want, err := Table(read("../testdata/posting.csv"), "rdma/internal/provider/providers.txt",
		read(of+"providers.txt"))
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(of+"table.go", []byte(want), 0o644))
	}
	assert.Equal(t, want, read(of+"table.go"), "go test ./conformance/provider/table -update writes it")
}

// TestTableFollowsResults checks that results change the table, and that contradictions are errors.
func TestTableFollowsResults(t *testing.T) {
	const (
		head    = Head + "\n"
		sends   = "65.0,x,ibv_post_send,456,0\n"
		polls   = "44.0,x,ibv_poll_cq of an empty queue,88,0\n"
		posting = "44.0,x,ibv_post_recv in ERR: 0,,1\n"
		asking  = "44.0,x,ibv_poll_cq of a failed completion: 0,,1\n"
	)
	for _, c := range []struct{ posting, row, want string }{
		{sends + polls, "x | found | none | a.c: b", `{"x", PostSend | Poll, 0, "rdma-core 65.0, a.c: b; run ` +
			`(65.0, 44.0): no system call, at most 456 bytes of stack"},`},
		{sends + polls, "x | found, but Poll | none | a.c: b", `{"x", PostSend, 0,`},
		{sends + polls + asking, "x | found | none | a.c: b", `{"x", PostSend, 0,`},
		{sends + polls + posting, "x | found | none | a.c: b", `{"x", 0, 0, "rdma-core 65.0, a.c: b; run ` +
			`(65.0, 44.0): no system call but by ibv_post_recv in ERR, at most 456 bytes of stack"},`},
		{"", "y | PostSend, Poll | none | a.c: b", `{"y", PostSend | Poll, 0, "rdma-core 65.0, a.c: b"},`},
		{"", "y | none | PostSend | a.c: b", `{"y", 0, PostSend, "rdma-core 65.0, a.c: b"},`},

		{sends, "x | PostSend | none | a.c: b", "sources:2: x was run: want found"},
		{"", "x | found | none | a.c: b", "sources:2: x was not run, so there are no results"},
		{sends, "y | none | none | a.c: b", "x: was run, but has no row in sources"},
		{sends, "x | found, but Poll | none | a.c: b", "sources:2: Poll is not pure, so it needs no exception"},
		{"", "y | PostSent | none | a.c: b", `sources:2: unknown verb "PostSent"`},
		{"", "y | none | none | ", "sources:2: want sources"},
		{"65.0,x,ibv_reg_mr,8,0\n", "x | found | none | a.c: b", `no verb of the data path: "65.0,x,ibv_reg_mr,8,0"`},
	} {
		text, err := Table(head+c.posting, "sources", "@ rdma-core 65.0\n"+c.row)
		if err != nil {
			text = err.Error()
		}
		joined := strings.NewReplacer("\" +\n\t\t\t\"", "", "\n\t\t", " ", ",\n\t}", "}").Replace(text)
		assert.Contains(t, joined, c.want, "%s%s", c.posting, c.row)
	}
}
