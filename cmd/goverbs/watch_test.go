// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os/exec"
	"strings"
	"testing"

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

// TestLean: the command has neither a server of HTTP nor the library of Prometheus, which would make it half as large
// again: goverbs-exporter has them.
func TestLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	assert.Contains(t, packages, "github.com/vishvananda/netlink")
	for _, heavy := range []string{"net/http", "github.com/prometheus/client_golang/prometheus",
		"google.golang.org/protobuf/proto"} {
		assert.NotContains(t, packages, heavy)
	}
}
