// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources/fixture"
)

var update = flag.Bool("update", false, "write testdata")

// newReport returns a report of the simulated host with an adapter.
func newReport(t *testing.T, now, before *resources.Snapshot, base Baseline, o Options) *Report {
	r, err := New(now, before, base, &o)
	require.NoError(t, err)
	return r
}

func snapshot(t *testing.T) *resources.Snapshot {
	h, err := fixture.MLX5()
	require.NoError(t, err)
	return h.Read()
}

// TestText compares the complete text report.
func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, newReport(t, snapshot(t), nil, nil, Options{Listed: true}).WriteText(&b))
	if *update {
		require.NoError(t, os.WriteFile("testdata/mlx5.txt", b.Bytes(), 0o644))
	}
	want, err := os.ReadFile("testdata/mlx5.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), b.String(), "go test ./cmd/goverbs/internal/top -run TestText -update writes it")
	assert.NotContains(t, b.String(), "\x1b", "control characters in names must be removed")
}

// TestGrown checks growth and counter rates.
func TestGrown(t *testing.T) {
	first, then := snapshot(t), snapshot(t)
	then.Time = first.Time.Add(2 * time.Second)
	for _, o := range first.Objects {
		if o.Kind == "mr" && o.Number == 2 {
			o.Number = 7
			then.Objects = append(then.Objects, o, o)
		}
	}
	then.Objects = then.Objects[1:] // the kernel's queue pair
	then.Devices[0].Ports[0].Counters["port_rcv_packets"] += 500
	then.Devices[0].Ports[0].Counters["port_rcv_errors"] = 0 // it was reset
	then.Devices[0].Ports[0].Hardware["np_cnp_sent"]++
	base := BaselineOf(first)
	r := newReport(t, then, first, base, Options{})
	require.Len(t, r.Processes, 4)
	assert.Equal(t, "storage", r.Processes[0].Name)
	assert.Equal(t, map[string]int64{"mr": 2, mrBytes: 2 << 20}, r.Processes[0].Grown)
	assert.Equal(t, map[string]float64{"port_rcv_packets": 250, "np_cnp_sent": 0.5}, r.Devices[0].Ports[0].Rates)
	for _, p := range r.Processes {
		if p.Name == "[ib_core]" {
			assert.Equal(t, map[string]int64{"qp": -1}, p.Grown)
		}
	}
	r = newReport(t, then, first, base, Options{Growing: true})
	require.Len(t, r.Processes, 1)
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	assert.Contains(t, b.String(), "mr +2, mr_bytes +2097152")
	assert.Regexp(t, `port_rcv_packets +4500 +250\.0`, b.String())
	assert.NotContains(t, b.String(), "symbol_error", "the counter did not increase")
	b.Reset()
	require.NoError(t, newReport(t, then, first, base, Options{Counters: true}).WriteText(&b))
	assert.Contains(t, b.String(), "symbol_error")
	assert.Contains(t, b.String(), "rx_icrc_encapsulated")
}

func TestSortAndFilter(t *testing.T) {
	s := snapshot(t)
	names := func(o Options) (all []string) {
		for _, p := range newReport(t, s, nil, nil, o).Processes {
			all = append(all, p.Name)
		}
		return all
	}
	const evil = "?[2Jevil"
	assert.Equal(t, []string{"storage", "[ib_core]", evil, resources.Elsewhere}, names(Options{}))
	assert.Equal(t, []string{resources.Elsewhere, evil, "[ib_core]", "storage"}, names(Options{Sort: "name"})[:4])
	assert.Equal(t, []string{resources.Elsewhere, "[ib_core]", "storage", evil}, names(Options{Sort: "pid"}))
	assert.Equal(t, "storage", names(Options{Sort: mrBytes})[0])
	assert.Equal(t, []string{"storage", evil}, names(Options{Sort: "ctx"})[:2])
	assert.Equal(t, []string{"storage"}, names(Options{PIDs: []uint32{812}}))
	assert.Equal(t, []string{"storage"}, names(Options{Name: "stor"}))
	assert.Empty(t, newReport(t, s, nil, nil, Options{Device: "mlx5_0"}).Software, "not a kernel device")
	_, err := New(s, nil, nil, &Options{Device: "mlx5_9"})
	assert.EqualError(t, err, "unknown kernel device mlx5_9; use mlx5_0")
}

// TestNone checks the hint if there is no device.
func TestNone(t *testing.T) {
	h, err := fixture.None()
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, newReport(t, h.Read(), nil, nil, Options{}).WriteText(&b))
	assert.Contains(t, b.String(), "note  the kernel has no RDMA devices; diagnose adapters")
	_, err = New(h.Read(), nil, nil, &Options{Device: "mlx5_0"})
	assert.ErrorContains(t, err, "the kernel has no RDMA devices; diagnose adapters")
}

// TestLoop checks JSON reports, the end of the loop, and a saved report as the baseline.
func TestLoop(t *testing.T) {
	h, err := fixture.MLX5()
	require.NoError(t, err)
	var b bytes.Buffer
	l := Loop{Interval: time.Millisecond, Count: 3, JSON: true}
	require.NoError(t, l.Run(t.Context(), h, &b))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 3)
	var r Report
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &r))
	assert.Positive(t, r.Interval)
	assert.Equal(t, "mlx5_0", r.Devices[0].Name)
	b.Reset()
	l = Loop{Once: true, JSON: true}
	require.NoError(t, l.Run(t.Context(), h, &b))
	name := t.TempDir() + "/before"
	require.NoError(t, os.WriteFile(name, bytes.ReplaceAll(b.Bytes(), []byte(`"mr": 2`), []byte(`"mr": 1`)), 0o600))
	b.Reset()
	l = Loop{Once: true, Since: name, Options: Options{Growing: true}}
	require.NoError(t, l.Run(t.Context(), h, &b))
	assert.Contains(t, b.String(), "mr +1")
	assert.NotContains(t, b.String(), "[ib_core]")
	b.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, (&Loop{Interval: time.Hour}).Run(ctx, h, &b), "interrupting is not an error")
	require.NoError(t, os.WriteFile(name, []byte("{}"), 0o600))
	assert.ErrorContains(t, (&Loop{Since: name}).Run(t.Context(), h, io.Discard), "not a report of goverbs")
}

func TestScreen(t *testing.T) {
	assert.Equal(t, "\x1b[Hüb\x1b[K\n\x1b[K\nc\x1b[K\n\x1b[J", screen("übersicht\n\nc\n", 2, 10))
	assert.Equal(t, "\x1b[H1\x1b[K\n… 3 more lines\x1b[K\n\x1b[J", screen("1\n2\n3\n4\n", 20, 3))
}

// TestHostileSince checks that an invalid file cannot exhaust memory, and that waiting for a pipe can be interrupted.
func TestHostileSince(t *testing.T) {
	name := filepath.Join(t.TempDir(), "since")
	for _, element := range []string{"0,", "null,", `"",`, "{},"} {
		text := `{"processes":[` + strings.Repeat(element, 1<<20)
		require.NoError(t, os.WriteFile(name, []byte(text[:len(text)-1]+"]}"), 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := (&Loop{Since: name}).baseline(t.Context())
		runtime.ReadMemStats(&after)
		assert.ErrorContains(t, err, "not a report of goverbs", element)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), element)
	}
	require.NoError(t, os.WriteFile(name, []byte(`{"processes":[]}`), 0o600))
	_, err := (&Loop{Since: name}).baseline(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	require.NoError(t, unix.Mkfifo(name, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Loop{Since: name}).Run(ctx, nil, io.Discard) }()
	cancel()
	select {
	case err := <-done:
		assert.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Error("still running after the interrupt")
	}
	if f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil { // unblock the reader
		f.Close()
	}
}
