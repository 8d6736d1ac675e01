// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/examples/valkey/valkeyrdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestMain checks for leaked goroutines, except those of GOVERBS_DEVICE's wire, which run until the process ends.
func TestMain(m *testing.M) {
	const wire = "github.com/goverbs/goverbs/rdma/soft/internal/"
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(wire+"udp.answer"),
		goleak.IgnoreAnyFunction(wire+"wire/roce.(*Link).receive"))
}

// address returns an address for servers of tests, and the configuration of their clients. The address is that of the
// guest in conformance/vm, that of GOVERBS_DEVICE=soft@ADDRESS, or one of the test's own device.
func address(t *testing.T) (string, *valkeyrdma.Config) {
	if own := os.Getenv("GOVERBS_ADDRESS"); own != "" {
		return own, &valkeyrdma.Config{}
	}
	if _, own, ok := strings.Cut(os.Getenv("GOVERBS_DEVICE"), "@"); ok {
		return own, &valkeyrdma.Config{}
	}
	return "127.0.0.1", &valkeyrdma.Config{Backend: rdmatest.NewFabric(t, soft.Options{})}
}

// client returns a client that is closed when the test ends. An emulated guest may take longer for the first 10 MiB
// than valkey-go's default timeout.
func client(t *testing.T, config *valkeyrdma.Config, address string) valkey.Client {
	o := options(config, address)
	o.ConnWriteTimeout = time.Minute
	c, err := valkey.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestStore tests valkey-go with a server in Go.
func TestStore(t *testing.T) {
	own, config := address(t)
	at := serveStore(t, config, own+":0")
	t.Run("values", func(t *testing.T) { values(t, client(t, config, at)) })
	t.Run("pipeline", func(t *testing.T) { pipeline(t, client(t, config, at)) })
	t.Run("100 clients", func(t *testing.T) { manyClients(t, config, at) })
	t.Run("TCP", func(t *testing.T) { overTCP(t, config, at) })
}

// values tests values up to several times the size of a connection's memory.
func values(t *testing.T, c valkey.Client) {
	ctx := within(t, time.Minute)
	for _, size := range []int{0, 1, 64, 65, 4 << 10, 1<<19 - 1, 1 << 20, 10<<20 + 1} {
		value := randomText(size)
		require.NoError(t, c.Do(ctx, c.B().Set().Key("value").Value(value).Build()).Error())
		got, err := c.Do(ctx, c.B().Get().Key("value").Build()).ToString()
		require.NoError(t, err)
		require.True(t, got == value, "got %[2]d of %[1]d bytes, or wrong bytes", size, len(got))
	}
	assert.True(t, valkey.IsValkeyNil(c.Do(ctx, c.B().Get().Key("nothing").Build()).Error()))
}

func randomText(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return string(b)
}

// pipeline sends thousands of commands before it reads the replies.
func pipeline(t *testing.T, c valkey.Client) {
	ctx := within(t, time.Minute)
	var commands valkey.Commands
	const n = 5000
	for i := range n {
		commands = append(commands, c.B().Set().Key(fmt.Sprint("key ", i)).Value(fmt.Sprint("value ", i)).Build())
	}
	for i := range n {
		commands = append(commands, c.B().Get().Key(fmt.Sprint("key ", i)).Build())
	}
	answers := c.DoMulti(ctx, commands...)
	for i := range n {
		require.NoError(t, answers[i].Error())
		got, err := answers[n+i].ToString()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("value ", i), got)
	}
}

// manyClients runs concurrent clients, each with a connection. In an emulated guest, connecting takes longer than
// valkey-go's default timeout.
func manyClients(t *testing.T, config *valkeyrdma.Config, at string) {
	ctx := within(t, 3*time.Minute)
	small := *config
	small.Buffer, small.HandshakeTimeout = 32<<10, 2*time.Minute
	o := options(&small, at)
	o.PipelineMultiplex, o.Dialer.Timeout, o.ConnWriteTimeout = -1, 2*time.Minute, 2*time.Minute
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			c, err := valkey.NewClient(o)
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			for j := range 20 {
				key, value := fmt.Sprint(i, " ", j), randomText(rand.IntN(5000))
				assert.NoError(t, c.Do(ctx, c.B().Set().Key(key).Value(value).Build()).Error())
				got, err := c.Do(ctx, c.B().Get().Key(key).Build()).ToString()
				assert.NoError(t, err)
				assert.True(t, got == value)
			}
		})
	}
	all.Wait()
}

// overTCP tests a client over TCP whose connections are forwarded over RDMA.
func overTCP(t *testing.T, config *valkeyrdma.Config, at string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	passed := make(chan error, 1)
	go func() { passed <- forward(l, config, at) }()
	c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{l.Addr().String()}, ForceSingleClient: true,
		DisableCache: true, ConnWriteTimeout: time.Minute})
	require.NoError(t, err)
	values(t, c)
	c.Close()
	assert.NoError(t, l.Close())
	assert.NoError(t, <-passed)
}
