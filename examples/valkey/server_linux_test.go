// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/goverbs/goverbs/examples/valkey/valkeyrdma"
)

// Environment variables with the directories of Valkey's programs: its server and RDMA test, and programs of a later
// release that support RDMA. make suites SUITES=valkey builds them.
const (
	programs = "GOVERBS_VALKEY"
	tools    = "GOVERBS_VALKEY_TOOLS"
)

// program returns a command that runs one of Valkey's programs and ends with the test. Outside of guests it uses the
// drop-in libraries in GOVERBS_LIBRARIES.
func program(t *testing.T, of, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := os.Getenv(of)
	if dir == "" {
		t.Skipf("%s, the directory of %s, is not set: run make suites SUITES=valkey", of, name)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = os.Environ()
	if libraries := os.Getenv("GOVERBS_LIBRARIES"); libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// output runs one of Valkey's programs and returns its output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v\n%s", cmd, out)
	return string(out)
}

// server is a valkey-server.
type server struct {
	cmd     *exec.Cmd
	address string // for RDMA
	tcp     string // for TCP
	ended   chan error
}

// startServer starts a valkey-server, which ends with the test, and returns once clients can connect.
func startServer(t *testing.T, config *valkeyrdma.Config, local string, options ...string) *server {
	t.Helper()
	if config.Backend != nil && os.Getenv(programs) != "" {
		t.Fatal("valkey-server is another process: set GOVERBS_DEVICE=soft@ADDRESS, as make suites SUITES=valkey does")
	}
	port, tcp := 20000+rand.IntN(10000), freePort(t)
	args := append([]string{"--port", strconv.Itoa(tcp), "--bind", "127.0.0.1", "--protected-mode", "no",
		"--enable-debug-command", "yes", "--save", "", "--rdma-bind", local, "--rdma-port",
		strconv.Itoa(port)}, options...)
	s := &server{cmd: program(t, programs, "valkey-server", args...),
		address: net.JoinHostPort(local, strconv.Itoa(port)),
		tcp:     fmt.Sprint("127.0.0.1:", tcp), ended: make(chan error, 1)}
	var output bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	require.NoError(t, s.cmd.Start())
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.ended
		if t.Failed() {
			t.Logf("output of valkey-server:\n%s", output.Bytes())
		}
	})
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := config.Dial(t.Context(), s.address)
		if err == nil {
			require.NoError(t, c.Close())
			return s
		}
		require.True(t, time.Now().Before(end), "%v", err)
		time.Sleep(50 * time.Millisecond)
	}
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestServer tests valkey-go with an unmodified valkey-server.
func TestServer(t *testing.T) {
	own, config := address(t)
	s := startServer(t, config, own)
	t.Run("values", func(t *testing.T) { values(t, client(t, config, s.address)) })
	t.Run("pipeline", func(t *testing.T) { pipeline(t, client(t, config, s.address)) })
	t.Run("100 clients", func(t *testing.T) { manyClients(t, config, s.address) })
	t.Run("subscription", func(t *testing.T) { subscription(t, config, s.address) })
	t.Run("busy server", func(t *testing.T) { busyServer(t, config, s.address) })
	t.Run("no keys are left", func(t *testing.T) {
		c := client(t, config, s.address)
		assert.Eventually(t, func() bool {
			clients, err := c.Do(t.Context(), c.B().ClientList().Build()).ToString()
			return err == nil && strings.Count(clients, "\n") == 1
		}, 10*time.Second, 50*time.Millisecond)
	})
}

// subscription tests messages that the server sends without a request, and a command with a late reply.
func subscription(t *testing.T, config *valkeyrdma.Config, at string) {
	ctx := within(t, time.Minute)
	listens, speaks := client(t, config, at), client(t, config, at)
	got := make(chan string, 100)
	stop, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- listens.Receive(stop, listens.B().Subscribe().Channel("news").Build(),
			func(m valkey.PubSubMessage) { got <- m.Message })
	}()
	require.Eventually(t, func() bool { // wait for the subscription
		n, err := speaks.Do(ctx, speaks.B().Publish().Channel("news").Message("0").Build()).AsInt64()
		return err == nil && n == 1
	}, 10*time.Second, 10*time.Millisecond)
	for i := range 50 {
		require.NoError(t, speaks.Do(ctx, speaks.B().Publish().Channel("news").Message(fmt.Sprint(i)).Build()).Error())
	}
	for _, want := range append([]int{0}, numbers(50)...) {
		assert.Equal(t, fmt.Sprint(want), <-got)
	}
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
	time.AfterFunc(50*time.Millisecond, func() {
		speaks.Do(ctx, speaks.B().Lpush().Key("list").Element("late").Build())
	})
	popped, err := listens.Do(ctx, listens.B().Blpop().Key("list").Timeout(10).Build()).AsStrSlice()
	assert.NoError(t, err)
	assert.Equal(t, []string{"list", "late"}, popped)
}

func numbers(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// busyServer sends more small writes to a busy server than it has receives.
func busyServer(t *testing.T, config *valkeyrdma.Config, at string) {
	c, err := config.Dial(t.Context(), at)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte("DEBUG SLEEP 0.5\r\n"))
	require.NoError(t, err)
	const pings = 3000
	wrote := make(chan error, 1)
	go func() {
		for range pings {
			if _, err := c.Write([]byte("PING\r\n")); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	want := "+OK\r\n" + strings.Repeat("+PONG\r\n", pings)
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		require.NoError(t, err, "after %d bytes", n)
		n += m
	}
	assert.NoError(t, <-wrote)
	assert.True(t, want == string(got))
}

// TestServerKilled checks that the client's calls fail when the server is killed.
func TestServerKilled(t *testing.T) {
	own, config := address(t)
	s := startServer(t, config, own)
	c, err := config.Dial(t.Context(), s.address)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("PING\r\n"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, s.cmd.Process.Kill())
	s.ended <- <-s.ended
	begun := time.Now()
	_, err = c.Read(make([]byte, 1))
	t.Logf("after %v: %v", time.Since(begun).Round(time.Millisecond), err)
	assert.Error(t, err)
	assert.Less(t, time.Since(begun), 20*time.Second)
	_, err = c.Write([]byte("PING\r\n"))
	assert.Error(t, err)
	_, err = config.Dial(within(t, 5*time.Second), s.address)
	assert.Error(t, err)
}

// bothServers runs a test with valkey-server, and with the server in Go.
func bothServers(t *testing.T, test func(t *testing.T, host, port string)) {
	own, config := address(t)
	for name, start := range map[string]func(t *testing.T) string{
		"valkey-server": func(t *testing.T) string { return startServer(t, config, own).address },
		"server in Go":  func(t *testing.T) string { return serveStore(t, config, own+":0") },
	} {
		t.Run(name, func(t *testing.T) {
			host, port, err := net.SplitHostPort(start(t))
			require.NoError(t, err)
			test(t, host, port)
		})
	}
}

// TestRDMATest runs Valkey's own RDMA test, a client in C. On a busy machine a reply may take more than a second, after
// which the client times out; then the test runs it again.
func TestRDMATest(t *testing.T) {
	bothServers(t, func(t *testing.T, host, port string) {
		for try := 1; ; try++ {
			cmd := program(t, programs, "rdma-test", "-h", host, "-p", port, "-t", "4", "-m", "500", "-M", "1000")
			out, err := cmd.CombinedOutput()
			if err != nil && try < 3 && strings.Contains(string(out), "RDMA: read timeout") {
				time.Sleep(time.Second)
				continue
			}
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "Valkey Over RDMA test [OK]")
			return
		}
	})
}

// TestCLI runs valkey-cli.
func TestCLI(t *testing.T) {
	bothServers(t, func(t *testing.T, host, port string) {
		cli := func(in string, args ...string) string {
			cmd := program(t, tools, "valkey-cli", append([]string{"--rdma", "-h", host, "-p", port}, args...)...)
			cmd.Stdin = strings.NewReader(in)
			return output(t, cmd)
		}
		assert.Equal(t, "PONG\n", cli("", "PING"))
		book := strings.Repeat("a line of a book\n", 200_000)
		assert.Equal(t, "OK\n", cli(book, "-x", "SET", "book"))
		assert.True(t, book+"\n" == cli("", "GET", "book"))
		assert.Equal(t, strings.Repeat("PONG\n", 1000), cli(strings.Repeat("PING\n", 1000)))
	})
}

// TestBenchmark runs valkey-benchmark with pipelines and values of 20 kB.
func TestBenchmark(t *testing.T) {
	bothServers(t, func(t *testing.T, host, port string) {
		for _, options := range [][]string{{"-c", "20", "-n", "5000"}, {"-c", "20", "-n", "20000", "-P", "32"},
			{"-c", "5", "-n", "2000", "-d", "20000"}} {
			args := append([]string{"--rdma", "-h", host, "-p", port, "-t", "set,get", "--csv"}, options...)
			out := output(t, program(t, tools, "valkey-benchmark", args...))
			assert.Contains(t, out, `"SET","`)
			assert.Contains(t, out, `"GET","`)
		}
	})
}
