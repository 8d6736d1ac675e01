// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// perftestFigures lists the tests with which goverbs and perftest are measured. Each takes about a second.
var perftestFigures = []string{
	"send lat -n 2000", "send lat -c UD -n 2000", "write lat -n 2000", "read lat -n 1000", "atomic lat -n 1000",
	"send bw -n 300", "send bw -c UD -s 1024 -n 3000", "write bw -n 300", "write bw -s 64 -n 10000", "read bw -n 300",
}

// TestPerftestSpeed measures two goverbs processes, and two processes of each perftest release, alternately in one
// boot, and writes the results. With one processor, whose clock may count instructions, it runs tests in which one end
// works while the other sleeps. With more, it runs tests in which both ends poll, and compares the results of the two
// ends of one test, since they have separate clocks.
func TestPerftestSpeed(t *testing.T) {
	kernel := testbed.Kernel(t)
	if os.Getenv("GOVERBS_MEASURE") == "" {
		t.Skip("a measurement: make bench WHAT=perftest runs it")
	}
	e := openEnds(t)
	rounds := 5
	if n, err := strconv.Atoi(os.Getenv("GOVERBS_ROUNDS")); err == nil {
		rounds = n
	}
	port := 23000
	figure := func(server, client func(test string, port int) *exec.Cmd, test string) float64 {
		for range 5 {
			port++
			_, clientOutput, err := e.run(server(test, port), client(test, port))
			require.NoError(t, err)
			if v := figureOf(t, test, clientOutput); !math.IsInf(v, 0) { // perftest determined its clock rate
				return v
			}
		}
		require.Fail(t, "perftest did not determine its clock rate", test)
		return 0
	}
	write := func(csv, md string) {
		name := "perftest-" + kernel
		if runtime.NumCPU() > 1 {
			name = "perftest-polling-" + kernel
		}
		for ext, text := range map[string]string{"csv": csv, "md": md} {
			file := filepath.Join(os.Getenv(wire.EnvOut), name+"."+ext)
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		}
	}
	players := []func(test string, port int) *exec.Cmd{e.ours}
	names := []string{"goverbs"}
	for _, root := range e.roots {
		names = append(names, path.Base(root))
		players = append(players, func(test string, port int) *exec.Cmd { return e.theirs(root, test, port) })
	}
	var csv, md strings.Builder
	csv.WriteString("test,round,program,figure\n")
	processors := "one processor, whose clock counts instructions"
	if runtime.NumCPU() > 1 {
		processors = fmt.Sprintf("%d processors, which the machine's load disturbs", runtime.NumCPU())
	}
	fmt.Fprintf(&md, perftestHead, kernel, rounds, processors)
	for _, test := range perftestFigures {
		if pollsAtBothEnds(test) == (runtime.NumCPU() == 1) || !strings.Contains(test, os.Getenv("GOVERBS_FIGURES")) {
			continue
		}
		all := make([][]float64, len(players))
		for round := range rounds {
			for i := range players {
				player := (i + round) % len(players)
				v := figure(players[player], players[player], test)
				all[player] = append(all[player], v)
				fmt.Fprintf(&csv, "%s,%d,%s,%.3f\n", test, round+1, names[player], v)
			}
		}
		unit := "MiB/s"
		if strings.Contains(test, " lat") {
			unit = "µs, median"
		}
		fmt.Fprintf(&md, "| %s | %s | %.4g |", test, unit, medianOf(all[0]))
		for i := range e.roots {
			fmt.Fprintf(&md, " %.4g | %s |", medianOf(all[i+1]), medianRatio(all[0], all[i+1]))
		}
		md.WriteString("\n")
		t.Log(test)
		write(csv.String(), md.String()) // intermediate
	}
	if runtime.NumCPU() == 1 {
		return
	}
	md.WriteString("\nOne ping-pong measured at both ends, with goverbs as server and perftest as client " +
		"(median, µs):\n\n")
	for i, root := range e.roots {
		port++
		test := "send lat -n 2000"
		serverResult, clientResult, err := e.run(e.ours(test, port), e.theirs(root, test, port))
		require.NoError(t, err)
		ours, other := figureOf(t, test, serverResult), figureOf(t, test, clientResult)
		fmt.Fprintf(&md, "- %s: %.4g and %.4g\n", names[i+1], ours, other)
		require.InEpsilon(t, ours, other, 0.2, "their clocks differ")
	}
	write(csv.String(), md.String())
}

const perftestHead = `# goverbs perf compared with perftest

Measured by make bench WHAT=perftest in one boot of Linux %[1]s with Soft-RoCE, under QEMU's software emulation with
%[3]s.
Each test runs with goverbs perf at both ends, and with perftest at both ends: 4.5 of Debian 12 (bookworm) and 25.01 of
Debian 13 (trixie). There are %[2]d interleaved rounds. Figures are medians of the client's results; ratios, goverbs
divided by perftest, are medians (minimum–maximum) of the ratios of each round. For latencies, a ratio below 1 means that
goverbs is faster; for bandwidths, one above 1. The target is 0.95 to 1.05.

| test | figure | goverbs | 4.5 | ratio | 25.01 | ratio |
|---|---|---|---|---|---|---|
`

// pollsAtBothEnds reports whether both ends of a test poll. Each end then needs a processor.
func pollsAtBothEnds(test string) bool {
	return strings.Contains(test, "send lat") || strings.Contains(test, "write lat")
}

// figureOf extracts the bandwidth or the median latency from the output of a program.
func figureOf(t *testing.T, test, output string) float64 {
	t.Helper()
	if strings.HasPrefix(strings.TrimSpace(output), "{") {
		var r struct {
			Results []struct {
				MiB    float64 `json:"mib_per_s"`
				Median float64 `json:"median_us"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(output), &r))
		require.Len(t, r.Results, 1)
		return r.Results[0].MiB + r.Results[0].Median
	}
	column := 3 // after bytes, iterations and the peak
	if strings.Contains(test, " lat") {
		column = 4 // after bytes, iterations, minimum and maximum
	}
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) <= column {
			continue
		}
		if _, err := strconv.Atoi(fields[0]); err != nil {
			continue
		}
		if v, err := strconv.ParseFloat(fields[column], 64); err == nil {
			return v
		}
	}
	require.Fail(t, "no figure", output)
	return 0
}

func medianOf(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// medianRatio formats the median, minimum and maximum of the ratios of the rounds.
func medianRatio(own, other []float64) string {
	var all []float64
	for i := range own {
		all = append(all, own[i]/other[i])
	}
	slices.Sort(all)
	r := medianOf(all)
	s := fmt.Sprintf("%.2f (%.2f–%.2f)", r, all[0], all[len(all)-1])
	if r < 0.95 || r > 1.05 {
		s += ", missed"
	}
	return s
}
