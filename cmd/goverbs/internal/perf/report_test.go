// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"golang.org/x/net/html"
)

// portCount numbers the ports and addresses of tests, starting from a number that differs between processes.
var portCount atomic.Uint32

func init() { portCount.Store(rand.Uint32N(1 << 24)) }

// freePort returns a port without a listener. The system never assigns it to a listener on port 0 or to a connection,
// so that it stays free until the server listens.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10000 + int(portCount.Add(1)%20000)
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// endsOf returns the options of a server and a client, with perftest's defaults.
func endsOf(t *testing.T, test Options, size string) (server, client *Options) {
	test.Port = freePort(t)
	if test.Device == "" {
		test.Device = "soft0"
	}
	test.GIDIndex, test.List, test.Inline, test.Moderate, test.QPs = -1, 1, -1, 1, max(1, test.QPs)
	test.TxDepth, test.RxDepth, test.Timeout = 16, 64, 18
	if test.Connection == "" {
		test.Connection = "RC"
	}
	require.NoError(t, test.Complete(size))
	other := test
	other.Peer = "127.0.0.1"
	return &test, &other
}

// runTest runs a test and returns the reports of both ends.
func runTest(t *testing.T, server, client *Options) (serverResult, clientResult *Report) {
	done := make(chan error, 1)
	go func() {
		var err error
		serverResult, err = Run(t.Context(), server)
		done <- err
	}()
	for {
		var err error
		clientResult, err = Run(t.Context(), client)
		if err != nil && strings.Contains(err.Error(), "no server") && len(done) == 0 {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		require.NoError(t, err)
		break
	}
	require.NoError(t, <-done)
	return serverResult, clientResult
}

// twoAddresses returns devices that reach each other over the network.
func twoAddresses() (a, b string) {
	n := portCount.Add(1)
	at := func(last int) string { return fmt.Sprintf("soft@127.%d.%d.%d", 90+n/256%100, n%256, last) }
	return at(2), at(3)
}

// TestBaseline checks the TCP baseline of each size for all tests.
func TestBaseline(t *testing.T) {
	for _, test := range []Options{
		{Verb: "send"}, {Verb: "write", QPs: 2}, {Verb: "read"}, {Verb: "atomic"}, {Verb: "write", Both: true},
		{Verb: "send", Latency: true}, {Verb: "read", Latency: true}, {Verb: "atomic", Latency: true},
		{Verb: "write", Latency: true, Duration: time.Second}, {Verb: "send", Connection: "UD"},
	} {
		t.Run(fmt.Sprintf("%v/%s/both=%t", &test, test.Connection, test.Both), func(t *testing.T) {
			t.Parallel()
			test.Iterations = 50
			size := "256"
			if test.Verb == "atomic" {
				size = ""
			}
			server, client := endsOf(t, test, size)
			client.TCP = true // one request is enough
			_, report := runTest(t, server, client)
			assert.Empty(t, report.NoTCP)
			assert.True(t, report.PeerIsOurs)
			require.Len(t, report.Rows, 1)
			row := report.Rows[0]
			require.NotNil(t, row.TCP)
			assert.Positive(t, row.TCP.Messages)
			if assert.Positive(t, row.Ratio); !test.Latency {
				assert.InEpsilon(t, row.MiBs/row.TCP.MiBs, row.Ratio, 1e-9)
			} else {
				assert.InEpsilon(t, row.Median/row.TCP.Median, row.Ratio, 1e-9)
			}
			var text bytes.Buffer
			require.NoError(t, report.WriteText(&text))
			assert.Contains(t, text.String(), "× TCP")
			inTime := row.TCP.ended.Sub(row.TCP.began) < tcpLimit
			if inTime && test.Duration == 0 && !test.Both && !test.Latency {
				assert.Equal(t, 50*client.QPs, row.TCP.Messages)
			}
		})
	}
}

// TestBaselineForeignPeers checks that the TCP port serves only the client, and that an absent or invalid peer ends
// only the baseline.
func TestBaselineForeignPeers(t *testing.T) {
	server, client := endsOf(t, Options{Verb: "send", Latency: true, Iterations: 3}, "64")
	a, b := net.Pipe()
	over := func(c net.Conn) link { return overTCP(t.Context(), func(error) {}, c) }
	la, lb := over(a), over(b)
	var local, remote *baseline
	var group sync.WaitGroup
	group.Go(func() {
		var err error
		remote, err = server.prepareBaseline(t.Context(), lb, lo(t))
		assert.NoError(t, err)
	})
	local, err := client.prepareBaseline(t.Context(), la, lo(t))
	require.NoError(t, err)
	group.Wait()
	group.Go(func() {
		_, err := remote.rows()
		assert.NoError(t, err)
	})
	for _, message := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x00", 32),
		strings.Repeat("x", 4096)} {
		c, err := net.Dial("tcp", local.where)
		require.NoError(t, err)
		_, _ = c.Write([]byte(message))
		if message != "" {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			n, err := c.Read(make([]byte, 10))
			assert.Zero(t, n, "%q was answered", message)
			assert.Error(t, err)
		}
		require.NoError(t, c.Close())
	}
	rows, err := local.rows()
	require.NoError(t, err)
	assert.Equal(t, 3, rows[0].Messages)
	group.Wait()
	require.NoError(t, remote.Close())
	_, err = local.rows()
	assert.ErrorContains(t, err, "TCP, message size 64: ")

	group.Go(func() {
		_ = lb.receive(make([]byte, tokenBytes))
		_ = lb.send(make([]byte, tokenBytes))
		_ = lb.receive(make([]byte, 8))
		_ = lb.send([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	})
	_, err = client.prepareBaseline(t.Context(), la, lo(t))
	assert.ErrorContains(t, err, "invalid TCP port 18446744073709551615")
	group.Wait()
}

// TestVersionMark checks the mark after the version string.
func TestVersionMark(t *testing.T) {
	with := (&Options{TCP: true}).markedVersion(version)
	assert.Len(t, with, 16)
	assert.True(t, bytes.HasPrefix(with, []byte(version+"\x00goverbst\x00")))
	for rest, want := range map[string][2]bool{"goverbst\x00": {true, true}, "goverbs\x00": {true, false}, "": {},
		"goverbs": {}, "\x00\x00\x00\x00\x00\x00\x00\x00\x00": {}} {
		ours, asks := parseMark(rest)
		assert.Equal(t, want, [2]bool{ours, asks}, "%q", rest)
	}
}

// TestCounters checks the counters in the reports of both ends.
func TestCounters(t *testing.T) {
	server, client := endsOf(t, Options{Verb: "send", Iterations: 100}, "64")
	server.Device, client.Device = twoAddresses()
	serverResult, clientResult := runTest(t, server, client)
	assert.EqualValues(t, 100, clientResult.Counters["rdma_sends"])
	assert.EqualValues(t, 100, serverResult.Counters["rdma_recvs"])
	var text bytes.Buffer
	require.NoError(t, clientResult.WriteText(&text))
	assert.Regexp(t, `(?m)^  rdma_sends +\+100$`, text.String())

	server, client = endsOf(t, Options{Verb: "send", Iterations: 100, Manager: true}, "64")
	server.Device, client.Device = twoAddresses()
	client.Peer = strings.TrimPrefix(server.Device, "soft@")
	serverResult, clientResult = runTest(t, server, client)
	assert.GreaterOrEqual(t, clientResult.Counters["rdma_sends"], int64(100), "the exchange sends more")
	assert.GreaterOrEqual(t, serverResult.Counters["rdma_recvs"], int64(100))

	files := fstest.MapFS{}
	for name, value := range map[string]string{"port_xmit_data": "700\n", "sent_pkts": "5", "port_rcv_data": "N/A"} {
		files["sys/class/infiniband/mlx5_0/ports/2/counters/"+name] = &fstest.MapFile{Data: []byte(value)}
	}
	all := map[string]uint64{"sent_pkts": 9}
	portCounters(files, "mlx5_0", 2, all)
	assert.Equal(t, map[string]uint64{"sent_pkts": 9, "port_xmit_data": 700}, all)
	assert.Equal(t, map[string]int64{"up": 2, "down": -3}, changes(map[string]uint64{"up": 1, "down": 3, "same": 7},
		map[string]uint64{"up": 3, "down": 0, "same": 7}))
}

// TestSlowReceiver checks that a send waits indefinitely for a receive, as with perftest.
func TestSlowReceiver(t *testing.T) {
	_, o := endsOf(t, Options{Verb: "send", Iterations: 1}, "64")
	r, err := open(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	all := terms{cycle: 64, mtu: r.mtu}
	require.NoError(t, r.setup(all))
	require.NoError(t, r.newEnds(nil))
	e := r.ends[0]
	e.peer = e.keys // connect it to itself
	require.NoError(t, r.connect(all))
	attr, _, err := e.qp.Query(ibv.QP_RNR_RETRY)
	require.NoError(t, err)
	assert.EqualValues(t, rdma.RNRRetryInfinite, attr.RNRRetry)
}

// TestHistograms checks both file formats.
func TestHistograms(t *testing.T) {
	dir := t.TempDir()
	server, client := endsOf(t, Options{Verb: "send", Latency: true, Iterations: 200}, "64")
	_, report := runTest(t, server, client)
	row := report.Rows[0]
	log := filepath.Join(dir, "a.hlog")
	require.NoError(t, report.SaveHistograms(log))
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	h, err := hdrhistogram.NewHistogramLogReader(bytes.NewReader(text)).NextIntervalHistogram()
	require.NoError(t, err)
	assert.EqualValues(t, 199, h.TotalCount())
	assert.Equal(t, "64-bytes", h.Tag())
	assert.InEpsilon(t, row.Max*1000, float64(h.Max()), 0.002)
	assert.InEpsilon(t, row.Median*1000, float64(h.ValueAtPercentile(50)), 0.05)
	table := filepath.Join(dir, "a.HGRM")
	require.NoError(t, report.SaveHistograms(table))
	text, err = os.ReadFile(table)
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^ +[0-9.]+ +1\.0+ +199 `, string(text))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 2, "temporary files are removed")
	assert.Error(t, report.SaveHistograms(filepath.Join(dir, "none", "a.hlog")))
}

// TestStatistics checks mean and deviation of known latencies.
func TestStatistics(t *testing.T) {
	m := &meter{start: time.Now(), marks: []int64{0, 4000, 8000, 16000, 32000}}
	row := m.latency(8, 2) // 2, 2, 4 and 8 µs
	assert.InDelta(t, 4, row.Average, 1e-9)
	assert.InDelta(t, 2.449489742783178, row.Stdev, 1e-9)
	assert.Equal(t, []float64{2, 4, 8}, []float64{row.Min, row.Median, row.Max})
}

// TestProgress checks that long tests show their progress and clear the line.
func TestProgress(t *testing.T) {
	server, client := endsOf(t, Options{Verb: "write", Duration: time.Second, Iterations: 1}, "64")
	var lines []string
	client.Progress = func(line string) { lines = append(lines, line) }
	for range 10 { // a busy machine may show no progress within a second
		if runTest(t, server, client); len(lines) > 1 {
			break
		}
		require.Equal(t, []string{""}, lines)
		lines = nil
	}
	require.Greater(t, len(lines), 1)
	for _, line := range lines[:len(lines)-1] {
		assert.Regexp(t, `^64 bytes  [01]\.[0-9] of 1 s  [0-9]+ messages, [0-9]+/s$`, line)
	}
	assert.Empty(t, lines[len(lines)-1])
	l := &progress{sizes: 22}
	l.next(4096)
	assert.Contains(t, l.line(0), "4096 bytes (1 of 22 sizes)  0 messages, 0/s")
	l.count(5)
	assert.Regexp(t, `  5 messages, [1-9][0-9]*/s$`, l.line(0))
}

// TestWebPage checks that a page has its plots, escapes names and loads nothing.
func TestWebPage(t *testing.T) {
	evil := `"><script>alert(1)</script><img src=x onerror=alert(2)>`
	row := func(size int) Row {
		m := &meter{marks: make([]int64, 0, 1000)}
		at := time.Duration(0)
		for i := range 1000 {
			at += time.Duration(2000 + i*i%977)
			m.marks = append(m.marks, int64(at))
		}
		r := m.latency(size, 2)
		r.add(1e6)
		return *r
	}
	for name, r := range map[string]*Report{
		"one":      {Latency: true, Rows: []Row{row(64)}},
		"sizes":    {Latency: true, Rows: []Row{row(2), row(4), row(8), row(16), row(32), row(64)}},
		"bw":       {Rows: []Row{row(2), row(4096)}},
		"bw of 1":  {Rows: []Row{row(2)}},
		"nothing":  {},
		"baseline": {Rows: []Row{row(2), row(4)}},
	} {
		t.Run(name, func(t *testing.T) {
			r.Test, r.Device, r.Peer, r.PeerVersion, r.NoTCP = evil, evil, evil, evil, evil
			r.Counters = map[string]int64{evil: 5}
			if name == "baseline" {
				other := row(2)
				r.addBaseline([]*Row{&other, nil})
			}
			file := filepath.Join(t.TempDir(), "page.html")
			require.NoError(t, r.SaveWebPage(file))
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "NaN")
			root, err := html.Parse(bytes.NewReader(text))
			require.NoError(t, err)
			kinds := map[string]int{}
			for n := range root.Descendants() {
				if n.Type != html.ElementNode {
					continue
				}
				kinds[n.Data]++
				for _, a := range n.Attr {
					assert.NotContains(t, []string{"src", "href", "onerror", "srcset", "action"}, a.Key)
				}
			}
			assert.Zero(t, kinds["script"]+kinds["img"]+kinds["link"]+kinds["iframe"])
			assert.Equal(t, map[string]int{"one": 2, "sizes": 2, "bw": 2, "baseline": 2}[name], kinds["svg"])
		})
	}
}

// lo returns the loopback address.
func lo(*testing.T) netip.Addr { return netip.MustParseAddr("127.0.0.1") }
