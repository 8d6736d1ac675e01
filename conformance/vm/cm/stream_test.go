// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/rdma/stream"
)

// pipe returns the two ends of a connection.
func pipe(t testing.TB, config stream.Config) (client, server *stream.Conn) {
	t.Helper()
	client, server, err := connect(t, config)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func connect(t testing.TB, config stream.Config) (client, server *stream.Conn, err error) {
	config = on(config)
	l, err := listenConfig(config).Listen(context.Background(), address(t, 0).String())
	if err != nil {
		return nil, nil, err
	}
	type result struct {
		c   *stream.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.AcceptRDMA(withTimeout(t))
		accepted <- result{c, err}
	}()
	client, err = dialer(config).Dial(withTimeout(t), l.Addr().String())
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	r := <-accepted
	return client, r.c, errors.Join(r.err, l.Close())
}

func TestStreamNetConn(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		address(t, 0)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			a, b, err := connect(t, stream.Config{Protocol: protocol, Buffer: 64 << 10})
			return a, b, func() { a.Close(); b.Close() }, err
		})
	})
}

func TestStreamHandshakeBothWays(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol})
		for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
			_, err := ends[0].Write([]byte("hello"))
			require.NoError(t, err)
			got := make([]byte, 16)
			n, err := ends[1].Read(got)
			require.NoError(t, err)
			assert.Equal(t, "hello", string(got[:n]))
		}
		assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
		assert.Equal(t, "rdma", a.RemoteAddr().Network())
	})
}

// TestStreamDelivers sends data in pieces of various sizes, through buffers of several sizes, to readers that read
// various sizes, in both directions concurrently.
func TestStreamDelivers(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		for _, buffer := range []int{4 << 10, 60_000, 1 << 20} {
			start := time.Now()
			a, b := pipe(t, stream.Config{Protocol: protocol, Buffer: buffer})
			const total = 2 << 20
			type sum struct {
				sum [32]byte
				err error
			}
			sums := make(chan sum, 4)
			for i, ends := range [][2]*stream.Conn{{a, b}, {b, a}} {
				go func() {
					random, bytes, h := rand.New(rand.NewPCG(uint64(i), 7)), rand.NewChaCha8([32]byte{byte(i)}),
						sha256.New()
					for left := total; left > 0; {
						piece := make([]byte, min(left, 1+random.IntN(100_000)))
						bytes.Read(piece)
						h.Write(piece)
						if _, err := ends[0].Write(piece); err != nil {
							sums <- sum{err: err}
							return
						}
						left -= len(piece)
					}
					sums <- sum{[32]byte(h.Sum(nil)), ends[0].CloseWrite()}
				}()
				go func() {
					random, h := rand.New(rand.NewPCG(uint64(i), 8)), sha256.New()
					p := make([]byte, 100_000)
					for {
						n, err := ends[1].Read(p[:1+random.IntN(len(p))])
						h.Write(p[:n])
						if err == io.EOF {
							sums <- sum{sum: [32]byte(h.Sum(nil))}
							return
						}
						if err != nil {
							sums <- sum{err: err}
							return
						}
					}
				}()
			}
			count := map[[32]byte]int{}
			for range 4 {
				s := <-sums
				require.NoError(t, s.err)
				count[s.sum]++
			}
			assert.Len(t, count, 2)
			for _, n := range count {
				assert.Equal(t, 2, n, "data differs")
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			t.Logf("%d bytes of buffer: %v", buffer, time.Since(start))
		}
	})
}

func TestStreamHalfClose(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol})
		_, err := a.Write([]byte("question"))
		require.NoError(t, err)
		require.NoError(t, a.CloseWrite())
		_, err = a.Write([]byte("more"))
		assert.ErrorIs(t, err, syscall.EPIPE)
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		assert.Equal(t, "question", string(got))
		_, err = b.Write([]byte("answer"))
		require.NoError(t, err)
		require.NoError(t, b.Close())
		got, err = io.ReadAll(a)
		require.NoError(t, err)
		assert.Equal(t, "answer", string(got))
	})
}

// TestStreamCloseDelivers checks that data written before Close can be read afterwards.
func TestStreamCloseDelivers(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol})
		sent := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
		_, err := a.Write(sent)
		require.NoError(t, err)
		require.NoError(t, a.Close())
		time.Sleep(50 * time.Millisecond)
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(sent, got))
		_, err = b.Write([]byte("x"))
		assert.ErrorIs(t, err, syscall.EPIPE)
	})
}

func TestStreamBackpressure(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol, Buffer: 8 << 10})
		n := 0
		for m := 1; m > 0 || n == 0; n += m { // a busy machine may not fill the buffer in the first interval
			require.NoError(t, a.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
			var err error
			m, err = a.Write(make([]byte, 100<<10))
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
		}
		assert.Equal(t, 8<<10, n, "as much as the buffer holds")
		got := make([]byte, 100<<10)
		m, err := io.ReadFull(b, got[:n])
		require.NoError(t, err)
		assert.Equal(t, n, m)
		require.NoError(t, a.SetWriteDeadline(time.Time{}))
		_, err = a.Write([]byte("on"))
		require.NoError(t, err)
	})
}

// TestStreamArrivesUnread checks that written data arrives while the peer does not read, even in many small pieces, up
// to the size of the buffer.
func TestStreamArrivesUnread(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol, Buffer: 64 << 10})
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(10*time.Second)))
		start := time.Now()
		for i := range 1000 {
			_, err := a.Write([]byte("0123456789abcdef"))
			require.NoError(t, err, "message %d", i)
		}
		t.Log("1000 messages in", time.Since(start))
		require.NoError(t, a.CloseWrite())
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		assert.Len(t, got, 16_000)
	})
}

func TestStreamDialErrors(t *testing.T) {
	at := address(t, 7999)
	_, err := dialer(on(stream.Config{})).Dial(withTimeout(t), at.String())
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.ErrorContains(t, err, "no listener")
	_, err = dialer(on(stream.Config{HandshakeTimeout: time.Second})).Dial(withTimeout(t), "10.99.0.1:1") // unused address
	assert.Error(t, err)
	t.Log(err)
	l := listen(t, 7998)
	var rejected sync.WaitGroup
	rejected.Go(func() {
		id, _, err := l.GetRequest(withTimeout(t))
		if assert.NoError(t, err) {
			assert.NoError(t, id.Reject([]byte("not today")))
			assert.NoError(t, id.Close())
		}
	})
	_, err = dialer(on(stream.Config{})).Dial(withTimeout(t), address(t, 7998).String())
	rejected.Wait()
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.ErrorContains(t, err, "not today")
}
