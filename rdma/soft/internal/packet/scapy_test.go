// SPDX-License-Identifier: BSD-2-Clause

package packet_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

var update = flag.Bool("update", false, "write testdata/icrc.txt with python3 and Scapy (Debian package python3-scapy)")

// TestScapy compares the ICRC of packets over IPv4 with Scapy's. testdata/icrc.txt holds Scapy's packet for each
// opcode, in hexadecimal, starting with the IPv4 header.
func TestScapy(t *testing.T) {
	const file, id = "testdata/icrc.txt", 0x1234
	from, to := &ways[0].from, &ways[0].to
	all := append(append(requests(), answers()...), mads(t)...)
	if *update {
		var in, failed bytes.Buffer
		for _, s := range all {
			var h [packet.HeadersSize]byte
			n := packet.PutHeaders(&h, from, to, id, len(s.p))
			clear(s.p[len(s.p)-4:])
			in.WriteString(hex.EncodeToString(append(h[:n:n], s.p...)) + "\n")
		}
		cmd := exec.Command("/usr/bin/python3", "testdata/icrc.py")
		cmd.Stdin, cmd.Stderr = &in, &failed
		out, err := cmd.Output()
		require.NoError(t, err, "%s", &failed)
		require.NoError(t, os.WriteFile(file, out, 0o644))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Fields(string(b))
	require.Len(t, lines, len(all), "go test -run TestScapy -update writes the file")
	for i, line := range lines {
		want, err := hex.DecodeString(line)
		require.NoError(t, err)
		want = want[28:]
		s := all[i]
		assert.Equal(t, want[:len(want)-4], s.p[:len(s.p)-4], "%s: go test -run TestScapy -update", s.name)
		packet.Seal(s.p, from, to, id)
		if s.p[0] != 0x1c { // FLUSH is sealed like Soft-RoCE's; see TestSoftRoCE
			assert.Equal(t, want[len(want)-4:], s.p[len(s.p)-4:], "%s", s.name)
		}
		_, ok := packet.Check(want, from, to, 0)
		assert.True(t, ok, "%s", s.name)
	}
}
