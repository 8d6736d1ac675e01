// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// bound limits how long a survivor may take to notice that its peer is gone. Usually it takes seconds; busy machines
// need longer.
const bound = time.Minute

// timeout returns a context that ends with the test, or after a time that is never reached.
func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	t.Cleanup(cancel)
	return ctx
}

// config returns the configuration of streams on a fabric that notice a lost peer quickly.
func config(f *soft.Fabric) stream.Config {
	return stream.Config{Backend: f, AckTimeout: 15, Heartbeat: time.Second, Linger: 100 * time.Millisecond}
}

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// echoed sends data and checks its echo.
func echoed(t *testing.T, c *stream.Conn, data []byte) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(2*bound)))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, got), "other bytes came back")
	require.NoError(t, c.SetDeadline(time.Time{}))
}

// TestProcesses: two processes communicate over the wire with verbs, streams and HTTP.
func TestProcesses(t *testing.T) {
	f := fabricAt(t, "127.0.0.32")
	betweenProcesses(t, f, startPeer(t, "127.0.0.33"), 64<<20)
}

// TestProcessesIPv6 is TestProcesses over IPv6.
func TestProcessesIPv6(t *testing.T) {
	other := ""
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if ip.Is6() && !ip.Is4In6() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			other = ip.String()
		}
	}
	if other == "" {
		t.Skip("this machine has no IPv6 address except ::1")
	}
	f := fabricAt(t, "::1")
	betweenProcesses(t, f, startPeer(t, other), 8<<20)
}

func betweenProcesses(t *testing.T, f *soft.Fabric, p *peer, size int) {
	t.Run("stream", func(t *testing.T) {
		c, err := dialer(config(f)).Dial(timeout(t), p.at(echoPort))
		require.NoError(t, err)
		for n := range 200 {
			echoed(t, c, random(1+n*97, byte(n)))
		}
		echoed(t, c, random(size, 1))
		require.NoError(t, c.CloseWrite())
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, c.Close())
	})
	t.Run("HTTP", func(t *testing.T) {
		client := webClient(f)
		defer client.CloseIdleConnections()
		for _, n := range []int{0, 1, 5001, 3 << 20} {
			body := random(n, 2)
			r, err := client.Post("http://"+p.at(httpPort), "", bytes.NewReader(body))
			require.NoError(t, err)
			digest, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.NoError(t, r.Body.Close())
			require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(body)), string(digest))
		}
	})
	t.Run("verbs", func(t *testing.T) { verbsBetween(t, f, p) })
	t.Run("reverse", func(t *testing.T) {
		l, err := listening(config(f)).Listen(timeout(t), net.JoinHostPort(addressOf(f), "0"))
		require.NoError(t, err)
		defer l.Close()
		c := called(t, l, p)
		_, err = io.CopyN(io.Discard, c, int64(size))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

func addressOf(f *soft.Fabric) string {
	for ip := range f.Addresses() {
		return ip.String()
	}
	return ""
}

func webClient(f *soft.Fabric) *http.Client {
	return &http.Client{Timeout: 2 * bound, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialer(config(f)).Dial(ctx, address)
		}}}
}

// called makes the peer connect to a listener and send without end.
func called(t *testing.T, l *stream.Listener, p *peer) net.Conn {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	require.Equal(t, "connected", p.ask("send "+l.Addr().String()))
	c := <-accepted
	require.NotNil(t, c)
	return c
}

// verbsWith connects a queue pair to one of the peer's.
func verbsWith(t *testing.T, f *soft.Fabric, p *peer) (*verbsEnd, place) {
	t.Helper()
	all, err := rdma.DevicesOf(f)
	require.NoError(t, err)
	device, err := all[0].Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	e, own, err := newVerbsEnd(device)
	require.NoError(t, err)
	t.Cleanup(e.close)
	line, err := json.Marshal(own)
	require.NoError(t, err)
	var remote place
	require.NoError(t, json.Unmarshal([]byte(p.ask("verbs "+string(line))), &remote))
	attr, err := e.qp.ConnectAttr(remote.Endpoint)
	require.NoError(t, err)
	attr.RNRRetry = rdma.RNRRetryInfinite // the peer may post the next receive late
	require.NoError(t, e.qp.ConnectWith(attr))
	return e, remote
}

// verbsBetween: messages of many sizes are echoed unchanged, and one-sided operations have their effect on the peer's
// memory.
func verbsBetween(t *testing.T, f *soft.Fabric, p *peer) {
	e, there := verbsWith(t, f, p)
	ctx, b := timeout(t), e.mr.Bytes()
	const half = verbsMemory / 2
	for n, size := range []int{1, 64, 1023, 1024, 1025, 4096, 4097, 5001, 1 << 20, 3, 100_000} {
		data := random(size, byte(n))
		copy(b, data)
		require.NoError(t, e.receive(half, half))
		for _, want := range []uint64{2, 1} { // the send, then the echo
			var wc ibv.WC
			var err error
			if want == 2 {
				wc, err = e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
					return b.Send(2).Add(e.mr.SGE(0, uint32(size)))
				})
			} else {
				wc, err = e.next(ctx)
			}
			require.NoError(t, err)
			if wc.WRID == 1 {
				require.EqualValues(t, size, wc.ByteLen)
			}
		}
		require.True(t, bytes.Equal(data, b[half:half+size]), "%d bytes", size)
	}
	const at = 64 << 10
	for n, size := range []int{1, 1024, 5001, 1 << 20} {
		data := random(size, byte(n+100))
		copy(b, data)
		_, err := e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
			return b.Write(3, there.Address+at, there.RKey).Add(e.mr.SGE(0, uint32(size)))
		})
		require.NoError(t, err)
		_, err = e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
			return b.Read(4, there.Address+at, there.RKey).Add(e.mr.SGE(half, uint32(size)))
		})
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, b[half:half+size]), "%d bytes", size)
	}
	before := binary.NativeEndian.Uint64(b[half:])
	_, err := e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
		return b.FetchAdd(5, there.Address+at, there.RKey, 7).Add(e.mr.SGE(0, 8))
	})
	require.NoError(t, err)
	require.Equal(t, before, binary.NativeEndian.Uint64(b))
	_, err = e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
		return b.Write(6, there.Address, there.RKey+1).Add(e.mr.SGE(0, 8))
	})
	var status *rdma.CompletionError
	require.ErrorAs(t, err, &status)
	require.Equal(t, ibv.WC_REM_ACCESS_ERR, status.Status)
}

// TestPeerKilled: goroutines that send to a killed process, or wait for it, get an error soon, and everything can be
// closed.
func TestPeerKilled(t *testing.T) {
	f := fabricAt(t, "127.0.0.34")
	p := startPeer(t, "127.0.0.35")
	done := make(chan error, 8)
	waits := 0
	ends := func(name string, f func() error) {
		waits++
		go func() {
			err := f()
			if err == nil {
				err = fmt.Errorf("no error")
			} else {
				t.Log(name, "ended:", err)
				err = nil
			}
			done <- err
		}()
	}
	writes, err := dialer(config(f)).Dial(timeout(t), p.at(echoPort))
	require.NoError(t, err)
	echoed(t, writes, random(1<<20, 1))
	ends("write", func() (err error) {
		go io.Copy(io.Discard, writes)
		for b := make([]byte, 1<<16); err == nil; {
			_, err = writes.Write(b)
		}
		return err
	})
	reads, err := dialer(config(f)).Dial(timeout(t), p.at(echoPort))
	require.NoError(t, err)
	ends("read", func() error {
		n, err := reads.Read(make([]byte, 1))
		require.Zero(t, n)
		return err
	})
	client := webClient(f)
	defer client.CloseIdleConnections()
	first, err := client.Post("http://"+p.at(httpPort), "", strings.NewReader("")) // connecting takes longer to fail
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, first.Body)
	require.NoError(t, err)
	require.NoError(t, first.Body.Close())
	ends("HTTP", func() error {
		_, err := client.Post("http://"+p.at(httpPort), "", endless{})
		return err
	})
	l, err := listening(config(f)).Listen(timeout(t), "127.0.0.34:0")
	require.NoError(t, err)
	accepted := called(t, l, p)
	ends("accepted", func() error {
		_, err := io.Copy(io.Discard, accepted)
		return err
	})
	e, there := verbsWith(t, f, p)
	ends("verbs", func() error {
		for {
			_, err := e.do(timeout(t), func(b *rdma.SendBatch) rdma.SendRequest {
				return b.Write(1, there.Address, there.RKey).Add(e.mr.SGE(0, 1<<20))
			})
			if err != nil {
				var status *rdma.CompletionError
				if assert.ErrorAs(t, err, &status) {
					assert.Equal(t, ibv.WC_RETRY_EXC_ERR, status.Status)
				}
				return err
			}
		}
	})
	start := time.Now()
	p.kill()
	for range waits {
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(bound):
			t.Fatal("a goroutine still waits for the killed process")
		}
	}
	t.Log("all ended after", time.Since(start))
	writes.Close()
	reads.Close()
	accepted.Close()
	require.NoError(t, l.Close())
}

// endless is an infinite body.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestPeerRestarts: a killed process restarts at the same address. It can connect and accept connections while the
// other side still has connections to the old process, which then fail.
func TestPeerRestarts(t *testing.T) {
	f := fabricAt(t, "127.0.0.36")
	l, err := listening(config(f)).Listen(timeout(t), "127.0.0.36:0")
	require.NoError(t, err)
	var old []net.Conn
	numbers := map[uint32]bool{}
	for round := range 3 {
		p := startPeer(t, "127.0.0.37")
		start := time.Now()
		out, err := dialer(config(f)).Dial(timeout(t), p.at(echoPort))
		require.NoError(t, err)
		echoed(t, out, random(1<<20, byte(round)))
		in := called(t, l, p)
		_, err = io.CopyN(io.Discard, in, 1<<20)
		require.NoError(t, err)
		t.Log("both connected after", time.Since(start))
		require.Less(t, time.Since(start), bound)
		_, there := verbsWith(t, f, p)
		assert.False(t, numbers[there.Endpoint.QPNum], "peers of one before would reach this one's queue pair")
		numbers[there.Endpoint.QPNum] = true
		old = append(old, out, in)
		p.kill()
	}
	p := startPeer(t, "127.0.0.37")
	for _, c := range old {
		require.NoError(t, c.SetDeadline(time.Now().Add(bound)))
		_, err := io.Copy(io.Discard, c)
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		var timeout net.Error
		if assert.ErrorAs(t, err, &timeout) {
			assert.False(t, timeout.Timeout(), "it did not end: %v", err)
		}
		c.Close()
	}
	out, err := dialer(config(f)).Dial(timeout(t), p.at(echoPort))
	require.NoError(t, err)
	echoed(t, out, random(1<<20, 9))
	require.NoError(t, out.Close())
	require.NoError(t, l.Close())
}

func dialer(c stream.Config) *stream.Dialer { return &stream.Dialer{Config: c} }

func listening(c stream.Config) *stream.ListenConfig { return &stream.ListenConfig{Config: c} }
