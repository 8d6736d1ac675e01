// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources/fixture"
	"github.com/goverbs/goverbs/internal/stats"
)

var update = flag.Bool("update", false, "write docs/exporter.md and testdata")

// simulatedHost returns a simulated host with an adapter and programs.
func simulatedHost(t *testing.T) *resources.Host {
	h, err := fixture.MLX5()
	require.NoError(t, err)
	h.Publishing = func() ([]stats.Answer, []error) {
		queue := stats.Queue{Posted: 10, Done: 8, Outstanding: 2, Slots: 64, Queues: 3, Uncounted: 1}
		return []stats.Answer{{PID: 1, Report: &stats.Report{Instance: "1", Devices: []stats.Device{
			{Name: "mlx5_0", Queues: map[string]stats.Queue{stats.Send: queue, stats.Receive: queue}},
			{Name: "soft0", Software: true, Objects: map[string]uint64{"qp": 2, "mr": 1}, MRBytes: 4096,
				Queues:   map[string]stats.Queue{stats.SharedReceive: queue},
				Hardware: map[string]uint64{"rdma_sends": 7}}},
			Cache: &stats.Cache{Hits: 5, Misses: 4, Evicted: 1, Unmapped: 2, Regions: 1, Bytes: 100}}}}, nil
	}
	return h
}

// text returns the output of a collector.
func text(t *testing.T, c *Collector) string {
	var b bytes.Buffer
	all, err := Gather(c)
	require.NoError(t, err)
	require.NoError(t, all.WriteText(&b))
	return b.String()
}

// volatile lists prefixes of lines that vary.
var volatile = []string{"goverbs_exporter_read_seconds ", "goverbs_exporter_info{"}

// TestText compares the complete output for a host with an adapter, and runs Prometheus's linter.
func TestText(t *testing.T) {
	out := text(t, &Collector{Host: simulatedHost(t), By: "pid", Processes: 50})
	problems, err := promlint.New(strings.NewReader(out)).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
	var lines strings.Builder
	for line := range strings.Lines(out) {
		for _, v := range volatile {
			if strings.HasPrefix(line, v) {
				line = v + "…\n"
			}
		}
		lines.WriteString(line)
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/mlx5.txt", []byte(lines.String()), 0o644))
	}
	want, err := os.ReadFile("testdata/mlx5.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), lines.String(),
		"go test ./cmd/goverbs/internal/exporter -run TestText -update writes it")
	for _, m := range families {
		assert.Contains(t, out, "# TYPE "+m.name+" ", "the fixture must have every metric")
	}
}

// TestBounded checks that the number of processes is limited and no object is lost.
func TestBounded(t *testing.T) {
	s := &resources.Host{FS: simulatedHost(t).FS}
	c := &Collector{Host: s, By: "pid", Processes: 3}
	var objects []resources.Object
	for i := range uint32(1000) {
		o := resources.Object{Kind: "mr", Device: "mlx5_0", PID: 1 + i, Owner: fmt.Sprint("p", i), Bytes: 4096}
		objects = append(objects, o)
		if i < 2 {
			objects = append(objects, o)
		}
	}
	all := c.programs(objects)
	require.Len(t, all, 4)
	sum := uint64(0)
	for _, p := range all {
		if sum += p.kinds["mr"]; p.name == others {
			assert.Empty(t, p.pid)
			assert.EqualValues(t, 997, p.all)
			assert.EqualValues(t, 997*4096, p.bytes)
		}
	}
	assert.EqualValues(t, 1002, sum)
	c.By = "name"
	for i := range objects {
		objects[i].Owner = "same"
	}
	all = c.programs(objects)
	require.Len(t, all, 1)
	assert.Empty(t, all[0].pid)
	c.Processes = 0
	assert.Equal(t, others, c.programs(objects)[0].name)
	out := text(t, &Collector{Host: simulatedHost(t), By: "none", Processes: 1})
	assert.NotContains(t, out, "goverbs_process_")
	assert.Contains(t, out, `goverbs_software_receive_queue_bytes{address="",process="(others)"} 0`)
}

// TestNone checks a host without devices.
func TestNone(t *testing.T) {
	h, err := fixture.None()
	require.NoError(t, err)
	out := text(t, &Collector{Host: h, By: "name", Processes: 50})
	assert.Contains(t, out, "goverbs_exporter_notes 0")
	assert.NotContains(t, out, "goverbs_device_info")
}

// TestPage checks that docs/exporter.md lists the metrics.
func TestPage(t *testing.T) {
	const file, begin, end = "../../../../docs/exporter.md", "<!-- metrics -->\n", "<!-- end of metrics -->\n"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	require.True(t, ok && ok2, "markers not found")
	b := "\n| metric | type | labels | description |\n|---|---|---|---|\n"
	for _, m := range families {
		kind, from := "gauge", ""
		if m.kind == Counter {
			kind = "counter"
		}
		if m.file != "" {
			from = fmt.Sprintf(" (`%s`)", m.file)
		}
		b += fmt.Sprintf("| `%s` | %s | %s | %s%s |\n", m.name, kind, strings.Join(m.labels, ", "), m.help, from)
	}
	want := before + begin + b + "\n" + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	assert.True(t, want == string(page),
		"docs/exporter.md is stale: go test ./cmd/goverbs/internal/exporter -run TestPage -update")
}
