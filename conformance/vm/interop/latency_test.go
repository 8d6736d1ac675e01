// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma"
)

// Number of rounds in TestLatency, and the first port.
const (
	rounds    = 5
	firstPort = 19000
	target    = 1.05
)

// Modes: CQ.Wait, which polls briefly before it sleeps; the same without polling; and polling only.
const (
	events   = "events"
	sleeping = "events, -busy-poll=0"
	polling  = "polling"
)

// measured returns the number of round trips in each round, for a duration of about one second.
func measured(events bool) int {
	if events {
		return 300
	}
	return 3000
}

// latencies are those of two programs in one round, in nanoseconds.
type latencies struct{ mean, p50, p99 float64 }

// TestLatency measures three programs alternately in one boot: the example, an equivalent C program that reports
// percentiles, and rdma-core's ibv_rc_pingpong, which reports only the mean. It writes the results and prints ratios.
func TestLatency(t *testing.T) {
	kernel := testbed.Kernel(t)
	if os.Getenv("GOVERBS_MEASURE") == "" {
		t.Skip("measures: make bench WHAT=vm")
	}
	device := os.Getenv(wire.EnvDevice)
	index := strconv.Itoa(gidIndex(t, device, rdma.GIDQuery{}))
	number := regexp.MustCompile(`= ([0-9.]+) usec/iter`)
	port := firstPort
	players := []struct {
		name string
		run  func(mode string, size int) latencies
	}{
		{"Go", func(mode string, size int) latencies {
			events := mode != polling
			p := program{name: "rc-pingpong", args: []string{"-device", device, "-csv"}, dash: "-"}
			p.number("port", port).number("iters", measured(events)).number("size", size).flag("events", events)
			if mode == sleeping {
				p.args = append(p.args, "-busy-poll=0")
			}
			_, line := play(t, p.with("-listen"), p.with("127.0.0.1"), port)
			return parse(t, line)
		}},
		{"C", func(mode string, size int) latencies {
			events := mode != polling
			p := program{name: "rc-latency", args: []string{device, index, strconv.Itoa(size),
				strconv.Itoa(measured(events)), map[bool]string{false: "0", true: "1"}[events], strconv.Itoa(port)}}
			_, line := play(t, p, p.with("127.0.0.1"), port)
			return parse(t, line)
		}},
		{"ibv_rc_pingpong", func(mode string, size int) latencies {
			events := mode != polling
			p := program{name: "ibv_rc_pingpong", args: []string{"-d", device, "-g", index}, dash: "-"}
			p.number("p", port).number("n", measured(events)).number("s", size).flag("e", events)
			_, text := play(t, p, p.with("127.0.0.1"), port)
			found := number.FindStringSubmatch(text)
			require.NotNil(t, found, "%s", text)
			mean, err := strconv.ParseFloat(found[1], 64)
			require.NoError(t, err)
			return latencies{mean: 1000 * mean}
		}},
	}
	var csv, md strings.Builder
	fmt.Fprint(&csv, "mode,bytes,round,program,mean_ns,p50_ns,p99_ns\n")
	fmt.Fprintf(&md, head, kernel, measured(true), measured(false), rounds)
	for _, mode := range []string{events, sleeping, polling} {
		for _, size := range []int{64, 4096} {
			all := make([][]latencies, len(players))
			for round := range rounds + 1 {
				for i := range players {
					player := (i + round) % len(players)
					l := players[player].run(mode, size)
					port++
					if round == 0 {
						continue // warm-up
					}
					all[player] = append(all[player], l)
					fmt.Fprintf(&csv, "%q,%d,%d,%s,%.0f,%.0f,%.0f\n", mode, size, round, players[player].name, l.mean,
						l.p50, l.p99)
				}
			}
			line := fmt.Sprintf("| %s | %d |", mode, size)
			for _, of := range []func(latencies) float64{func(l latencies) float64 { return l.p50 },
				func(l latencies) float64 { return l.p99 }} {
				line += fmt.Sprintf(" %.1f | %.1f | %s |", median(all[0], of), median(all[1], of),
					ratio(all[0], all[1], of))
			}
			line += fmt.Sprintf(" %.1f | %.1f | %.1f | %s |\n", median(all[0], mean), median(all[1], mean),
				median(all[2], mean), ratio(all[0], all[2], mean))
			t.Log(line)
			md.WriteString(line)
			// write intermediate results, since the test may time out on a busy machine
			for ext, text := range map[string]string{"csv": csv.String(), "md": md.String()} {
				require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "pingpong-"+kernel+"."+ext),
					[]byte(text), 0o644))
			}
		}
	}
}

const head = `# Ping-pong in Go and in C

Measured by make bench WHAT=vm in one boot of Linux %[1]s with Soft-RoCE, under QEMU's software emulation with two
processors: %[2]d round trips of an RC message between two processes (%[3]d when polling) in each of %[4]d interleaved rounds.
Figures are medians of the rounds in µs; ratios are medians (minimum–maximum) of the ratios of each round. Go is
examples/rc-pingpong. C is conformance/vm/interop/c/rc-latency.c, which makes the calls of ibv_rc_pingpong and reports
percentiles; ibv_rc_pingpong reports only the mean. In the mode "events", Go uses CQ.Wait, which polls for up to 50 µs
before it sleeps, as long as that helps; C sleeps immediately, and so does Go with -busy-poll=0. The target is a ratio of
at most 1.05.

| mode | bytes | p50, Go | p50, C | ratio | p99, Go | p99, C | ratio | mean, Go | mean, C | mean, ibv_rc_pingpong | Go's ratio to that |
|---|---|---|---|---|---|---|---|---|---|---|---|
`

func mean(l latencies) float64 { return l.mean }

// ratio returns the median of the ratios of the rounds, which varies less with the load of the machine than the ratio
// of the medians.
func ratio(ours, c []latencies, of func(latencies) float64) string {
	var all []float64
	for round := range ours {
		all = append(all, of(ours[round])/of(c[round]))
	}
	slices.Sort(all)
	r := all[len(all)/2]
	s := fmt.Sprintf("%.2f (%.2f–%.2f)", r, all[0], all[len(all)-1])
	if r > target {
		s += ", missed"
	}
	return s
}

// median returns the median in microseconds.
func median(all []latencies, of func(latencies) float64) float64 {
	var values []float64
	for _, l := range all {
		values = append(values, of(l)/1000)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func parse(t *testing.T, line string) (l latencies) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(line), "\n")
	_, err := fmt.Sscanf(lines[len(lines)-1], "%f,%f,%f", &l.mean, &l.p50, &l.p99)
	require.NoError(t, err, "%s", line)
	return l
}
