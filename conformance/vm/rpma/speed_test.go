// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rpma"
	"github.com/goverbs/goverbs/runtime"
)

const (
	speedRounds = 3   // number of connections, one for each program
	speedTurns  = 6   // turns for each connection
	speedCalls  = 200 // calls for each operation and turn; a twentieth for large operations
	speedWarm   = 50 * time.Millisecond
	speedLimit  = 1.05
	inCAlone    = "C"
	byDefault   = ""
)

// speedNames lists what is compared: librpma in C, and package rpma by default and with calls through Go's scheduler.
var speedNames = []string{inCAlone, byDefault, runtime.Blocking.String()}

var speedOperations = []string{"write+flush", "read", "write of 1 MiB"}

// start is the reference for timing. [time.Since] reads only the monotonic clock, like C, while [time.Now] reads two
// clocks.
var start = time.Now()

// timing is the median time of an operation in a turn, in nanoseconds.
type timing float64

// runner has a connection to a "serve" in C and runs turns on it, like bench of rpmapeer.c.
type runner interface {
	turn() map[string]timing
	end()
}

// ours is a connection of package rpma.
type ours struct {
	*role
	wc    []ibv.WC
	times []time.Duration
}

func newOurs(t *testing.T, port uint16) *ours {
	o := &ours{role: newRole(t, address(port), rpma.Remote), wc: make([]ibv.WC, 1)}
	o.times = make([]time.Duration, speedCalls)
	o.regions(large, localUsage)
	o.connect(0)
	return o
}

func (o *ours) end() {
	o.must(o.conn.Disconnect())
	o.role.end()
}

func (o *ours) polled() error {
	for {
		n, err := o.conn.CQ().Poll(o.wc)
		if err != nil || n == 1 {
			return cmp.Or(err, o.conn.CompletionErr(&o.wc[0]))
		}
	}
}

func (o *ours) measure(calls int, f func() error) timing {
	done := func() {
		err := f()
		if err == nil {
			err = o.polled()
		}
		if err != nil {
			o.must(err)
		}
	}
	for begin := time.Now(); time.Since(begin) < speedWarm; {
		done()
	}
	for i := range calls {
		began := time.Since(start)
		done()
		o.times[i] = time.Since(start) - began
	}
	slices.Sort(o.times[:calls])
	return timing(o.times[calls/2])
}

func (o *ours) turn() map[string]timing {
	c := o.conn
	return map[string]timing{
		"write+flush": o.measure(speedCalls, func() error {
			if err := c.Write(o.remote, 0, o.mr, 0, 64, rpma.OnError, 0); err != nil {
				return err
			}
			return c.Flush(o.remote, 0, 64, rpma.Visibility, rpma.Always, 0)
		}),
		"read": o.measure(speedCalls, func() error { return c.Read(o.mr, 0, o.remote, 0, 64, rpma.Always, 0) }),
		"write of 1 MiB": o.measure(speedCalls/20,
			func() error { return c.Write(o.remote, 0, o.mr, 0, large, rpma.Always, 0) }),
	}
}

// theirs is a process of librpma.
type theirs struct {
	t     *testing.T
	cmd   *exec.Cmd
	asks  io.WriteCloser
	tells *bufio.Reader
}

func newTheirs(t *testing.T, port uint16) *theirs {
	c := &theirs{t: t, cmd: program(t, "bench", address(port))}
	c.cmd.Args = append(c.cmd.Args, strconv.Itoa(speedCalls))
	var err error
	c.asks, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.tells = bufio.NewReader(out)
	require.NoError(t, c.cmd.Start())
	c.line("peer: ") // the connection is established
	return c
}

// line returns the rest of the next line that begins with word, skipping others.
func (c *theirs) line(word string) string {
	for {
		line, err := c.tells.ReadString('\n')
		require.NoError(c.t, err)
		if rest, ok := strings.CutPrefix(line, word); ok {
			return rest
		}
	}
}

func (c *theirs) turn() map[string]timing {
	_, err := io.WriteString(c.asks, "\n")
	require.NoError(c.t, err)
	all := map[string]timing{}
	for _, name := range speedOperations {
		var one timing
		_, err := fmt.Sscan(c.line(name), &one)
		require.NoError(c.t, err)
		all[name] = one
	}
	return all
}

func (c *theirs) end() {
	require.NoError(c.t, c.asks.Close())
	require.NoError(c.t, c.cmd.Wait())
}

// TestSpeed compares package rpma with librpma. Each has a connection to a C peer; the connections are open at the same
// time and take short turns, so that load affects all alike. The test writes rpma-speed-KERNEL.md and runs only with
// GOVERBS_SPEED=1. The limit applies only to guests whose clock counts instructions, since measurements with the host's
// clock are not reproducible on a loaded machine.
func TestSpeed(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for a minute: vmtest -counted -cpus 1 -env GOVERBS_SPEED=1")
	}
	inC(t)
	output := map[string][]map[string]timing{}
	for round := range uint16(speedRounds) {
		all := contestants(t, 7650+uint16(len(speedNames))*round)
		for turn := range speedTurns {
			for i := range all {
				at := (i + turn) % len(all) // in rotating order
				name := speedNames[at]
				output[name] = append(output[name], all[at].turn())
			}
		}
		for _, r := range all {
			r.end()
		}
	}
	var page strings.Builder
	page.WriteString(speedPage)
	for _, desc := range speedOperations {
		line, ratios := row(desc, output)
		page.WriteString(line)
		assert.LessOrEqual(t, ratios[byDefault], speedLimit, desc)
	}
	t.Logf("\n%s", page.String())
	name := os.Getenv(wire.EnvOut) + "/rpma-speed-" + os.Getenv(wire.EnvGuest) + ".md"
	require.NoError(t, os.WriteFile(name, []byte(page.String()), 0o644))
}

// contestants returns a connection for each of speedNames.
func contestants(t *testing.T, port uint16) (all []runner) {
	for i, name := range speedNames {
		at := port + uint16(i)
		ready := make(chan struct{})
		go passiveInC("serve")(t, address(at), func() { close(ready) })
		<-ready
		switch name {
		case inCAlone:
			all = append(all, newTheirs(t, at))
		case byDefault:
			all = append(all, newOurs(t, at))
		default:
			t.Setenv(rdma.EnvCall, name)
			all = append(all, newOurs(t, at))
			require.NoError(t, os.Unsetenv(rdma.EnvCall))
		}
	}
	return all
}

// row formats the figures of an operation and returns the ratios to C.
func row(desc string, output map[string][]map[string]timing) (line string, toC map[string]float64) {
	median := func(name string) float64 {
		var all []float64
		for _, one := range output[name] {
			all = append(all, float64(one[desc]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	c := median(inCAlone)
	line, toC = fmt.Sprintf("| %s | %.2f |", desc, c/1e3), map[string]float64{}
	for _, name := range speedNames[1:] {
		var ratios []float64
		for i, one := range output[name] {
			ratios = append(ratios, float64(one[desc]/output[inCAlone][i][desc]))
		}
		slices.Sort(ratios)
		n := len(ratios)
		toC[name] = ratios[n/2]
		line += fmt.Sprintf(" %.2f | %.3f (%.3f–%.3f) |", median(name)/1e3, toC[name], ratios[n/4], ratios[n-1-n/4])
	}
	return line + "\n", toC
}

const speedPage = `# Package rpma compared with librpma

Measured by make bench WHAT=vm in one boot with Soft-RoCE, in a guest with one processor whose clock counts instructions:
a microsecond is a thousand instructions of the kernel and the program, independently of the host's load. One connection
of librpma in C and two of package rpma are open at the same time, each to a peer in C. They poll, and take 6 turns of
200 calls (10 for large operations) in each of 3 rounds. One connection of package rpma calls C in the default way; the
other one uses GOVERBS_CALL=blocking, which notifies Go's scheduler of every call. Figures are medians of the medians of
turns; ratios are those of adjacent turns, with their quartiles. The limit for the default way is 1.05.

| operation | librpma, µs | rpma, µs | to librpma | rpma, blocking, µs | to librpma |
|---|---|---|---|---|---|
`
