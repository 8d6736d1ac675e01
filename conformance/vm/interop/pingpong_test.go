// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma"
)

func TestMain(m *testing.M) { rig.Main(m) }

const iters = 100

// TestPingPong lets rdma-core's programs and ours play with each other: each as the one that calls and as the one that
// is called, sleeping and polling, with data that both check.
func TestPingPong(t *testing.T) {
	rig.Kernel(t)
	index := gidIndex(t)
	port := 18515
	for _, kind := range []struct {
		name  string
		sizes []int
	}{{"rc", []int{64, 4096, 10000}}, {"ud", []int{64, 1024}}} {
		for _, events := range []bool{true, false} {
			for _, size := range kind.sizes {
				port++
				c := program{"ibv_" + kind.name + "_pingpong",
					[]string{"-d", os.Getenv(wire.EnvDevice), "-g", strconv.Itoa(index), "-c"}, "-"}
				c.number("p", port).number("n", iters).number("s", size).flag("e", events)
				own := program{kind.name + "-pingpong", []string{"-device", os.Getenv(wire.EnvDevice), "-check"}, "-"}
				own.number("port", port).number("iters", iters).number("size", size).flag("events", events)
				t.Run(fmt.Sprintf("%s/events=%v/%d/C calls", kind.name, events, size), func(t *testing.T) {
					ours, theirs := play(t, own.with("-listen"), c.with("127.0.0.1"), port)
					assert.Contains(t, theirs, strconv.Itoa(iters)+" iters in")
					assert.Contains(t, ours, "messages of "+strconv.Itoa(size)+" bytes there and back")
				})
				t.Run(fmt.Sprintf("%s/events=%v/%d/Go calls", kind.name, events, size), func(t *testing.T) {
					theirs, ours := play(t, c, own.with("127.0.0.1"), port)
					assert.Contains(t, theirs, strconv.Itoa(iters)+" iters in")
					assert.NotContains(t, theirs, "invalid data")
					assert.Contains(t, ours, strconv.Itoa(iters)+" messages")
				})
			}
		}
	}
}

// program is one to run, with its arguments.
type program struct {
	name string
	args []string
	dash string
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

// play runs the one that is called, and once it listens the one that calls, and gives what they wrote.
func play(t *testing.T, called, calling program, port int) (first, second string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := called.command(t, ctx), calling.command(t, ctx)
	require.NoError(t, a.Start())
	listening(t, port)
	err := b.Run()
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
	require.NoError(t, err, "the guest has the examples when they are given to it: -with ./examples/...")
	cmd := exec.CommandContext(ctx, path, p.args...)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

func text(cmd *exec.Cmd) string { return cmd.Stdout.(*bytes.Buffer).String() }

// listening waits until somebody listens at a TCP port, without calling: whoever listens takes one call.
func listening(t *testing.T, port int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
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
	}, 10*time.Second, 5*time.Millisecond, "nobody listens at port %d", port)
}

// gidIndex is the index of the GID that our end chooses by itself, which C's has to be told.
func gidIndex(t *testing.T) int {
	t.Helper()
	d, err := rdma.Open(os.Getenv(wire.EnvDevice))
	require.NoError(t, err)
	defer d.Close()
	entry, err := d.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	return int(entry.GIDIndex)
}
