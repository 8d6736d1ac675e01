// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

const (
	speedRounds = 15  // of each program, in turn
	speedCalls  = 500 // of an operation in a round
)

// timing is what a program says of an operation: nanoseconds.
type timing struct{ least, median float64 }

// bench measures as rpmapeer.c does, against a "serve".
func bench(t *testing.T, at netip.AddrPort) string {
	r := newRole(t, at, rpma.Remote)
	r.regions(large, localUsage)
	r.connect(0)
	r.out.Reset()
	c, wc := r.conn, make([]ibv.WC, 1)
	polled := func() error {
		for {
			n, err := c.CQ().Poll(wc)
			if err != nil || n == 1 {
				return cmp.Or(err, c.CompletionErr(&wc[0]))
			}
		}
	}
	measure := func(what string, rounds int, f func() error) {
		times := make([]time.Duration, rounds)
		for i := range times {
			began := time.Now()
			err := f()
			if err == nil {
				err = polled()
			}
			if err != nil {
				r.must(err)
			}
			times[i] = time.Since(began)
		}
		slices.Sort(times)
		r.print("%s %d %d", what, times[0].Nanoseconds(), times[rounds/2].Nanoseconds())
	}
	measure("write+flush", speedCalls, func() error {
		if err := c.Write(r.remote, 0, r.mr, 0, 64, rpma.OnError, 0); err != nil {
			return err
		}
		return c.Flush(r.remote, 0, 64, rpma.Visibility, rpma.Always, 0)
	})
	measure("read", speedCalls, func() error { return c.Read(r.mr, 0, r.remote, 0, 64, rpma.Always, 0) })
	measure("write of 1 MiB", speedCalls/50,
		func() error { return c.Write(r.remote, 0, r.mr, 0, large, rpma.Always, 0) })
	r.must(r.conn.Disconnect())
	return r.end()
}

func benchInC(t *testing.T, at netip.AddrPort) string {
	cmd := program(t, "bench", at)
	cmd.Args = append(cmd.Args, strconv.Itoa(speedCalls))
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// timings reads what a program has said.
func timings(t *testing.T, said string) map[string]timing {
	all := map[string]timing{}
	for _, what := range []string{"write+flush", "read", "write of 1 MiB"} {
		_, rest, ok := strings.Cut("\n"+said, "\n"+what+" ")
		require.True(t, ok, "%s", said)
		var one timing
		_, err := fmt.Sscan(rest, &one.least, &one.median)
		require.NoError(t, err)
		all[what] = one
	}
	return all
}

// TestSpeed measures package rpma beside librpma, in rounds that take turns, each against a peer in C;
// rpma-speed-KERNEL.md has the figures. GOVERBS_SPEED=1 asks for it: figures of a loaded machine mean nothing, so
// nothing is asserted here.
func TestSpeed(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for a minute: vmtest -env GOVERBS_SPEED=1")
	}
	inC(t)
	_, err := exec.LookPath("rpmapeer")
	require.NoError(t, err)
	var ours, theirs []map[string]timing
	port := uint16(7640)
	for range speedRounds {
		c, _ := play(t, port, benchInC, passiveInC("serve"))
		g, _ := play(t, port+1, bench, passiveInC("serve"))
		ours, theirs = append(ours, timings(t, g)), append(theirs, timings(t, c))
		port += 2
	}
	var page strings.Builder
	page.WriteString(speedPage)
	for _, what := range []string{"write+flush", "read", "write of 1 MiB"} {
		var own, c, ratios []float64
		best := [2]float64{math.Inf(1), math.Inf(1)}
		for i := range ours {
			own, c = append(own, ours[i][what].median), append(c, theirs[i][what].median)
			ratios = append(ratios, ours[i][what].median/theirs[i][what].median)
			best[0], best[1] = min(best[0], theirs[i][what].least), min(best[1], ours[i][what].least)
		}
		for _, all := range [][]float64{own, c, ratios} {
			slices.Sort(all)
		}
		last, middle := speedRounds-1, speedRounds/2
		fmt.Fprintf(&page, "| %s | %.1f | %.1f | %.2f (%.2f–%.2f) | %.2f |\n", what, c[middle]/1e3, own[middle]/1e3,
			ratios[middle], ratios[0], ratios[last], best[1]/best[0])
	}
	t.Logf("\n%s", page.String())
	name := os.Getenv(wire.EnvOut) + "/rpma-speed-" + os.Getenv(wire.EnvGuest) + ".md"
	require.NoError(t, os.WriteFile(name, []byte(page.String()), 0o644))
}

const speedPage = `# Package rpma beside librpma

Measured by make vm-bench in one boot with Soft-RoCE, under QEMU's software emulation with two processors. A program of librpma in C and one
of package rpma take turns in 15 rounds, each against a peer in C, and poll. Figures are medians of the rounds' medians, ratios those of the
rounds' own ratios, with the least and the greatest; the last column is that of the fastest calls. The target is 1.05.

| operation | librpma, µs | rpma, µs | rpma to librpma | fastest |
|---|---|---|---|---|
`
