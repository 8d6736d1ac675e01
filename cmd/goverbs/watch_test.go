// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithoutExporter: where goverbs-exporter is not, the error says how to get it.
func TestWithoutExporter(t *testing.T) {
	t.Setenv("PATH", "")
	code, _, said := goverbs("exporter")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, said, "go install github.com/goverbs/goverbs/cmd/goverbs/goverbs-exporter@latest")
}

// TestSmallAndQuick: as go install builds it, the command has 15 MB at most, and it starts within 20 ms.
func TestSmallAndQuick(t *testing.T) {
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("GOVERBS_EVERYTHING is not set: it links the command once more")
	}
	file := filepath.Join(t.TempDir(), "goverbs")
	build := exec.Command("go", "build", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(15_000_000))
	least := time.Hour
	for range 50 { // a busy machine lets some of them wait
		begun := time.Now()
		require.NoError(t, exec.Command(file, "--version").Run())
		least = min(least, time.Since(begun))
	}
	assert.Less(t, least, 20*time.Millisecond)
	t.Logf("%d bytes, starts and ends in %v", info.Size(), least)
}

// TestLean: the command has neither a server of HTTP nor the library of Prometheus, which would make it half as large
// again: goverbs-exporter has them. Nor has it templates, with which the linker keeps all methods of all types.
func TestLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	assert.Contains(t, packages, "github.com/vishvananda/netlink")
	for _, heavy := range []string{"net/http", "github.com/prometheus/client_golang/prometheus",
		"google.golang.org/protobuf/proto", "text/template", "html/template"} {
		assert.NotContains(t, packages, heavy)
	}
}
