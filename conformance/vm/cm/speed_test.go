// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream"
)

const (
	speedWrite = 1 << 20  // bytes per write
	speedBytes = 24 << 20 // bytes per round
	echoBytes  = 64
	echoRounds = 400
	rounds     = 7
)

// TestSpeed compares streams with raw RDMA writes and TCP in interleaved rounds. It writes figures to
// cm-speed-KERNEL.csv and ratios to a page. Since load distorts the figures, it asserts nothing and runs only with
// GOVERBS_SPEED=1.
func TestSpeed(t *testing.T) {
	at := address(t, 0)
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for a minute: vmtest -env GOVERBS_SPEED=1")
	}
	a, b := pipe(t, stream.Config{})
	largeA, largeB := pipe(t, stream.Config{Buffer: 4 << 20})
	pollA, pollB := pipe(t, stream.Config{BusyPoll: 2 * rdma.DefaultBusyPoll})
	l, err := net.Listen("tcp4", at.String())
	require.NoError(t, err)
	ta, err := net.Dial("tcp4", l.Addr().String())
	keep(t, ta, err)
	tb, err := l.Accept()
	keep(t, tb, err)
	require.NoError(t, l.Close())
	raw := newRaw(t)
	kinds := []struct {
		name string
		run  func() float64
	}{
		{"raw WRITE, 1 MiB, MB/s", raw.throughput},
		{"stream, 1 MiB writes, MB/s", func() float64 { return throughput(t, a, b) }},
		{"stream with a Buffer of 4 MiB, 1 MiB writes, MB/s", func() float64 { return throughput(t, largeA, largeB) }},
		{"TCP, 1 MiB writes, MB/s", func() float64 { return throughput(t, ta, tb) }},
		{"raw WRITE, 64 bytes, one by one, µs", raw.latency},
		{"stream, 64-byte echo, µs", func() float64 { return echo(t, a, b) }},
		{"stream with a BusyPoll of 100 µs, 64-byte echo, µs", func() float64 { return echo(t, pollA, pollB) }},
		{"TCP, 64-byte echo, µs", func() float64 { return echo(t, ta, tb) }},
	}
	figures := make([][]float64, len(kinds))
	for range rounds {
		for i, k := range kinds {
			figures[i] = append(figures[i], k.run())
		}
	}
	const throughputs, tcp, tcpEcho = 4, 3, 7
	var csv, page strings.Builder
	csv.WriteString("what,minimum,median,maximum\n")
	page.WriteString(speedPage)
	for i, k := range kinds {
		against, baseline := 0, tcp
		if i >= throughputs {
			against, baseline = throughputs, tcpEcho
		}
		least, median, most := spread(figures[i])
		fmt.Fprintf(&csv, "%q,%.1f,%.1f,%.1f\n", k.name, least, median, most)
		fmt.Fprintf(&page, "| %s | %.1f | %s | %s |\n", k.name, median, ratios(figures[i], figures[against]),
			ratios(figures[i], figures[baseline]))
	}
	t.Logf("\n%s", page.String())
	for ext, text := range map[string]string{"csv": csv.String(), "md": page.String()} {
		require.NoError(t, os.WriteFile(os.Getenv(wire.EnvOut)+"/cm-speed-"+os.Getenv(wire.EnvGuest)+"."+ext,
			[]byte(text), 0o644))
	}
}

const speedPage = `# Streams compared with raw writes and TCP

Measured by make bench WHAT=vm in one boot with Soft-RoCE, under QEMU's software emulation with two processors. Both
ends are in one process. There are 7 interleaved rounds. Figures are medians of the rounds; ratios are medians
(minimum–maximum) of the ratios of each round. Raw writes have 8 requests in flight, all from the same MiB. The target
is a throughput of 0.9 of raw writes.

| what | median | to raw WRITE | to TCP |
|---|---|---|---|
`

func spread(figures []float64) (least, median, most float64) {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// ratios formats the ratios of figures to others of the same rounds.
func ratios(figures, others []float64) string {
	all := make([]float64, len(figures))
	for i := range all {
		all[i] = figures[i] / others[i]
	}
	least, median, most := spread(all)
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median, least, most)
}

func throughput(t *testing.T, from, to net.Conn) float64 {
	t.Helper()
	read := make(chan error, 1)
	start := time.Now()
	go func() {
		p := make([]byte, speedWrite)
		for left := speedBytes; left > 0; {
			n, err := to.Read(p)
			if left -= n; err != nil {
				read <- err
				return
			}
		}
		read <- nil
	}()
	p := make([]byte, speedWrite)
	for range speedBytes / speedWrite {
		_, err := from.Write(p)
		require.NoError(t, err)
	}
	require.NoError(t, <-read)
	return speedBytes / time.Since(start).Seconds() / 1e6
}

func echo(t *testing.T, from, to net.Conn) float64 {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		p := make([]byte, echoBytes)
		for range echoRounds {
			if _, err := io.ReadFull(to, p); err != nil {
				done <- err
				return
			}
			if _, err := to.Write(p); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	p := make([]byte, echoBytes)
	start := time.Now()
	for range echoRounds {
		_, err := from.Write(p)
		require.NoError(t, err)
		_, err = io.ReadFull(from, p)
		require.NoError(t, err)
	}
	elapsed := time.Since(start)
	require.NoError(t, <-done)
	return float64(elapsed.Microseconds()) / echoRounds
}

// raw is a connected queue pair that writes to memory of the same process, with at most eight writes in flight.
type raw struct {
	t     *testing.T
	qp    *rdma.QP
	cq    *rdma.CQ
	batch *rdma.SendBatch
	from  *rdma.MR
	to    *rdma.MR
	wcs   []ibv.WC
}

func newRaw(t *testing.T) *raw {
	t.Helper()
	l := listen(t, 7495)
	go func() {
		id, _, err := l.GetRequest(withTimeout(t))
		if err != nil {
			return
		}
		t.Cleanup(func() { id.Close() })
		if _, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{}); err == nil {
			id.Accept(withTimeout(t), nil, nil)
		}
	}()
	id := resolve(t, address(t, 7495))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	pd, err := id.PD()
	require.NoError(t, err)
	r := &raw{t: t, qp: id.QP(), cq: id.QP().SendCQ(), wcs: make([]ibv.WC, 16)}
	r.from, err = pd.RegMR(make([]byte, speedWrite), ibv.ACCESS_LOCAL_WRITE)
	keep(t, r.from, err)
	r.to, err = pd.RegMR(make([]byte, speedWrite), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	keep(t, r.to, err)
	r.batch, err = rdma.NewSendBatch(1, 1, 0)
	keep(t, r.batch, err)
	return r
}

func (r *raw) write(n uint32) {
	r.t.Helper()
	s := r.from.SGE(0, n)
	r.batch.Reset()
	r.batch.Write(1, r.to.Region().Address, r.to.RKey()).Add(s).Signaled()
	_, err := r.qp.PostSend(r.batch)
	require.NoError(r.t, err)
}

func (r *raw) wait() int {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	n, err := r.cq.Wait(ctx, r.wcs)
	require.NoError(r.t, err)
	for i := range n {
		require.NoError(r.t, rdma.CompletionErr(&r.wcs[i]))
	}
	return n
}

func (r *raw) throughput() float64 {
	start := time.Now()
	for posted, done := 0, 0; done < speedBytes/speedWrite; {
		if posted < speedBytes/speedWrite && posted-done < 8 {
			r.write(speedWrite)
			posted++
			continue
		}
		done += r.wait()
	}
	return speedBytes / time.Since(start).Seconds() / 1e6
}

func (r *raw) latency() float64 {
	start := time.Now()
	for range echoRounds {
		r.write(echoBytes)
		r.wait()
	}
	return float64(time.Since(start).Microseconds()) / echoRounds
}
