// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe returns both ends of a connection on a software device. The test fails if it leaves objects open.
func pipe(t *testing.T, config Config) (client, server *Conn) {
	t.Helper()
	if config.Backend == nil {
		config.Backend = rdmatest.NewFabric(t, soft.Options{})
	}
	l, err := config.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close()) }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		assert.NoError(t, err)
		accepted <- c
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err = config.Dial(ctx, l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server = (<-accepted).(*Conn)
	t.Cleanup(func() { server.Close() })
	return client, server
}

// TestNetConn runs the conformance tests of golang.org/x/net with each end in both roles.
func TestNetConn(t *testing.T) {
	for name, swap := range map[string]bool{"client first": false, "server first": true} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				a, b := pipe(t, Config{})
				stop = func() { a.Close(); b.Close() }
				if swap {
					return b, a, stop, nil
				}
				return a, b, stop, nil
			})
		})
	}
}

// TestCloseReportsLostData checks that Close returns an error if the link goes down before written data has arrived.
func TestCloseReportsLostData(t *testing.T) {
	f := rdmatest.NewFabric(t, soft.Options{})
	client, _ := pipe(t, Config{Backend: f, Linger: 100 * time.Millisecond})
	f.SetLink("soft0", false)
	_, err := client.Write(make([]byte, 100_000))
	require.NoError(t, err)
	assert.ErrorContains(t, client.Close(), "100000 bytes were not acknowledged")
}
