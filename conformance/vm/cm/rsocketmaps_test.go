// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream"
)

// mapTest is a test of riostream: each end maps memory at offset 0, and the other end writes to it. The last byte marks
// the end of a round.
type mapTest struct{ size, iterations int }

var mapTests = []mapTest{{64, 30}, {4096, 20}, {1 << 16, 5}, {1 << 20, 2}}

func (m mapTest) args(port string, more ...string) []string {
	return append([]string{"-p", port, "-S", strconv.Itoa(m.size), "-I", strconv.Itoa(m.iterations), "-C", "1", "-T",
		"v"}, more...)
}

// run runs one end of the test.
func (m mapTest) run(t *testing.T, conn *stream.Conn, client bool) error {
	b, err := rdma.NewBuffer(m.size, rdma.MapOptions{})
	keep(t, b, err)
	in, out := b.Bytes(), make([]byte, m.size)
	in[m.size-1] = 0xff
	if err := conn.Map(b, 0); err != nil {
		return err
	}
	last := (*uint32)(unsafe.Pointer(&in[m.size-4]))
	var marker, sent, got byte
	write := func() error {
		for i := range m.size - 1 {
			out[i] = sent
			sent++
		}
		out[m.size-1] = marker
		marker++
		_, err := conn.WriteAt(out, 0)
		return err
	}
	read := func() error {
		deadline := time.Now().Add(opTimeout)
		for byte(atomic.LoadUint32(last)>>24) != marker {
			if time.Now().After(deadline) {
				return fmt.Errorf("no byte %d at the end", marker)
			}
			time.Sleep(50 * time.Microsecond)
		}
		marker++
		for i := range m.size - 1 {
			if in[i] != got {
				return fmt.Errorf("byte %d of %d is %#x, not %#x", i, m.size, in[i], got)
			}
			got++
		}
		return nil
	}
	hello, steps := &counting{Conn: conn}, []func() error{read, write}
	first := []func(int) error{hello.receive, hello.send}
	if client {
		first = []func(int) error{func(n int) error { _, err := conn.Write(make([]byte, n)); return err }, hello.drain}
		steps = []func() error{write, read}
	} else {
		first[0] = hello.drain
	}
	for _, step := range first {
		if err := step(16); err != nil {
			return err
		}
	}
	for range m.iterations {
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestRSocketServesRIOStream runs a Go server against the client of C's riostream.
func TestRSocketServesRIOStream(t *testing.T) {
	needTCPRoot(t)
	unchanged(t)
	onEnds(t, len(mapTests), func(t *testing.T, e ends) {
		config := rsocketOn(e)
		config.Maps = 1
		l, err := listenConfig(config).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 7530).String())
		keep(t, l, err)
		for _, m := range mapTests {
			c := run(t, "riostream", m.args("7530", "-s", e.own.String())...)
			conn, err := l.AcceptRDMA(withTimeout(t))
			require.NoError(t, err, "%s", &c.out)
			t.Cleanup(func() { conn.Close() })
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			require.NoError(t, m.run(t, conn, false), "%+v: %s", m, &c.out)
			c.ended(t)
			assert.NoError(t, conn.Close())
		}
	})
}

// TestRSocketClientOfRIOStream runs a Go client against the server of C's riostream.
func TestRSocketClientOfRIOStream(t *testing.T) {
	needTCPRoot(t)
	unchanged(t)
	onEnds(t, len(mapTests), func(t *testing.T, e ends) {
		config := rsocketOn(e)
		config.Maps = 1
		for i, m := range mapTests {
			port := strconv.Itoa(7531 + i)
			c := run(t, "riostream", m.args(port, "-b", e.theirs.String())...)
			time.Sleep(time.Second) // the server listens before it advertises iomaps
			conn := retry(t, func() (*stream.Conn, error) {
				return dialer(config).Dial(withTimeout(t), net.JoinHostPort(e.theirs.String(), port))
			})
			t.Cleanup(func() { conn.Close() })
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			require.NoError(t, m.run(t, conn, true), "%+v: %s", m, &c.out)
			assert.NoError(t, conn.Close())
			c.ended(t)
		}
	})
}
