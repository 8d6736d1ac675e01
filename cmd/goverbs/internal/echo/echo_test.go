// SPDX-License-Identifier: BSD-2-Clause

package echo

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestInterrupted checks that a client canceled while it waits for input returns context.Canceled.
func TestInterrupted(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	served, at := make(chan error, 1), make(chan string, 1)
	serving, end := context.WithCancel(t.Context())
	go func() { served <- Serve(serving, "127.0.0.1:0", 1, func(address string) { at <- address }) }()
	words, say := io.Pipe()
	heard, back := io.Pipe()
	ctx, interrupt := context.WithCancel(t.Context())
	talked := make(chan error, 1)
	address := <-at
	go func() {
		_, err := RunClient(ctx, address, words, back)
		talked <- err
	}()
	_, err := io.WriteString(say, "hello\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(heard).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "hello\n", line)
	interrupt()
	assert.ErrorIs(t, <-talked, context.Canceled)
	end()
	assert.NoError(t, <-served)
	require.NoError(t, say.Close())
}

// TestIncompleteEcho checks that it is an error if the server closes before it has returned everything.
func TestIncompleteEcho(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	l, err := stream.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, c)
		}
		served <- errors.Join(err, c.Close())
	}()
	_, err = RunClient(t.Context(), l.Addr().String(), strings.NewReader("hello\n"), io.Discard)
	assert.ErrorContains(t, err, "after 0 of 6 bytes")
	require.NoError(t, <-served)
	require.NoError(t, l.Close())
}

// TestClientsWait checks that a server limited to one client serves clients in turn.
func TestClientsWait(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	served, at := make(chan error, 1), make(chan string, 1)
	ctx, end := context.WithCancel(t.Context())
	go func() { served <- Serve(ctx, "127.0.0.1:0", 1, func(address string) { at <- address }) }()
	address := <-at
	first, err := stream.Dial(ctx, address)
	require.NoError(t, err)
	_, err = first.Write([]byte("1"))
	require.NoError(t, err)
	_, err = io.ReadFull(first, make([]byte, 1))
	require.NoError(t, err)
	second, err := stream.Dial(ctx, address)
	require.NoError(t, err)
	_, err = second.Write([]byte("2"))
	require.NoError(t, err)
	require.NoError(t, second.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = second.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, first.Close())
	require.NoError(t, second.SetReadDeadline(time.Time{}))
	_, err = io.ReadFull(second, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, second.Close())
	end()
	require.NoError(t, <-served)
}

// TestHostShare checks that one host cannot use all connections of a server.
func TestHostShare(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft@127.44.1.1")
	served, at := make(chan error, 1), make(chan string, 1)
	ctx, end := context.WithCancel(t.Context())
	go func() { served <- Serve(ctx, "127.44.1.1:0", 4, func(address string) { at <- address }) }()
	address := <-at
	from := func(host string) stream.Config {
		f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Name: "soft0",
			Address: netip.MustParseAddr(host), Wire: true}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		return stream.Config{Backend: f}
	}
	greedy, other := from("127.44.1.2"), from("127.44.1.3")
	var held []*stream.Conn
	answers := func(c stream.Config) bool {
		conn, err := (&stream.Dialer{Config: c}).Dial(ctx, address)
		require.NoError(t, err)
		held = append(held, conn)
		if _, err = conn.Write([]byte("1")); err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		return err == nil
	}
	for range 3 {
		assert.True(t, answers(greedy))
	}
	assert.False(t, answers(greedy), "the fourth connection of a host must be closed")
	assert.True(t, answers(other))
	for _, c := range held {
		c.Close()
	}
	end()
	require.NoError(t, <-served)
}
