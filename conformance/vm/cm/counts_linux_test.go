// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bufio"
	"encoding/binary"
	"errors"
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

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/stream"
)

// tracing is the kernel's directory for trace events.
const tracing = "/sys/kernel/debug/tracing/events"

// kinds lists the connections that TestCounts measures, the baseline first.
var kinds = []string{"TCP", "rstream", "stream", "stream that keeps a thread", "stream that learns",
	"stream that learns, with a thread", "stream that polls 2 ms", "lends", "lends, and keeps a thread"}

// exchanges are the transfers to measure.
var exchanges = []struct {
	name string
	streamTest
}{
	{"64 bytes, and back", streamTest{"b", 64, echoRounds, 1}},
	{"1,000 bytes, and back", streamTest{"b", 1000, echoRounds, 1}},
	{"1,000 bytes 400 times, and back", streamTest{"b", 1000, 2, 400}},
	{"64 KiB 50 times, and back", streamTest{"b", 1 << 16, 1, 50}},
	{"1 MiB 8 times, and back", streamTest{"b", 1 << 20, 1, 8}},
}

const measured = 5 // rounds

type countedEvent struct{ name, event, filter, keys string }

// counted lists kernel events, with filters by program name.
var counted = []countedEvent{
	{"wake-ups a transfer", "sched/sched_wakeup", "comm==%q", "pid"},
	{"switches a transfer", "sched/sched_switch", "prev_comm==%[1]q||next_comm==%[1]q", "next_pid"},
	{"system calls a transfer", "raw_syscalls/sys_enter", "COMM==%q", "id"},
}

// TestCounts measures transfers between two processes in interleaved rounds: by streams that sleep (by default, with
// their own thread, and with lent memory), by streams that adapt their polling time, by streams that poll for a long
// time, by C's blocking rstream, and by TCP in Go. The kernel counts wakeups, context switches and system calls of both
// processes. The test writes cm-counts-KERNEL.csv and runs only with GOVERBS_SPEED=1.
func TestCounts(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for minutes: vmtest -env GOVERBS_SPEED=1")
	}
	testbed.Kernel(t)
	conns := map[string]net.Conn{}
	for _, kind := range kinds {
		if kind != "rstream" {
			conns[kind] = dialProcess(t, kind)
		}
	}
	countEvents(t, counted, ownName(t), "rstream")
	figures := map[[2]string][][]float64{} // by exchange and kind: µs per transfer, and counts
	port := 7600
	for round := range measured + 1 {
		for _, x := range exchanges {
			for _, kind := range kinds {
				if large := x.size >= 1<<16; !large && lends(kind) || large && strings.HasPrefix(kind, "stream that ") {
					continue
				}
				before := hits(t)
				var each float64
				if kind == "rstream" {
					port++
					each = rstream(t, x.streamTest, port)
				} else {
					each = exchange(t, conns[kind], kind, x.streamTest)
				}
				row := []float64{each}
				for i, n := range hits(t) {
					row = append(row, float64(n-before[i])/float64(2*x.iterations*x.transfers))
				}
				t.Logf("round %d: %s: %s: %.1f", round, x.name, kind, row)
				if at := [2]string{x.name, kind}; round > 0 { // the first round warms up
					figures[at] = append(figures[at], row)
				}
			}
		}
	}
	var csv strings.Builder
	csv.WriteString("transfer,connection,what,minimum,median,maximum,median of the ratios to TCP,and to rstream\n")
	for _, x := range exchanges {
		for _, kind := range kinds {
			rows := figures[[2]string{x.name, kind}]
			if rows == nil {
				continue
			}
			for i, name := range []string{"µs a transfer", counted[0].name, counted[1].name, counted[2].name} {
				ours := column(rows, i)
				least, median, most := spread(ours)
				fmt.Fprintf(&csv, "%q,%q,%s,%.2f,%.2f,%.2f", x.name, kind, name, least, median, most)
				for _, other := range kinds[:2] {
					if i > 0 && kind != other && other == "rstream" { // rstream's counts include the connection setup
						csv.WriteString(",")
						continue
					}
					to := column(figures[[2]string{x.name, other}], i)
					fmt.Fprintf(&csv, ",%s", strings.Fields(ratios(ours, to))[0])
				}
				csv.WriteString("\n")
			}
		}
	}
	t.Logf("\n%s", csv.String())
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "cm-counts-"+os.Getenv(wire.EnvGuest)+".csv"),
		[]byte(csv.String()), 0o644))
}

func column(rows [][]float64, i int) (all []float64) {
	for _, row := range rows {
		all = append(all, row[i])
	}
	return all
}

// envPeer selects the kind of connection for which this program runs as the other end.
const envPeer = "GOVERBS_CM_PEER"

func lends(kind string) bool { return strings.HasPrefix(kind, "lends") }

// configOf returns the configuration of both ends.
func configOf(kind string) stream.Config {
	config := stream.Config{KeepThread: strings.Contains(kind, "thread")}
	switch kind {
	case "stream that learns", "stream that learns, with a thread":
		config.BusyPoll = stream.LearnedBusyPoll
	case "stream that polls 2 ms":
		config.BusyPoll = 2 * time.Millisecond
	}
	return on(config)
}

// TestCountsPeer runs the other end.
func TestCountsPeer(t *testing.T) {
	kind := os.Getenv(envPeer)
	if kind == "" {
		t.Skip("a part of TestCounts")
	}
	var l net.Listener
	var err error
	if at := address(t, 0); kind == "TCP" {
		l, err = net.Listen("tcp4", at.String())
	} else {
		l, err = listenConfig(configOf(kind)).Listen(withTimeout(t), at.String())
	}
	require.NoError(t, err)
	fmt.Println("listens at", l.Addr())
	c, err := l.Accept()
	require.NoError(t, err)
	for {
		var ask [3]uint32
		if err = binary.Read(c, binary.BigEndian, &ask); errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		s := streamTest{"b", int(ask[0]), int(ask[1]), int(ask[2])}
		_, err = c.Write([]byte{0})
		require.NoError(t, err)
		require.NoError(t, s.plain(c, kind, false))
	}
}

// dialProcess starts a process for the other end and connects to it.
func dialProcess(t *testing.T, kind string) net.Conn {
	self, err := os.Executable()
	require.NoError(t, err)
	program := exec.Command(self, "-test.run=^TestCountsPeer$") // /proc/self/exe would have a different name
	program.Env = append(os.Environ(), envPeer+"="+kind)
	at := listening(t, program)
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", program.Process.Pid))
	require.NoError(t, err)
	require.Equal(t, ownName(t), strings.TrimSpace(string(name)), "it would not be counted")
	var c net.Conn
	if kind == "TCP" {
		c, err = net.Dial("tcp4", at)
	} else {
		c, err = dialer(configOf(kind)).Dial(withTimeout(t), at)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		_ = program.Wait()
	})
	return c
}

// listening starts a process and returns the address that it prints.
func listening(t *testing.T, program *exec.Cmd) (at string) {
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, program.Start())
	for lines := bufio.NewScanner(out); at == "" && lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), "listens at "); found {
			at = text
		}
	}
	require.NotEmpty(t, at, "the other end prints its address")
	return at
}

// exchange returns the µs of a transfer.
func exchange(t *testing.T, c net.Conn, kind string, s streamTest) float64 {
	require.NoError(t, binary.Write(c, binary.BigEndian, []uint32{uint32(s.size), uint32(s.iterations),
		uint32(s.transfers)}))
	_, err := io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, s.plain(c, kind, true))
	return time.Since(start).Seconds() * 1e6 / float64(2*s.iterations*s.transfers)
}

// plain performs transfers without verifying the data, like rstream.
func (s streamTest) plain(c net.Conn, kind string, client bool) error {
	p := make([]byte, s.size)
	send := func() error {
		_, err := c.Write(p)
		return err
	}
	receive := func() error {
		_, err := io.ReadFull(c, p)
		return err
	}
	var lent []*stream.Lent
	if own, ok := c.(*stream.Conn); ok && lends(kind) {
		send = func() error {
			if len(lent) == 2 { // one batch
				lent[0].Wait()
				lent = lent[1:]
			}
			one, err := own.Lend(p)
			lent = append(lent, one)
			return err
		}
		receive = func() error {
			for left := s.size; left > 0; {
				n, err := own.ReadLent(func(some []byte) (int, error) { return min(len(some), left), nil })
				if err != nil {
					return err
				}
				left -= n
			}
			return nil
		}
	}
	steps := [2]func() error{receive, send}
	if client {
		steps = [2]func() error{send, receive}
	}
	for range s.iterations {
		for _, step := range steps {
			for range s.transfers {
				if err := step(); err != nil {
					return err
				}
			}
		}
	}
	for _, one := range lent {
		one.Wait()
	}
	return nil
}

// rstream returns the time of a transfer in µs, as C's rstream reports it.
func rstream(t *testing.T, s streamTest, port int) float64 {
	at := address(t, 0).Addr().String()
	args := []string{"-p", strconv.Itoa(port), "-S", strconv.Itoa(s.size), "-I", strconv.Itoa(s.iterations),
		"-C", strconv.Itoa(s.transfers), "-T", "b"}
	server := run(t, "rstream", append(args, "-b", at)...)
	output := strings.Fields(retry(t, func() (string, error) {
		b, err := exec.Command("rstream", append(args, "-s", at)...).CombinedOutput()
		return string(b), err
	}))
	server.ended(t)
	require.NotEmpty(t, output)
	each, err := strconv.ParseFloat(output[len(output)-1], 64)
	require.NoError(t, err, "%q", output)
	return each
}

// ownName returns the kernel's name (comm) for this program and its copies.
func ownName(t *testing.T) string {
	name, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	return strings.TrimSpace(string(name))
}

// countEvents makes the kernel count events of the programs' threads.
func countEvents(t *testing.T, events []countedEvent, programs ...string) {
	for _, c := range events {
		var filters []string
		for _, program := range programs {
			filters = append(filters, fmt.Sprintf(c.filter, program))
		}
		file := filepath.Join(tracing, c.event, "trigger")
		trigger := "hist:keys=" + c.keys + " if " + strings.Join(filters, "||")
		require.NoError(t, os.WriteFile(file, []byte(trigger), 0o644))
		// stop counting, since it takes time
		t.Cleanup(func() { require.NoError(t, os.WriteFile(file, []byte("!"+trigger), 0o644)) })
	}
}

// hits returns the current counts.
func hits(t *testing.T) (all []int) {
	for _, c := range counted {
		text, err := os.ReadFile(filepath.Join(tracing, c.event, "hist"))
		require.NoError(t, err)
		_, after, ok := strings.Cut(string(text), "Hits:")
		require.True(t, ok, "%s", text)
		n, err := strconv.Atoi(strings.Fields(after)[0])
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}
