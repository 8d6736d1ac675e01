// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// FuzzKeys checks that keys are decoded as encoded, or rejected.
func FuzzKeys(f *testing.F) {
	complete := keys{lid: 0x1234, reads: 16, qpn: 0xabcdef, psn: 0x123456, rkey: 0xdeadbeef, address: 1 << 63,
		global: true, srqn: 7}
	copy(complete.gid.Raw()[:], "0123456789abcdef")
	f.Add(textKeys{}.put(&complete), true)
	without := complete
	without.gid, without.global = ibv.GID{}, false
	f.Add(textKeys{}.put(&without), false)
	f.Add([]byte("0000:01:-00001:000000:00000000:0000000000000000:00000000:"), false)
	f.Add([]byte("::::::::::::::::::::::"), true)
	f.Fuzz(func(t *testing.T, text []byte, global bool) {
		k, err := textKeys{}.get(text, global)
		if err != nil {
			assert.ErrorContains(t, err, "invalid queue pair keys from the peer: ")
			return
		}
		again, err := textKeys{}.get(textKeys{}.put(&k), global)
		require.NoError(t, err)
		assert.Equal(t, k, again)
		assert.Less(t, k.qpn, uint32(1<<24))
	})
}

// TestKeys checks both encodings.
func TestKeys(t *testing.T) {
	k := keys{lid: 1, reads: 2, qpn: 3, psn: 4, rkey: 5, address: 6, global: true, srqn: 7}
	copy(k.gid.Raw()[:], "0123456789abcdef")
	text := textKeys{}.put(&k)
	assert.Len(t, text, 108)
	want := "0001:0002:000003:000004:00000005:0000000000000006:30:31:"
	assert.True(t, bytes.HasPrefix(text, []byte(want)), "%s", text)
	for _, c := range []codec{textKeys{}, binaryKeys{}} {
		b := c.put(&k)
		assert.Len(t, b, c.size(true))
		back, err := c.get(b, true)
		require.NoError(t, err)
		assert.Equal(t, k, back)
	}
}

// TestAgree checks that two ends agree on the smaller MTU and the larger page, and reject other programs.
func TestAgree(t *testing.T) {
	meet := func(peer func(l link)) (terms, error) {
		link := func(c net.Conn) link { return overTCP(t.Context(), func(error) {}, c) }
		a, b := net.Pipe()
		defer a.Close()
		go func() {
			defer b.Close()
			peer(link(b))
		}()
		return agree(link(a), &Options{Peer: "there"}, ibv.MTU_2048)
	}
	got, err := meet(func(l link) { _, _ = agree(l, &Options{TCP: true}, ibv.MTU_1024) })
	require.NoError(t, err)
	assert.Equal(t, terms{version: version, cycle: got.cycle, mtu: ibv.MTU_1024, goverbs: true, tcp: true}, got)
	assert.GreaterOrEqual(t, got.cycle, 4096)

	send := func(all ...string) func(l link) {
		return func(l link) {
			for i, text := range all {
				_ = l.receive(make([]byte, []int{16, 4, 4, 2}[i]))
				_ = l.send([]byte(text))
			}
		}
	}
	_, err = meet(send("5.10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	assert.ErrorContains(t, err, `unsupported peer version "5.10"; use perftest 5.70 or later`)
	_, err = meet(send("HTTP/1.1 400 Bad"))
	assert.ErrorContains(t, err, "HTTP/1.1 400 Bad")
	six := "6.24\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	_, err = meet(send(six, "\xff\xff\xff\xff"))
	assert.ErrorContains(t, err, "cache line size from the peer: 4294967295 bytes")
	_, err = meet(send(six, "\x00\x10\x00\x01"))
	assert.ErrorContains(t, err, "1048577 bytes", "it would take too much memory")
	_, err = meet(send(six))
	assert.ErrorContains(t, err, "peer closed the connection")
	got, err = meet(send(six, "\x00\x01\x00\x00", "\x00\x00\x00\x80", "9\x00"))
	require.NoError(t, err)
	assert.Equal(t, terms{version: "6.24", cycle: 65536, mtu: ibv.MTU_2048}, got, "an invalid MTU is ignored")
}

// TestPeerEnds checks that each test ends soon after its peer has gone, but not when it is slow.
func TestPeerEnds(t *testing.T) {
	for _, test := range []Options{
		{Verb: "write", Latency: true}, {Verb: "send", Latency: true}, {Verb: "send", Latency: true, Events: true},
		{Verb: "read", Latency: true}, {Verb: "write"},
	} {
		name := fmt.Sprintf("%v events=%t", &test, test.Events)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.Duration, test.Iterations = time.Minute, 100
			server, client := endsOf(t, test, "64")
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 2)
			go func() { _, err := Run(ctx, server); done <- err }()
			go func() {
				for {
					_, err := Run(t.Context(), client)
					if err == nil || !strings.Contains(err.Error(), "no server") {
						done <- err
						return
					}
				}
			}()
			time.Sleep(300 * time.Millisecond)
			start := time.Now()
			stop()
			for range 2 {
				err := <-done
				assert.True(t, errors.Is(err, context.Canceled) || errors.Is(err, errGone), "%v", err)
			}
			assert.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// TestSilentPeer checks that a server disconnects a client that sends nothing.
func TestSilentPeer(t *testing.T) {
	server, _ := endsOf(t, Options{Verb: "send", Iterations: 10, Silence: 200 * time.Millisecond}, "64")
	server.Waiting = func(string) {
		go func() {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", server.Port))
			if assert.NoError(t, err) {
				t.Cleanup(func() { c.Close() })
			}
		}()
	}
	_, err := Run(t.Context(), server)
	assert.ErrorIs(t, err, errSilent)
}

// TestSilentManager checks that Silence also bounds the connection manager's connect to a host that does not answer.
func TestSilentManager(t *testing.T) {
	o := complete(t, Options{Verb: "send", Manager: true, Silence: 200 * time.Millisecond}, "64")
	device, peer := twoAddresses()
	o.Device, o.Peer = device, strings.TrimPrefix(peer, "soft@")
	start := time.Now()
	_, err := Run(t.Context(), &o)
	assert.ErrorContains(t, err, "no answer for 200ms")
	assert.Less(t, time.Since(start), 30*time.Second, "without it, more than a minute")
}

// TestInvalidRates checks that an invalid rate from the peer is rejected.
func TestInvalidRates(t *testing.T) {
	for _, rate := range []float64{math.NaN(), math.Inf(1), -1} {
		a, b := net.Pipe()
		ends := [2]link{overTCP(t.Context(), func(error) {}, a), overTCP(t.Context(), func(error) {}, b)}
		go func() { _, _ = swapOutcomes(ends[1], false, outcome{rate: rate}) }()
		row := &Row{}
		assert.ErrorContains(t, row.withPeers(ends[0], true), "million messages per second")
		assert.Zero(t, row.Mps)
		a.Close()
		b.Close()
	}
}
