// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/cm"
)

// tracing is where the kernel counts what threads do.
const tracing = "/sys/kernel/debug/tracing/events/sched"

// TestCounts measures a round trip of 64 bytes between two processes, by streams that sleep, that learn how long to
// poll, and that poll for long, and over Go's TCP, in rounds that take turns. The kernel counts how often threads of
// both processes were woken and switched to. cm-counts-KERNEL.csv has the figures. GOVERBS_SPEED=1 asks for it.
func TestCounts(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for a minute: vmtest -env GOVERBS_SPEED=1")
	}
	rig.Kernel(t)
	kinds := []string{"TCP", "stream", "stream that learns", "stream that polls 2 ms"}
	figures := map[string][3][]float64{}
	conns := map[string]net.Conn{}
	for _, kind := range kinds {
		conns[kind] = echoedElsewhere(t, kind)
		trips(t, conns[kind])
	}
	countEvents(t)
	for range rounds {
		for _, kind := range kinds {
			f := figures[kind]
			woken, switched := hits(t, "sched_wakeup"), hits(t, "sched_switch")
			each := trips(t, conns[kind])
			woken, switched = hits(t, "sched_wakeup")-woken, hits(t, "sched_switch")-switched
			f[0] = append(f[0], each)
			f[1] = append(f[1], float64(woken)/(2*echoRounds))
			f[2] = append(f[2], float64(switched)/(2*echoRounds))
			figures[kind] = f
		}
	}
	var csv strings.Builder
	csv.WriteString("connection,what,minimum,median,maximum,median of the ratios to TCP\n")
	for _, kind := range kinds {
		for i, what := range []string{"µs a round trip", "wake-ups a transfer", "switches a transfer"} {
			least, median, most := spread(figures[kind][i])
			fmt.Fprintf(&csv, "%s,%s,%.2f,%.2f,%.2f,%s\n", kind, what, least, median, most,
				strings.Fields(ratios(figures[kind][i], figures["TCP"][i]))[0])
		}
	}
	t.Logf("\n%s", csv.String())
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "cm-counts-"+os.Getenv(wire.EnvGuest)+".csv"),
		[]byte(csv.String()), 0o644))
}

// envEcho makes this program the other end, of a kind of connection.
const envEcho = "GOVERBS_ECHO"

// echoConfig is the configuration of both ends.
func echoConfig(kind string) *cm.Config {
	config := &cm.Config{}
	switch kind {
	case "stream that learns":
		config.BusyPoll = cm.LearnedBusyPoll
	case "stream that polls 2 ms":
		config.BusyPoll = 2 * time.Millisecond
	}
	return on(config)
}

// TestEchoes is the other end.
func TestEchoes(t *testing.T) {
	kind := os.Getenv(envEcho)
	if kind == "" {
		t.Skip("a part of TestCounts")
	}
	var l net.Listener
	var err error
	if at := address(t, 0); kind == "TCP" {
		l, err = net.Listen("tcp4", at.String())
	} else {
		l, err = echoConfig(kind).Listen(soon(t), at.String())
	}
	require.NoError(t, err)
	fmt.Println("echoes at", l.Addr())
	c, err := l.Accept()
	require.NoError(t, err)
	_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, echoBytes))
}

// echoedElsewhere connects to a process that sends back what it gets.
func echoedElsewhere(t *testing.T, kind string) net.Conn {
	program := exec.Command("/proc/self/exe", "-test.run=^TestEchoes$")
	program.Env = append(os.Environ(), envEcho+"="+kind)
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, program.Start())
	var at string
	for lines := bufio.NewScanner(out); at == "" && lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), "echoes at "); found {
			at = text
		}
	}
	require.NotEmpty(t, at, "the other end says where it is")
	var c net.Conn
	if kind == "TCP" {
		c, err = net.Dial("tcp4", at)
	} else {
		c, err = echoConfig(kind).Dial(soon(t), at)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		_ = program.Wait()
	})
	return c
}

// trips returns the µs of a round trip.
func trips(t *testing.T, c net.Conn) float64 {
	p := make([]byte, echoBytes)
	began := time.Now()
	for range echoRounds {
		_, err := c.Write(p)
		require.NoError(t, err)
		_, err = io.ReadFull(c, p)
		require.NoError(t, err)
	}
	return time.Since(began).Seconds() * 1e6 / echoRounds
}

// countEvents has the kernel count wake-ups and switches of threads of this program, in whatever process.
func countEvents(t *testing.T) {
	name, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	own := fmt.Sprintf("==%q", strings.TrimSpace(string(name)))
	for event, of := range map[string][2]string{
		"sched_wakeup": {"comm" + own, "pid"},
		"sched_switch": {"prev_comm" + own + "||next_comm" + own, "next_pid"},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(tracing, event, "trigger"),
			[]byte("hist:keys="+of[1]+" if "+of[0]), 0o644))
	}
}

// hits is the count of an event until now.
func hits(t *testing.T, event string) int {
	text, err := os.ReadFile(filepath.Join(tracing, event, "hist"))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(text), "Hits:")
	require.True(t, ok, "%s", text)
	n, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(t, err)
	return n
}
