// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newerRoot names a directory with iperf3 and a librspreload without the defect of TestRSocketSelectOfLibrspreload,
// with which two iperf3 processes transfer nothing.
const newerRoot = "GOVERBS_NEWERROOT"

// iperf returns the command of iperf3 at a port.
func (p preload) iperf(t *testing.T, at netip.AddrPort, args ...string) *exec.Cmd {
	return p.command(withTimeout(t), "/usr/bin/iperf3", append(args, "-p", strconv.Itoa(int(at.Port())))...)
}

// TestRSocketRelaysIperf runs iperf3 against iperf3 through Go: to the server, from it, and over two streams. The
// receiver exits when the sender reports that it has sent everything, although data may still be in flight.
func TestRSocketRelaysIperf(t *testing.T) {
	p := openPreload(t, newerRoot)
	const sent, underWay = 4 << 20, 2 << 20
	variants := map[string][]string{"to": nil, "from": {"-R"}, "two": {"-P", "2"}}
	onEnds(t, 14, func(t *testing.T, e ends) {
		port := uint16(7550)
		for name, variant := range variants {
			from, to := netip.AddrPortFrom(e.own, port), netip.AddrPortFrom(e.theirs, port+1)
			port += 2
			t.Run(name, func(t *testing.T) {
				output := filepath.Join(t.TempDir(), "said")
				out, err := os.Create(output)
				keep(t, out, err)
				server := p.iperf(t, to, "-s", "-1", "--forceflush", "-B", to.Addr().String())
				server.Stdout, server.Stderr = out, out
				require.NoError(t, server.Start())
				serverOutput := func() string {
					b, err := os.ReadFile(output)
					require.NoError(t, err)
					return string(b)
				}
				require.Eventually(t, func() bool { return strings.Contains(serverOutput(), "listening") }, opTimeout,
					10*time.Millisecond)
				relay(t, e, from.Port(), to.Port(), syscall.EPIPE, syscall.ECONNRESET)
				client := p.iperf(t, from, append(variant, "-c", from.Addr().String(), "-n", strconv.Itoa(sent), "-J")...)
				b, err := client.Output()
				require.NoError(t, err, "%s\nserver: %s", b, serverOutput())
				require.NoError(t, server.Wait(), "%s", serverOutput())
				var reported struct {
					End struct {
						Sent struct{ Bytes int } `json:"sum_sent"`
						Got  struct{ Bytes int } `json:"sum_received"`
					}
				}
				require.NoError(t, json.Unmarshal(b, &reported), "%s", b)
				assert.GreaterOrEqual(t, reported.End.Sent.Bytes, sent, "%s", b)
				assert.GreaterOrEqual(t, reported.End.Got.Bytes, reported.End.Sent.Bytes-underWay, "%s", b)
				assert.LessOrEqual(t, reported.End.Got.Bytes, reported.End.Sent.Bytes, "%s", b)
			})
		}
	})
}
