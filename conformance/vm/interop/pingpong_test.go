// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const iters = 100

// TestPingPong runs rdma-core's programs against the examples, as server and as client, with events and with polling.
// Both sides check the data.
func TestPingPong(t *testing.T) {
	testbed.Kernel(t)
	device := os.Getenv(wire.EnvDevice)
	local, err := netip.ParseAddr(os.Getenv(wire.EnvAddress))
	require.NoError(t, err)
	here := netip.MustParseAddr("127.0.0.1")
	pingPong(t, places{device: device, address: local, own: device, at: here, ownAt: here})
}

// TestPingPongAcross is TestPingPong with the example as an unprivileged user, on a software device in another
// namespace.
func TestPingPongAcross(t *testing.T) {
	over := testbed.OpenAcross(t)
	all := []places{
		{device: over.Device, address: over.Kernel4, at: over.Kernel4, ownAt: over.Soft4, over: over},
		{device: over.Device, address: over.Kernel6, at: over.Kernel4, ownAt: over.Soft6, over: over},
	}
	for _, p := range all[:testbed.Many(2, 1)] { // make test covers IPv6 in package roce
		p.own = "soft@" + p.ownAt.String()
		t.Run(p.own, func(t *testing.T) { pingPong(t, p) })
	}
}

// places are the devices and addresses of the C program and of the example.
type places struct {
	device, own string     // devices of the C program and of the example
	address     netip.Addr // address of the GID for the C program
	at, ownAt   netip.Addr // TCP addresses; the C programs listen on IPv4 only
	over        *testbed.Across
}

func pingPong(t *testing.T, at places) {
	index := gidIndex(t, at.device, rdma.GIDQuery{Address: at.address})
	port := 18515
	for _, kind := range []struct {
		name   string
		own    string // name of the example
		events []bool
		sizes  []int
	}{
		{"rc", "rc-pingpong", []bool{true, false}, []int{64, 4096, 10000}},
		{"uc", "rc-pingpong", []bool{true}, []int{64, 10000}},
		{"ud", "ud-pingpong", []bool{true, false}, []int{64, 1024}},
	} {
		for _, events := range kind.events {
			for _, size := range kind.sizes {
				port++
				c := program{name: "ibv_" + kind.name + "_pingpong", dash: "-",
					args: []string{"-d", at.device, "-g", strconv.Itoa(index), "-c"}}
				c.number("p", port).number("n", iters).number("s", size).flag("e", events)
				own := program{name: kind.own, dash: "-", over: at.over, args: []string{"-device", at.own, "-check"}}
				own.flag("uc", kind.name == "uc")
				own.number("port", port).number("iters", iters).number("size", size).flag("events", events)
				t.Run(fmt.Sprintf("%s/events=%v/%d/C calls", kind.name, events, size), func(t *testing.T) {
					ours, theirs := play(t, own.with("-listen"), c.with(at.ownAt.String()), port)
					assert.Contains(t, theirs, strconv.Itoa(iters)+" iters in")
					assert.Contains(t, ours, "round trips of "+strconv.Itoa(size)+" bytes")
				})
				t.Run(fmt.Sprintf("%s/events=%v/%d/Go calls", kind.name, events, size), func(t *testing.T) {
					libSymbols, dropinSymbols := play(t, c, own.with(at.at.String()), port)
					assert.Contains(t, libSymbols, strconv.Itoa(iters)+" iters in")
					assert.NotContains(t, libSymbols, "invalid data")
					assert.Contains(t, dropinSymbols, strconv.Itoa(iters)+" round trips")
				})
			}
		}
	}
}

// program is a program to run, with its arguments.
type program struct {
	name string
	args []string
	dash string
	over *testbed.Across // run unprivileged at the far end of this cable; optional
}

func (p program) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if p.over == nil {
		require.NoError(t, cmd.Start())
		return
	}
	require.NoError(t, p.over.Inside(cmd.Start))
}

func (p *program) number(name string, n int) *program {
	p.args = append(p.args, p.dash+name, strconv.Itoa(n))
	return p
}

func (p *program) flag(name string, set bool) *program {
	if set {
		p.args = append(p.args, p.dash+name)
	}
	return p
}

func (p program) with(more ...string) program {
	p.args = append(p.args[:len(p.args):len(p.args)], more...)
	return p
}

// play runs the server, waits until it listens, runs the client, and returns the output of both.
func play(t *testing.T, called, calling program, port int) (first, second string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := called.command(t, ctx), calling.command(t, ctx)
	called.start(t, a)
	listening(t, a, port)
	calling.start(t, b)
	err := b.Wait()
	first, second = text(a), text(b)
	require.NoError(t, err, "%s: %s\n%s: %s", calling.name, second, called.name, first)
	err = a.Wait()
	first = text(a)
	require.NoError(t, err, "%s: %s", called.name, first)
	return first, second
}

func (p program) command(t *testing.T, ctx context.Context) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(p.name)
	require.NoError(t, err, "the examples are not in the guest: run vmtest -with ./examples/...")
	cmd := exec.CommandContext(ctx, path, p.args...)
	if p.over != nil {
		const unprivileged = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

func text(cmd *exec.Cmd) string { return cmd.Stdout.(*bytes.Buffer).String() }

// listening waits until a process listens on a TCP port. It reads the socket table, since the programs accept only one
// connection.
func listening(t *testing.T, where *exec.Cmd, port int) {
	t.Helper()
	net := fmt.Sprintf("/proc/%d/net/", where.Process.Pid)
	require.Eventually(t, func() bool {
		for _, file := range []string{net + "tcp", net + "tcp6"} {
			table, err := os.ReadFile(file)
			for line := range strings.Lines(string(table)) { // "0: 00000000:4853 00000000:0000 0A …", 0A: LISTEN
				fields := strings.Fields(line)
				if err == nil && len(fields) > 3 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) &&
					fields[3] == "0A" {
					return true
				}
			}
		}
		return false
	}, 10*time.Second, 5*time.Millisecond, "no listener on port %d", port)
}

// gidIndex returns the index of a GID, which the C program takes as an argument. Without a query, it is the index that
// goverbs chooses.
func gidIndex(t *testing.T, device string, of rdma.GIDQuery) int {
	t.Helper()
	d, err := rdma.Open(device)
	require.NoError(t, err)
	defer d.Close()
	entry, err := d.FindGID(of)
	require.NoError(t, err)
	return int(entry.GIDIndex)
}
