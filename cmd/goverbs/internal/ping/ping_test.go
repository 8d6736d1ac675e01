// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/unconfirmed"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// startServer starts a server for the duration of the test and returns options that reach it.
func startServer(t *testing.T) *Options {
	t.Helper()
	s := &Server{Device: "soft@127.79.0.1", GIDIndex: -1, CMPort: 17174, PingPong: RC, Log: func(string) {}}
	require.NoError(t, s.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return &Options{Device: "soft@127.79.0.2", GIDIndex: -1, Peer: "127.79.0.1", Port: s.tcp.Addr().(*net.TCPAddr).Port,
		CMPort: s.CMPort, Kinds: Kinds, Count: 3, Size: 64, Timeout: 5 * time.Second}
}

func TestPing(t *testing.T) {
	o := startServer(t)
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	assert.Zero(t, r.Failed(), "%+v", r)
	for i, kind := range Kinds {
		assert.Equal(t, kind, r.Results[i].Kind)
		assert.Equal(t, 3, r.Results[i].Received)
		assert.Positive(t, r.Results[i].Median)
	}
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	assert.Contains(t, text.String(), "ud    3     3 ")
}

// TestFailures checks the failed step and the first fix of failures.
func TestFailures(t *testing.T) {
	o := startServer(t)
	tcp := func(answer string) int { // a server that sends answer
		l, err := net.Listen("tcp", "127.79.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.ReadAtLeast(c, make([]byte, 1000), 1)
				_, _ = io.WriteString(c, answer)
				_ = c.Close()
			}
		}()
		return l.Addr().(*net.TCPAddr).Port
	}
	endpoint := func(address string) string {
		return `{"endpoint":"qpn=0x1234 mtu=1024 qkey=0x11111111 gid=` + address + "\"}\n"
	}
	for name, f := range map[string]struct {
		change          func(o *Options)
		kind, step, fix string
	}{
		"no listener": {func(o *Options) { o.Port = 1 }, RC, "connect over TCP", "start goverbs serve on the peer"},
		"no listener, pingpong": {func(o *Options) { o.Port, o.PingPong = 1, true }, UD, "connect over TCP",
			"start ibv_ud_pingpong -g INDEX on the peer"},
		"another server": {func(o *Options) { o.Port = tcp("SSH-2.0\n") }, RC, "exchange endpoints", ""},
		"a P_Key with control characters": {func(o *Options) {
			o.Port = tcp(`{"endpoint":"qpn=0x1234","pkeys":["\u001b[2J"]}` + "\n")
		}, RC, "exchange endpoints", ""},
		"a hostile server": {func(o *Options) { o.Port = tcp(strings.Repeat("{", 20000)) }, RC, "exchange endpoints",
			""},
		"unknown host": {func(o *Options) { o.Peer = "no.such.host.invalid" }, CM, "find the peer's address",
			"cannot resolve"},
		"connection refused": {func(o *Options) { o.CMPort = 2 }, CM, "connect",
			"start goverbs serve, or rping -s on the peer"},
		"no device at the GID": {func(o *Options) { o.Port = tcp(endpoint("::ffff:127.79.0.3")) }, RC, "ping",
			allowRoCE},
		"another address family":       {func(o *Options) { o.Port = tcp(endpoint("fd00::1")) }, UD, "", ""},
		"datagram larger than the MTU": {func(o *Options) { o.Size = 5000 }, UD, "create the queue pair", ""},
		"unknown GID": {func(o *Options) { o.GIDIndex = 7 }, RC, "create the queue pair",
			"choose an index that goverbs gids "},
		"size 0":                     {func(o *Options) { o.Size = 0 }, RC, "create the queue pair", ""},
		"size 0, connection manager": {func(o *Options) { o.Size = 0 }, CM, "create the queue pair", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := *o
			o.Kinds, o.Timeout = []string{f.kind}, 2*time.Second
			f.change(&o)
			r, err := Run(t.Context(), &o)
			require.NoError(t, err)
			failure := r.Results[0].Failure
			require.NotNil(t, failure)
			assert.Contains(t, failure.Step, f.step, failure)
			if f.fix != "" {
				require.NotEmpty(t, failure.Fixes, failure)
				assert.Contains(t, failure.Fixes[0], f.fix)
			}
			assert.NotEmpty(t, failure.What)
		})
	}
	_, err := Run(t.Context(), &Options{Device: "nothing77"})
	assert.ErrorContains(t, err, "list devices with goverbs devices")
}

// TestTimeout checks that no kind waits longer than its timeout if nothing answers.
func TestTimeout(t *testing.T) {
	const timeout = 500 * time.Millisecond
	o := &Options{Device: "soft@127.79.0.4", GIDIndex: -1, Peer: "127.79.0.5", Port: 1, CMPort: 17174, Kinds: Kinds,
		Count: 3, Size: 64, Timeout: timeout}
	all := time.Duration(len(Kinds)+1) * timeout
	took := time.Hour
	for try := 0; try < 3 && took >= all; try++ { // on a busy machine, one run may take longer
		start := time.Now()
		r, err := Run(t.Context(), o)
		require.NoError(t, err)
		assert.Equal(t, len(Kinds), r.Failed(), "%+v", r)
		took = time.Since(start)
	}
	assert.Less(t, took, all)
}

// TestHostileClients checks that a server reports invalid messages and continues.
func TestHostileClients(t *testing.T) {
	o := startServer(t)
	for text, want := range map[string]string{
		`{"kind":"xrc","endpoint":"qpn=0x1"}` + "\n":                "unknown kind",
		`{"kind":"rc","size":1e9,"endpoint":"qpn=0x1"}` + "\n":      "unexpected data",
		`{"kind":"rc","size":99999999,"endpoint":"qpn=0x1"}` + "\n": "is not in 1 to",
		`{"kind":"rc","size":64}` + "\n":                            "lacks an endpoint",
		"0000:zz:000000:00000000000000000000000000000000\x00AAAAAA": "parsing",
		"hello" + strings.Repeat(" ", 60):                           "invalid pingpong endpoint",
	} {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
		require.NoError(t, err)
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		answer, err := io.ReadAll(c)
		require.NoError(t, err, text)
		assert.Contains(t, string(answer), want, text)
		c.Close()
	}
	o.Kinds = []string{RC}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	assert.Zero(t, r.Failed())
}

// TestLostClients checks that silent clients are disconnected, so that others are served.
func TestLostClients(t *testing.T) {
	s := &Server{Device: "soft@127.79.0.6", GIDIndex: -1, CMPort: 17177, PingPong: RC, Log: func(string) {},
		Lost: 300 * time.Millisecond}
	require.NoError(t, s.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); assert.NoError(t, <-done) }()
	o := &Options{Device: "soft@127.79.0.7", GIDIndex: -1, Peer: "127.79.0.6", CMPort: s.CMPort, Kinds: Kinds,
		Port: s.tcp.Addr().(*net.TCPAddr).Port, Count: 1, Size: 64, Timeout: 10 * time.Second}
	for range clients {
		c, err := net.Dial("tcp", fmt.Sprintf("127.79.0.6:%d", o.Port))
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c,
			`{"kind":"rc","size":64,"endpoint":"qpn=0x1234 mtu=1024 gid=::ffff:127.79.0.7"}`+"\n")
		require.NoError(t, err)
	}
	for range clients {
		id, err := cm.CreateIDOn(backendOf(t, o.Device), rdmacm.PS_TCP)
		require.NoError(t, err)
		defer id.Close()
		m := &managed{id: id, size: 64}
		to := netip.AddrPortFrom(netip.MustParseAddr(o.Peer), uint16(o.CMPort))
		require.NoError(t, id.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second))
		require.NoError(t, id.ResolveRoute(ctx, time.Second))
		require.NoError(t, m.setup())
		param := cm.DefaultConnParam()
		require.NoError(t, id.Connect(ctx, &param, nil))
	}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	assert.Zero(t, r.Failed(), "%+v", r)
}

// backendOf returns the backend of a device.
func backendOf(t *testing.T, device string) runtime.Backend {
	d, err := rdma.Open(device)
	require.NoError(t, err)
	defer d.Close()
	return d.Info().Backend
}

// TestUnconfirmedClients checks that a host which requests connections without confirming them, or connects over TCP
// and sends nothing, does not block other hosts, even two clients of one host.
func TestUnconfirmedClients(t *testing.T) {
	o := startServer(t)
	peer := netip.AddrPortFrom(netip.MustParseAddr(o.Peer), uint16(o.CMPort))
	unconfirmed.Requests(t, "127.79.0.66", peer, 2*clients, nil)
	for range 2 * clients {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 79, 0, 66)}}
		c, err := from.DialContext(t.Context(), "tcp", net.JoinHostPort(o.Peer, fmt.Sprint(o.Port)))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
	o.Timeout = 20 * time.Second
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			r, err := Run(t.Context(), o)
			if assert.NoError(t, err) {
				assert.Zero(t, r.Failed(), "%+v", r)
			}
		})
	}
	wg.Wait()
}

// TestEchoLoop checks that two servers connected to each other do not echo a message forever.
func TestEchoLoop(t *testing.T) {
	device, err := rdma.Open("soft@127.79.0.8")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, device.Close()) })
	for _, kind := range []string{RC, UD} {
		var ends [2]*end
		for i := range ends {
			ends[i], err = newEnd(&Options{GIDIndex: -1, ownDevice: device}, kind, 64)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, ends[i].Close()) })
		}
		for i, e := range ends {
			require.NoError(t, e.connect(ends[1-i].own, 0, false))
		}
		require.NoError(t, ends[0].post(64)) // a forged message
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		done := make(chan error, len(ends))
		for _, e := range ends {
			go func() { done <- e.serve(ctx, 500*time.Millisecond) }()
		}
		for range ends {
			assert.ErrorIs(t, <-done, errSilence, kind)
		}
	}
}

// TestAddressWithoutDevice checks the fix for an address of the peer's host at which no RDMA device is. The TCP exchange
// reaches the server there, so only the connection manager fails.
func TestAddressWithoutDevice(t *testing.T) {
	o := startServer(t)
	server := o.Peer
	o.Peer, o.Timeout = "127.79.0.77", 2*time.Second
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, r.Results, 3)
	require.NotNil(t, r.Results[2].Failure, "%+v", r)
	assert.Equal(t, "give the address of the peer's device: "+server+", not 127.79.0.77", r.Results[2].Failure.Fixes[0])
	assert.NotContains(t, strings.Join(r.Results[2].Failure.Fixes, " "), "Soft-RoCE")
}
