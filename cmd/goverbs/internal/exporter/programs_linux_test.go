// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources/fixture"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/top"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/stats"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
	"github.com/goverbs/goverbs/rdma/soft"
)

// countedVariable is the number of writes that the counted program posts.
const countedVariable = "GOVERBS_EXPORTER_TEST_WRITES"

// TestCountedProgram runs a program with known counters, as a process: writes that complete, receives that do not, and
// a cache with one miss and two hits.
func TestCountedProgram(t *testing.T) {
	var writes int
	if _, err := fmt.Sscan(os.Getenv(countedVariable), &writes); err != nil {
		t.Skip("run by TestPublished as a process")
	}
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := rdma.OpenOn(fabric, "soft0")
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(64, nil, 0)
	require.NoError(t, err)
	create := func() *rdma.QP {
		q, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
		require.NoError(t, err)
		return q
	}
	mr, err := pd.RegMR(make([]byte, 4096), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	require.NoError(t, err)
	send, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	recv, err := rdma.NewRecvBatch(1, 1)
	require.NoError(t, err)
	work := func(n int) (a, b *rdma.QP) {
		a, b = create(), create()
		for _, pair := range [][2]*rdma.QP{{a, b}, {b, a}} {
			end, err := pair[1].Endpoint()
			require.NoError(t, err)
			require.NoError(t, pair[0].Connect(end))
		}
		for i := range n {
			send.Reset()
			send.Write(uint64(i), mr.Address(), mr.RKey()).SGE(mr.Address(), 8, mr.LKey()).Signaled()
			_, err := a.PostSend(send)
			require.NoError(t, err)
			var wc [1]ibv.WC
			for done := 0; done == 0; {
				done, err = cq.Poll(wc[:])
				require.NoError(t, err)
			}
			require.Equal(t, ibv.WC_SUCCESS, wc[0].Status)
		}
		return a, b
	}
	a, b := work(writes - 2)
	require.NoError(t, rdma.CloseAll(nil, a, b)) // their counts remain
	_, b = work(2)
	for range 3 {
		recv.Reset()
		recv.Recv(1).SGE(mr.Address(), 8, mr.LKey())
		_, err := b.PostRecv(recv)
		require.NoError(t, err)
	}
	cache, err := registration.NewCache(pd, registration.Options{})
	require.NoError(t, err)
	memory := make([]byte, 100)
	for range 3 {
		lease, err := cache.Get(memory, 0)
		require.NoError(t, err)
		lease.Release()
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is done
}

// startCounted starts such a program, which exits when end is called.
func startCounted(t *testing.T, dir string, writes int) (pid int, end func()) {
	p := exec.Command(os.Args[0], "-test.run", "^TestCountedProgram$")
	p.Env = append(os.Environ(), fmt.Sprintf("%s=%d", countedVariable, writes), stats.Variable+"="+dir)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := p.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	output := bufio.NewReader(stdout)
	line, err := output.ReadString('\n')
	require.NoError(t, err)
	if line != "ready\n" {
		rest, _ := io.ReadAll(output)
		require.Fail(t, line+string(rest))
	}
	return p.Process.Pid, func() {
		require.NoError(t, stdin.Close())
		_, _ = io.Copy(io.Discard, output)
		require.NoError(t, p.Wait())
	}
}

// parseScrape returns the values of a scrape, parsed by Prometheus's parser.
func parseScrape(t *testing.T, text string) map[string]float64 {
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	all := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			labels := ""
			for _, l := range m.Label {
				if l.GetName() != "process" {
					labels += " " + l.GetValue()
				}
			}
			if f.GetType() == dto.MetricType_COUNTER {
				all[name+labels] = m.Counter.GetValue()
			} else {
				all[name+labels] = m.Gauge.GetValue()
			}
		}
	}
	return all
}

// TestPublished checks the exported counters of programs, and that sums do not decrease when one of several programs
// exits.
func TestPublished(t *testing.T) {
	dir := t.TempDir()
	h, err := fixture.None()
	require.NoError(t, err)
	h.FS = os.DirFS("/")
	h.Publish(dir)
	c := &Collector{Host: h, By: "name", Processes: 50}
	scrape := func() map[string]float64 {
		return parseScrape(t, text(t, c))
	}
	pid, end := startCounted(t, dir, 10)
	is := func(values map[string]float64, want map[string]float64) {
		t.Helper()
		for name, value := range want {
			got, ok := values["goverbs_process_"+name]
			assert.True(t, ok, name)
			assert.EqualValues(t, value, got, name)
		}
	}
	one := map[string]float64{"posted_requests_total soft0  send": 10, "completed_requests_total soft0  send": 10,
		"outstanding_requests soft0  send": 0, "posted_requests_total soft0  receive": 3,
		"completed_requests_total soft0  receive": 0, "outstanding_requests soft0  receive": 3,
		"queues yes soft0  send": 2, "software_objects soft0 qp ": 2, "cache_leases_total  miss": 1,
		"cache_leases_total  hit": 2, "cache_regions ": 1, "software_memory_region_bytes soft0 ": 4196,
		"software_events_total rdma_sends soft0 ": 0}
	is(scrape(), one)
	_, end2 := startCounted(t, dir, 5)
	is(scrape(), map[string]float64{"posted_requests_total soft0  send": 15, "outstanding_requests soft0  receive": 6})
	end()
	is(scrape(), map[string]float64{"posted_requests_total soft0  send": 15, "outstanding_requests soft0  receive": 3})
	c.By = "pid"
	values := scrape()
	assert.NotContains(t, values, fmt.Sprintf("goverbs_process_posted_requests_total soft0 %d send", pid))
	var text strings.Builder
	require.NoError(t, (&top.Loop{Once: true}).Run(t.Context(), h, &text))
	assert.Regexp(t, `(?m)exporter\.test\s+soft0\s+send\s+2\s+5\s+5\s+-\s+\d+\s+-$`, text.String())
	assert.Regexp(t, `(?m)exporter\.test\s+soft0\s+receive\s+2\s+3\s+-\s+3\s+\d+\s+-$`, text.String())
	assert.Regexp(t, `(?m)exporter\.test\s+soft0\s+2\s+2\s+1\s+1\s`, text.String(), "objects of a software device")
	end2()
	for name := range scrape() {
		assert.NotContains(t, name, "goverbs_process_posted", "no program runs")
	}
}

// TestPublishedBounded checks that the number of programs is limited.
func TestPublishedBounded(t *testing.T) {
	var all []resources.Program
	for i := range 100 {
		all = append(all, resources.Program{PID: uint32(1 + i), Owner: fmt.Sprint("p", i), Report: &stats.Report{
			Devices: []stats.Device{{Name: "d", Queues: map[string]stats.Queue{stats.Send: {Posted: 2}}}}}})
	}
	var l ledger
	posted := func(v values) (names int, sum float64) {
		for s, value := range v {
			if s.metric.name == "goverbs_process_posted_requests_total" {
				names++
				sum += value
			}
		}
		return names, sum
	}
	for range 2 {
		names, sum := posted(l.sums(sources(&resources.Snapshot{Programs: all}), "pid", 3))
		assert.Equal(t, 4, names)
		assert.EqualValues(t, 200, sum)
	}
	_, sum := posted(l.sums(sources(&resources.Snapshot{Programs: all[50:]}), "name", 3))
	assert.GreaterOrEqual(t, sum, 100.0)
	started := time.Now()
	l.sums(sources(&resources.Snapshot{Programs: all}), "name", 0)
	assert.Less(t, time.Since(started), time.Minute)
}
