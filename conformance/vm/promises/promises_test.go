// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/headers"
)

const root = "../../.."

var update = flag.Bool("update", false, "write docs/conformance.md")

// here skips the test in a guest, which has no sources.
func bufA(t *testing.T) []Page {
	t.Helper()
	if testbed.Kernel(t) != testbed.Soft {
		t.Skip("needs the sources, which guests do not have")
	}
	pages, err := Read("promises.txt", text)
	require.NoError(t, err)
	return pages
}

// TestPage compares docs/conformance.md, which make docs writes.
func TestPage(t *testing.T) {
	pages := bufA(t)
	if *update {
		require.NoError(t, Write(root))
	}
	got, err := os.ReadFile(filepath.Join(root, "docs", "conformance.md"))
	require.NoError(t, err)
	assert.Equal(t, Markdown(pages), string(got), "docs/conformance.md is stale: make docs writes it")
}

// TestEveryPromiseHasTests checks that each row names existing tests, and that each test has a row.
func TestEveryPromiseHasTests(t *testing.T) {
	wrong, err := Check(root, bufA(t))
	require.NoError(t, err)
	assert.Empty(t, wrong)
}

// TestPagesAreUnchanged checks that the manual pages have not changed since the promises were written.
func TestPagesAreUnchanged(t *testing.T) {
	_, primary, _ := strings.Cut(string(headers.Lock()), " primary\n")
	for _, page := range bufA(t) {
		assert.Contains(t, primary, " "+page.Sum+" "+page.File+"\n",
			"%s of the primary release has changed: read it, correct the rows, and update the sum", page.Name)
	}
}

func TestInvalidRows(t *testing.T) {
	for row, want := range map[string]string{
		"@ page x(3) x.3 00\nIt works. |  | soft0":         `x:2: "" is not a test; every promise needs one`,
		"@ page x(3) x.3 00\nIt works. | TestX | hardware": `x:2: unknown place "hardware"`,
		"@ page x(3)":                "x:1: want @ page PAGE FILE SHA256",
		"It works. | TestX | soft0":  "x:1: a promise must follow its page",
		"@ page x(3) x.3 00\nWorks.": "x:2: 1 columns; want promise | tests | where | what differs",
	} {
		_, err := Read("x", row)
		assert.EqualError(t, err, want)
	}
	bufA(t)
	wrong, err := Check(root, []Page{{Promises: []Promise{{At: "x:1", Tests: []Test{{own, "TestNone", ""},
		{own, "TestPostSend", "wr_id"}, {own, "TestPostSend", "no such"}}}}}})
	require.NoError(t, err)
	assert.Contains(t, wrong, "x:1: "+own+" has no test TestNone")
	assert.Contains(t, wrong, "x:1: "+own+" has no test TestPostSend/no such")
	assert.Contains(t, wrong, "no row of promises.txt names TestPostSend/bind")
	assert.NotContains(t, wrong, "no row of promises.txt names TestPostSend/wr_id")
}
