// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counts finds how many a test is told to draw or to try: "RAPID_CHECKS=5", or "RAPID_CHECKS=$(if …,20,5)".
var counts = regexp.MustCompile(`\b(RAPID_CHECKS|GOVERBS_PACKETS|GOVERBS_ROUNDS)=` +
	`(?:\$\(if \$\(GOVERBS_EVERYTHING\),(\d+),)?(\d+)`)

// TestCounts: CONTRIBUTING says how many programs, packets and rounds there are in each step of make test, and in
// make adapter.
func TestCounts(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	contributing, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	found := counts.FindAllSubmatch(makefile, -1)
	require.Len(t, found, 8)
	for _, f := range found {
		row := regexp.MustCompile(`(?m)^\|.*\(` + "`" + string(f[1]) + "`" + `\).*$`).Find(contributing)
		require.NotEmpty(t, row, "CONTRIBUTING.md has no row for %s", f[1])
		for _, n := range f[2:] {
			if len(n) > 0 {
				assert.Regexp(t, `\b`+thousands(string(n))+`\b`, string(row), "%s of the Makefile", f[0])
			}
		}
	}
}

// thousands is a number as pages have it: 10,000.
func thousands(digits string) string {
	for three := regexp.MustCompile(`(\d)(\d{3})(,|$)`); three.MatchString(digits); {
		digits = three.ReplaceAllString(digits, "$1,$2$3")
	}
	return digits
}
