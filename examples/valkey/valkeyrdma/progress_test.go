// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestTransfer transfers more data than the memory holds, in pieces of any size, in both directions at once, up to EOF.
func TestTransfer(t *testing.T) {
	for _, buffer := range []int{MinBuffer, 100_000, DefaultBuffer} {
		a, b := pipe(t, Config{Buffer: buffer})
		want := make([]byte, 5*buffer+rand.IntN(1000))
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		send := func(c net.Conn) {
			for rest := want; len(rest) > 0; {
				n, err := c.Write(rest[:min(len(rest), 1+rand.IntN(2*buffer))])
				if !assert.NoError(t, err) {
					return
				}
				rest = rest[n:]
			}
		}
		var sending sync.WaitGroup
		sending.Go(func() { send(a) })
		sending.Go(func() { send(b) })
		for _, c := range []net.Conn{a, b} {
			got := make([]byte, len(want))
			_, err := io.ReadFull(c, got)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
		sending.Wait()
		require.NoError(t, a.Close())
		_, err := b.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
	}
}

// TestSmallWritesDoNotOutrunReceives tests a busy server that does not repost receives. The client, whose device does
// not retry, must stop sending in time, and continue when the server has replied.
func TestSmallWritesDoNotOutrunReceives(t *testing.T) {
	c, p := meet(t, false, Config{KeepAlive: -1})
	p.lend()
	const words = 3 * recvDepth
	written := make(chan error, 1)
	go func() {
		for range words {
			if _, err := c.Write([]byte("x")); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	got := 0
	for got < words {
		wc := p.receive()
		if wc.Opcode == ibv.WC_RECV_RDMA_WITH_IMM {
			got++
		} else {
			name, err := parse(p.command(wc.WRID&^recvBit, wc.ByteLen))
			require.NoError(t, err)
			require.Equal(t, getServerFeature, name.opcode)
			if got < maxUnansweredData {
				time.Sleep(50 * time.Millisecond) // time for the client to send too much
			}
			require.NoError(t, p.postRecvs()) // repost the receives of all earlier messages, as valkey-server does
			p.sendCommand(command{opcode: getServerFeature})
		}
		p.addRecv(wc.WRID &^ recvBit)
	}
	assert.NoError(t, <-written)
}

// TestWaitsForReceives checks that a client that posts receives late still gets all data that the server wrote before
// Close, even more than the server has slots and memory for.
func TestWaitsForReceives(t *testing.T) {
	for _, many := range []int{20, 60} {
		waitForReceives(t, many)
	}
}

func waitForReceives(t *testing.T, many int) {
	c, p := meet(t, true, Config{KeepAlive: -1})
	p.lend()
	const words, size = recvDepth, 10_000
	want := make([]byte, words+many*size)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	closed := make(chan error, 1)
	go func() {
		for i := range words {
			_, err := c.Write(want[i : i+1])
			assert.NoError(t, err)
		}
		for i := range many {
			_, err := c.Write(want[words+i*size:][:size])
			assert.NoError(t, err)
		}
		closed <- c.Close()
	}()
	time.Sleep(50 * time.Millisecond)
	for n := uint32(0); n < uint32(len(want)); {
		wc := p.receive()
		n += wc.ImmData().Host()
		p.addRecv(wc.WRID &^ recvBit)
		if p.recvs.Len() == 20 {
			require.NoError(t, p.postRecvs())
		}
	}
	assert.True(t, bytes.Equal(want, p.ring.Bytes()[:len(want)]))
	assert.NoError(t, <-closed)
}

// TestServerAnswers checks that the server's reply to each request contains the request's selection.
func TestServerAnswers(t *testing.T) {
	_, p := meet(t, true, Config{KeepAlive: -1})
	for i := range 3 {
		p.sendCommand(command{opcode: getServerFeature, selected: uint16(i)})
		assert.Equal(t, command{opcode: getServerFeature, selected: uint16(i)}, p.next())
	}
}

// TestKeepAlive checks that each end sends keepalives when it sends nothing else, and accepts those of its peer.
func TestKeepAlive(t *testing.T) {
	for _, server := range []bool{false, true} {
		c, p := meet(t, server, Config{KeepAlive: 5 * time.Millisecond})
		p.sendCommand(command{opcode: keepalive})
		assert.Equal(t, command{opcode: keepalive}, p.next())
		assert.Equal(t, command{opcode: keepalive}, p.next())
		assert.NoError(t, c.Close())
	}
}

// TestManyConnections opens more connections at once than the listener has slots.
func TestManyConnections(t *testing.T) {
	config := &Config{Backend: rdmatest.NewFabric(t, soft.Options{}), Buffer: MinBuffer, Backlog: 4,
		HandshakeTimeout: time.Minute}
	l, err := config.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	var serving, dialing sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				assert.ErrorIs(t, err, net.ErrClosed)
				return
			}
			serving.Go(func() {
				_, err := io.Copy(c, c)
				assert.NoError(t, err)
				assert.NoError(t, c.Close())
			})
		}
	})
	for range 100 {
		dialing.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c, err := config.Dial(ctx, l.Addr().String())
			if !assert.NoError(t, err) {
				return
			}
			word := make([]byte, 3000)
			for range 20 {
				_, err := c.Write(word)
				assert.NoError(t, err)
				_, err = io.ReadFull(c, word)
				assert.NoError(t, err)
			}
			assert.NoError(t, c.Close())
		})
	}
	dialing.Wait()
	assert.NoError(t, l.Close())
	serving.Wait()
}

// TestListenerCloses checks that a listener can be closed while connections wait for Accept.
func TestListenerCloses(t *testing.T) {
	config := &Config{Backend: rdmatest.NewFabric(t, soft.Options{})}
	l, err := config.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	c, err := config.Dial(timeout(t), l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = c.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	assert.NoError(t, c.Close())
	_, err = l.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
	_, err = config.Dial(timeout(t), l.Addr().String())
	assert.ErrorContains(t, err, "no listener")
}
