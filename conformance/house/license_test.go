// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the licence line of each file that lacks it")

// license stands among the first comments of every file of code.
const license = "// SPDX-License-Identifier: BSD-2-Clause"

// licensed reports whether a file names its licence before its code begins.
func licensed(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == license {
			return true
		}
		if line != "" && !strings.HasPrefix(line, "//") {
			return false
		}
	}
	return false
}

// TestLicense: every file in Go, assembly and C says what licence it has; -update writes the line into those that do
// not, but generated ones.
func TestLicense(t *testing.T) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go", "*.s", "*.c")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Skip("this is no checkout: ", err)
	}
	seen := 0
	for raw := range bytes.SplitSeq(bytes.Trim(out, "\x00"), []byte{0}) {
		name := string(raw)
		if strings.Contains(name, "testdata/") {
			continue
		}
		file := filepath.Join("../..", name)
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) { // it was removed, and that is not committed yet
			continue
		}
		require.NoError(t, err)
		seen++
		if licensed(string(text)) {
			continue
		}
		if *update && !under(name, "generated") {
			require.NoError(t, os.WriteFile(file, append([]byte(license+"\n\n"), text...), 0o644))
			continue
		}
		t.Errorf("%s has no line %q: go test ./conformance/house -run TestLicense -update", name, license)
	}
	assert.Greater(t, seen, 900)
}

func TestLicensed(t *testing.T) {
	for text, want := range map[string]bool{
		license + "\n\npackage p\n":                          true,
		"// Code generated.\n" + license + "\n\npackage p\n": true,
		"//go:build linux\n\n" + license + "\n\npackage p\n": true,
		"package p\n\n" + license + "\n":                     false,
		"// SPDX-License-Identifier: MIT\n\npackage p\n":     false,
		"": false,
	} {
		assert.Equal(t, want, licensed(text), "%q", text)
	}
}
