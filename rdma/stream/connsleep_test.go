// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/rdma/internal/wakeup"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// streams returns both ends of a stream connection on a software device.
func streams(t *testing.T, config Config) (a, b *Conn) {
	t.Helper()
	config.Backend = newFabric(t, soft.Options{})
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	dialled := make(chan *Conn, 1)
	go func() {
		c, err := dialer(config).Dial(soon(t), l.Addr().String())
		assert.NoError(t, err)
		dialled <- c
	}()
	b, err = l.AcceptRDMA(soon(t))
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	a = <-dialled
	require.NotNil(t, a)
	t.Cleanup(func() { a.Close() })
	return a, b
}

// TestStreamsAllocateNothing: waiting for data and for room does not allocate.
func TestStreamsAllocateNothing(t *testing.T) {
	if !runtime.Fast {
		t.Skip("this build makes all calls with purego, which allocates")
	}
	if underRaceDetector {
		t.Skip("with the race detector, pools drop objects at random")
	}
	for name, c := range map[string]struct {
		size       int
		keepThread bool
	}{"a word": {64, false}, "more than there is room for": {64 << 10, false}, "a word, with a thread": {64, true}} {
		size := c.size
		a, b := streams(t, Config{Buffer: 4 << 10, KeepThread: c.keepThread})
		if wakeup.Of(b.poller.channel.C().FD) != nil {
			t.Skip("waiting for descriptors allocates on this system")
		}
		go func() {
			p := make([]byte, size)
			for {
				if _, err := io.ReadFull(b, p); err != nil {
					return
				}
				if _, err := b.Write(p); err != nil {
					return
				}
			}
		}()
		p := make([]byte, size)
		assert.Zero(t, testing.AllocsPerRun(200, func() {
			_, err := a.Write(p)
			if err == nil {
				_, err = io.ReadFull(a, p)
			}
			if err != nil {
				panic(err)
			}
		}), name)
	}
}

// TestSoftKeptThread: a connection with KeepThread passes the tests of net.Conn.
func TestSoftKeptThread(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := softPipe(t, Config{KeepThread: true, Buffer: 64 << 10})
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}
