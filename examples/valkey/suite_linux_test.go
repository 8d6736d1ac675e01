// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// units of Valkey's test suite that can use a server that the suite has not started.
var units = []string{
	"unit/type/string", "unit/type/list", "unit/type/hash", "unit/type/set", "unit/type/zset", "unit/type/incr",
	"unit/type/stream", "unit/keyspace", "unit/expire", "unit/scan", "unit/multi", "unit/pubsub", "unit/protocol",
	"unit/scripting", "unit/functions", "unit/bitops", "unit/bitfield", "unit/geo", "unit/sort", "unit/dump",
	"unit/tracking",
}

// overrun is a test whose reply has thousands of pieces. valkey-server 8.1.1 posts them without checking for room in
// its send queue of 1,024; posting fails with ENOMEM, and the server crashes.
const overrun = "Script return recursive object"

var passed = regexp.MustCompile(`\[ok\]`)

// colors matches escape sequences for colors.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestSuite runs Valkey's own test suite, which uses TCP, over connections that are forwarded over RDMA.
func TestSuite(t *testing.T) {
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("takes 5 min: run GOVERBS_EVERYTHING=1 make suites SUITES=valkey")
	}
	own, config := address(t)
	for _, unit := range units {
		t.Run(unit, func(t *testing.T) {
			s := startServer(t, config, own)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go forward(l, config, s.address)
			_, port, err := net.SplitHostPort(l.Addr().String())
			require.NoError(t, err)
			suite := t.TempDir()
			from := filepath.Join(os.Getenv(programs), "suite")
			require.NoError(t, exec.CommandContext(t.Context(), "cp", "-r", from+"/.", suite).Run())
			cmd := program(t, programs, "suite/runtest", "--host", "127.0.0.1", "--port", port, "--clients", "1",
				"--tags", "-slow", "--skiptest", overrun, "--single", unit)
			cmd.Path, cmd.Dir = filepath.Join(suite, "runtest"), suite
			out, err := cmd.CombinedOutput()
			plain := colors.ReplaceAll(out, nil)
			require.NoError(t, err, "%s", plain)
			n := len(passed.FindAll(plain, -1))
			assert.Positive(t, n)
			t.Logf("%d tests", n)
		})
	}
}
