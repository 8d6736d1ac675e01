// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

const (
	speedRound  = 500 * time.Millisecond
	speedRounds = 7
	speedWrite  = 1 << 20
	speedDepth  = 4 // writes in flight
	speedEcho   = 64
)

// flow is a pair to measure.
type flow struct {
	name     string
	baseline *flow // pair of Soft-RoCE to compare with
	a, b     *end

	writes, echoes []float64 // in each round: MB/s, and round trip in µs
}

// TestSpeed compares the software device with Soft-RoCE in interleaved rounds. It writes figures to
// roce-speed-KERNEL.csv and ratios to a page. Since load distorts the figures, it asserts nothing and runs only with
// GOVERBS_SPEED=1.
func TestSpeed(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for half a minute: vmtest -env GOVERBS_SPEED=1")
	}
	flows := newFlows(t)
	for range speedRounds {
		for _, f := range flows {
			before := f.counts()
			f.writes = append(f.writes, f.throughput())
			f.logRetransmissions(before)
			f.echoes = append(f.echoes, f.echo())
		}
	}
	var csv, page strings.Builder
	csv.WriteString("what,unit,minimum,median,maximum\n")
	page.WriteString(speedPage)
	for _, f := range flows {
		fmt.Fprintf(&page, "| %s |", f.name)
		for _, kind := range []struct {
			unit          string
			own, baseline []float64
		}{{"MB/s", f.writes, f.baseline.writes}, {"µs", f.echoes, f.baseline.echoes}} {
			least, median, most := spread(kind.own)
			fmt.Fprintf(&csv, "%q,%s,%.1f,%.1f,%.1f\n", f.name, kind.unit, least, median, most)
			ratio := "1"
			if f.baseline != f {
				var ratios []float64
				for i := range kind.own {
					ratios = append(ratios, kind.own[i]/kind.baseline[i])
				}
				least, median, most := spread(ratios)
				ratio = fmt.Sprintf("%.2f (%.2f–%.2f)", median, least, most)
			}
			fmt.Fprintf(&page, " %.0f | %.0f | %s |", median, least, ratio)
		}
		page.WriteString("\n")
	}
	t.Logf("\n%s", page.String())
	for ext, text := range map[string]string{"csv": csv.String(), "md": page.String()} {
		require.NoError(t, os.WriteFile(os.Getenv(wire.EnvOut)+"/roce-speed-"+testbed.Kernel(t)+"."+ext, []byte(text),
			0o644))
	}
}

const speedPage = `# The software device compared with Soft-RoCE

Measured by make bench WHAT=vm in one boot, under QEMU's software emulation with two processors. Both ends are in one
process that waits for events. They use IPv4 and packets of 1024 bytes. MB/s is the throughput of 1 MiB RC writes, 4 in
flight; µs is the round trip of 64 bytes. There are 7 interleaved rounds. The table has the median and the minimum of
the rounds, and the median (minimum–maximum) of the ratios of each round to the Soft-RoCE pair above. Packets that
Soft-RoCE sends to itself bypass sockets, IP and the cable. Soft-RoCE works in two namespaces since kernel 7.

| pair | MB/s | minimum | ratio | µs | minimum | ratio |
|---|---|---|---|---|---|---|
`

// newFlows returns the pairs. Pairs of Soft-RoCE precede those that are compared with them.
func newFlows(t *testing.T) (flows []*flow) {
	open := func(d *rdma.Device, err error) *rdma.Device {
		keep(t, d, err)
		return d
	}
	at0 := func(f *soft.Fabric) *rdma.Device { return open(rdma.OpenOn(f, "soft0")) }
	add := func(name string, baseline *flow, from, to *rdma.Device, atFrom, atTo netip.Addr) *flow {
		o := options{kind: ibv.QPT_RC, change: func(attr *ibv.QPAttr) { attr.Timeout = 19 }} // the host may be busy
		f := &flow{name: name, baseline: baseline, a: newEnd(t, from, o), b: newEnd(t, to, o)}
		connect(t, f.a, f.b, atFrom, atTo, o)
		if baseline == nil {
			f.baseline = f
		}
		flows = append(flows, f)
		return f
	}
	over := testbed.OpenAcross(t)
	kernel, near := open(rdma.Open(over.Device)), at0(over.Soft(t))
	fabric, at := over.SecondSoft(t)
	best := add("Soft-RoCE to itself", nil, kernel, kernel, over.Kernel4, over.Kernel4)
	add("software device to another on loopback", best, near, at0(fabric), over.Soft4, at)
	if k := testbed.Kernel(t); k != "6.1" && k != "6.12" {
		cable := testbed.OpenCable(t, 1)
		best = add("Soft-RoCE to Soft-RoCE over a cable", nil, open(rdma.Open(cable.Kernel(t, 0))),
			open(rdma.Open(cable.Kernel(t, 1))), cable.At[0], cable.At[1])
	}
	cable := testbed.OpenCable(t, 2)
	add("software device to another over a cable", best, at0(cable.Soft(t, 0)), at0(cable.Soft(t, 1)), cable.At[0],
		cable.At[1])
	add("Soft-RoCE to software device over a cable", best, kernel, near, over.Kernel4, over.Soft4)
	add("software device to Soft-RoCE over a cable", best, near, kernel, over.Soft4, over.Kernel4)
	return flows
}

// counts returns the counters of both ends, to detect losses, which dominate all other costs.
func (f *flow) counts() (all [2]map[string]uint64) {
	for i, e := range []*end{f.a, f.b} {
		var err error
		all[i], err = e.q.PD().Device().HWCounters(1)
		require.NoError(e.t, err)
	}
	return all
}

// logRetransmissions logs the numbers of packets that were sent and retransmitted.
func (f *flow) logRetransmissions(before [2]map[string]uint64) {
	text := ""
	for i, now := range f.counts() {
		for _, name := range []string{"sent_pkts", "rcvd_pkts", "completer_retry_err", "retrans_pkts",
			"out_of_seq_request", "duplicate_request", "local_ack_timeout_err"} {
			if n := now[name] - before[i][name]; n > 0 {
				text += fmt.Sprintf(" %c.%s %d", 'a'+i, name, n)
			}
		}
	}
	f.a.t.Logf("%s:%s", f.name, text)
}

func spread(figures []float64) (least, median, most float64) {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// throughput posts writes for a while and returns MB/s.
func (f *flow) throughput() float64 {
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(f.a.t, err)
	defer b.Close()
	b.Write(1, f.b.mr.SGE(margin, 1).Addr, f.b.mr.RKey()).Add(f.a.mr.SGE(margin, speedWrite)).Signaled()
	start, posted, done := time.Now(), 0, 0
	for ; time.Since(start) < speedRound || posted < 2*speedDepth; posted++ {
		if posted-done == speedDepth {
			f.a.done()
			done++
		}
		_, err := f.a.q.PostSend(b)
		require.NoError(f.a.t, err)
	}
	for ; done < posted; done++ {
		f.a.done()
	}
	return float64(done) * speedWrite / 1e6 / time.Since(start).Seconds()
}

// echo exchanges a small message in both directions for a while and returns the round trip in µs.
func (f *flow) echo() float64 {
	count := 0
	start := time.Now()
	for ; time.Since(start) < speedRound/5; count++ {
		f.a.recv(0, speedEcho)
		f.b.recv(0, speedEcho)
		for _, e := range []struct{ from, to *end }{{f.a, f.b}, {f.b, f.a}} {
			e.from.post(func(b *rdma.SendBatch) rdma.SendRequest { return b.Send(1).Add(e.from.mr.SGE(0, speedEcho)) })
			e.to.done()
			e.from.done()
		}
	}
	return float64(time.Since(start).Microseconds()) / float64(count)
}
