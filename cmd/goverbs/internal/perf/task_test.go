// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/unconfirmed"
)

// kinds lists all tests of one transport.
var kinds = []Options{
	{Verb: "send"}, {Verb: "write"}, {Verb: "read"}, {Verb: "atomic"},
	{Verb: "send", Latency: true}, {Verb: "write", Latency: true}, {Verb: "read", Latency: true},
	{Verb: "atomic", Latency: true},
}

// complete returns options with perftest's defaults.
func complete(t *testing.T, o Options, size string) Options {
	o.GIDIndex, o.List, o.Inline, o.Moderate, o.QPs = -1, 1, -1, 1, max(1, o.QPs)
	o.TxDepth, o.RxDepth, o.Timeout, o.Iterations = 16, 64, 18, max(o.Iterations, 100)
	o.Port = DefaultPort
	if o.Connection == "" {
		o.Connection = "RC"
	}
	if o.Verb == "atomic" {
		size = ""
	}
	require.NoError(t, o.Complete(size))
	return o
}

// serve runs a server on a free port and sets the client's address. The channels report when it waits, and its error.
func serve(t *testing.T, server, client *Options) (waits <-chan struct{}, ended <-chan error) {
	t.Helper()
	server.Port = freePort(t)
	server.Device, client.Device = twoAddresses()
	client.Port, client.Peer = server.Port, strings.TrimPrefix(server.Device, "soft@")
	waiting, end := make(chan struct{}), make(chan error, 1)
	server.Waiting = func(string) { close(waiting) }
	go func() { _, err := Run(t.Context(), server); end <- err }()
	return waiting, end
}

// differ runs a server and a client with different options and returns their errors.
func differ(t *testing.T, server, client Options) (serverResult, clientResult error) {
	waits, ended := serve(t, &server, &client)
	select {
	case <-waits:
	case err := <-ended:
		require.NoError(t, err, "the server is not waiting")
	}
	_, clientResult = Run(t.Context(), &client)
	select {
	case serverResult = <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the server is still running")
	}
	return serverResult, clientResult
}

// TestEndsDiffer checks that both ends detect different options before the test and report both commands.
func TestEndsDiffer(t *testing.T) {
	type pair struct{ a, b Options }
	var pairs []pair
	for i, a := range kinds {
		for _, b := range kinds[i+1:] {
			pairs = append(pairs, pair{complete(t, a, "64"), complete(t, b, "64")})
		}
	}
	plain := complete(t, Options{Verb: "send"}, "64")
	for _, other := range []Options{
		complete(t, Options{Verb: "send", Both: true}, "64"), complete(t, Options{Verb: "send", QPs: 2}, "64"),
		complete(t, Options{Verb: "send", Connection: "UC"}, "64"),
		complete(t, Options{Verb: "send", Connection: "UD"}, "64"),
		complete(t, Options{Verb: "send", Iterations: 101}, "64"), complete(t, Options{Verb: "send"}, "65"),
		complete(t, Options{Verb: "send", All: true}, ""), complete(t, Options{Verb: "send", Duration: 1e9}, "64"),
		complete(t, Options{Verb: "send", Manager: true}, "64"),
	} {
		pairs = append(pairs, pair{plain, other})
	}
	pairs = append(pairs, pair{complete(t, Options{Verb: "write", Duration: 1e9}, "64"),
		complete(t, Options{Verb: "write", Duration: 2e9}, "64")})
	for _, p := range pairs {
		for _, ends := range []pair{p, {p.b, p.a}} {
			localCmd, remoteCmd := ends.a.task(true).command(), ends.b.task(true).command()
			t.Run(localCmd+" with "+remoteCmd, func(t *testing.T) {
				t.Parallel()
				serverResult, clientResult := differ(t, ends.a, ends.b)
				expected := func(local, remote string) string {
					return fmt.Sprintf("this end runs %q, the peer %q;", local, remote)
				}
				assert.ErrorIs(t, serverResult, errDiffer)
				assert.ErrorContains(t, serverResult, expected(localCmd, remoteCmd))
				assert.ErrorIs(t, clientResult, errDiffer)
				assert.ErrorContains(t, clientResult, expected(remoteCmd, localCmd))
			})
		}
	}
}

// TestTask checks the encoding of tasks.
func TestTask(t *testing.T) {
	for _, o := range append(kinds,
		Options{Verb: "send", Both: true, Manager: true, Connection: "UD", QPs: 7, All: true},
		Options{Verb: "read", Duration: 1500 * time.Millisecond, Iterations: 1 << 30}) {
		o := complete(t, o, map[bool]string{false: "1024M"}[o.All])
		for _, global := range []bool{false, true} {
			b := o.task(global).put()
			assert.Len(t, b, taskBytes)
			assert.LessOrEqual(t, len(b), keyBytes, "too large for the link of -R")
			back, err := taskOf(b)
			require.NoError(t, err)
			assert.Equal(t, o.task(global), back)
		}
	}
	for _, at := range []int{0, 1} {
		o := complete(t, kinds[0], "")
		bad := o.task(true).put()
		bad[at] = 9
		_, err := taskOf(bad)
		assert.ErrorContains(t, err, "invalid test description from the peer: 0")
	}
}

// TestTaskCommand checks the command lines of tasks.
func TestTaskCommand(t *testing.T) {
	o := complete(t, Options{Verb: "write", Latency: true, Manager: true}, "64")
	assert.Equal(t, "goverbs perf write --lat -R -s 64 -n 100", o.task(true).command())
	assert.Equal(t, "ib_write_lat -R -s 64 -n 100", o.task(true).perftest())
	o = complete(t, Options{Verb: "atomic", Both: true, QPs: 3, Duration: 5e9}, "")
	assert.Equal(t, "goverbs perf atomic -b -D 5 -q 3", o.task(true).command())
	assert.Equal(t, "ib_atomic_bw -b -D 5 -q 3", o.task(true).perftest())
}

// TestUnconfirmedConnections checks that unconfirmed requests from another host do not delay the peer of a server with
// -R.
func TestUnconfirmedConnections(t *testing.T) {
	defer func(d time.Duration) { handshakeTimeout = d }(handshakeTimeout)
	handshakeTimeout = time.Hour
	server := complete(t, Options{Verb: "send", Manager: true}, "64")
	client := server
	waits, ended := serve(t, &server, &client)
	<-waits
	to := netip.AddrPortFrom(netip.MustParseAddr(client.Peer), uint16(server.Port))
	unconfirmed.Requests(t, "127.46.1.1", to, 40, nil)
	client.Silence = time.Minute
	_, err := Run(t.Context(), &client)
	require.NoError(t, errors.Join(err, <-ended))
}

// TestTwoPeers checks that a server with -R serves one of two clients and closes the connection of the other.
func TestTwoPeers(t *testing.T) {
	server := complete(t, Options{Verb: "send", Manager: true}, "64")
	client := server
	waits, ended := serve(t, &server, &client)
	<-waits
	other := client
	other.Device = "soft@127.46.2.1"
	done := make(chan error, 2)
	for _, o := range []*Options{&client, &other} {
		go func() {
			_, err := Run(t.Context(), o)
			done <- err
		}()
	}
	require.NoError(t, <-ended)
	first, second := <-done, <-done
	if first != nil {
		first, second = second, first
	}
	require.NoError(t, first)
	assert.Error(t, second)
}

// TestForeignTCPConnections checks that a server with -R ignores TCP connections that are not from a peer.
func TestForeignTCPConnections(t *testing.T) {
	server := complete(t, Options{Verb: "send", Manager: true}, "64")
	client := server
	waits, ended := serve(t, &server, &client)
	<-waits
	for _, message := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("9", 4096), "6.06"} {
		c, err := net.Dial("tcp", net.JoinHostPort(client.Peer, strconv.Itoa(server.Port)))
		require.NoError(t, err)
		_, err = c.Write([]byte(message))
		assert.NoError(t, err)
		require.NoError(t, c.Close())
	}
	_, err := Run(t.Context(), &client)
	require.NoError(t, errors.Join(err, <-ended))
}
