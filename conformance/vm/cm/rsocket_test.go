// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/stream"
)

// counting generates and checks the data of rstream's verification: a byte counter for each direction.
type counting struct {
	net.Conn
	sent, got byte
}

func (c *counting) send(size int) error {
	b := make([]byte, size)
	for i := range b {
		b[i] = c.sent
		c.sent++
	}
	_, err := c.Write(b)
	return err
}

func (c *counting) receive(size int) error {
	b := make([]byte, size)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	for i := range b {
		if b[i] != c.got {
			return fmt.Errorf("byte %d of %d is %#x, not %#x", i, size, b[i], c.got)
		}
		c.got++
	}
	return nil
}

// drain reads and discards data.
func (c *counting) drain(size int) error {
	_, err := io.ReadFull(c, make([]byte, size))
	return err
}

// streamTest is a test of rstream: a number of iterations, each with transfers in one direction and then in the other.
type streamTest struct {
	ways                        string // mode of rstream: blocking, or with rpoll
	size, iterations, transfers int
}

func (s streamTest) args(port string, more ...string) []string {
	return append([]string{"-p", port, "-S", strconv.Itoa(s.size), "-I", strconv.Itoa(s.iterations),
		"-C", strconv.Itoa(s.transfers), "-T", s.ways, "-T", "v"}, more...)
}

// run runs one end of the test.
func (s streamTest) run(conn net.Conn, client bool) error {
	c := &counting{Conn: conn}
	steps := [2]func(int) error{c.receive, c.send}
	if client {
		steps = [2]func(int) error{c.send, c.receive}
	}
	for _, step := range steps {
		if err := step(16); err != nil {
			return err
		}
	}
	for range s.iterations {
		for _, step := range steps {
			for range s.transfers {
				if err := step(s.size); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// streamTests contains all tests in make vm WHAT=rsockets, and otherwise two short ones.
var streamTests = func() []streamTest {
	all := []streamTest{{"b", 64, 10, 1}, {"a", 1 << 16, 1, 4}, {"b", 64, 40, 1}, {"a", 64, 20, 1}, {"b", 1000, 2, 400},
		{"a", 1000, 2, 200}, {"b", 1 << 16, 1, 20}, {"a", 1 << 20, 2, 3}}
	if os.Getenv(tcpRoot) == "" {
		return all[:2]
	}
	return all
}()

// TestRSocketServerOfRStream runs a Go server against the client of C's rstream.
func TestRSocketServerOfRStream(t *testing.T) {
	unchanged(t)
	onEnds(t, len(streamTests), func(t *testing.T, e ends) {
		l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 7501).String())
		keep(t, l, err)
		for _, s := range streamTests {
			c := run(t, "rstream", s.args("7501", "-s", e.own.String(), "-k", "1")...)
			conn, err := l.AcceptRDMA(withTimeout(t))
			require.NoError(t, err, "%s", &c.out)
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			require.NoError(t, s.run(conn, false), "%+v: %s", s, &c.out)
			_, err = conn.Read(make([]byte, 1))
			assert.ErrorIs(t, err, io.EOF, "%+v", s)
			assert.NoError(t, conn.Close())
			c.ended(t)
		}
	})
}

// TestRSocketClientOfRStream runs a Go client against the server of C's rstream.
func TestRSocketClientOfRStream(t *testing.T) {
	unchanged(t)
	onEnds(t, len(streamTests), func(t *testing.T, e ends) {
		for i, s := range streamTests {
			port := strconv.Itoa(7502 + i)
			c := run(t, "rstream", s.args(port, "-b", e.theirs.String())...)
			conn := retry(t, func() (*stream.Conn, error) {
				return dialer(rsocketOn(e)).Dial(withTimeout(t), net.JoinHostPort(e.theirs.String(), port))
			})
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			require.NoError(t, s.run(conn, true), "%+v: %s", s, &c.out)
			assert.NoError(t, conn.Close())
			c.ended(t)
		}
	})
}

// TestRSocketProgramKilled checks that the stream ends with an error and leaks nothing when the program is killed.
func TestRSocketProgramKilled(t *testing.T) {
	unchanged(t)
	onEnds(t, 1, func(t *testing.T, e ends) {
		l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 7515).String())
		keep(t, l, err)
		s := streamTest{"b", 1000, 1, 1 << 20}
		c := run(t, "rstream", s.args("7515", "-s", e.own.String())...)
		conn, err := l.AcceptRDMA(withTimeout(t))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
		first := &counting{Conn: conn}
		require.NoError(t, first.receive(16))
		require.NoError(t, first.send(16))
		require.NoError(t, first.receive(100_000))
		require.NoError(t, c.cmd.Process.Kill())
		<-c.done
		_, err = io.Copy(io.Discard, conn)
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = conn.Write([]byte{0})
		assert.Error(t, err)
		var lost *stream.UndeliveredError
		assert.ErrorAs(t, conn.Close(), &lost, "sent data may be lost")
	})
}

func rsocketOn(e ends) stream.Config {
	return stream.Config{Backend: e.backend, Protocol: stream.RSocket, HandshakeTimeout: opTimeout}
}
