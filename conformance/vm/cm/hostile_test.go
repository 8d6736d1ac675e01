// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// hello returns the private data of a stream's handshake. It is independent of the implementation.
func hello(ring uint64, rkey, size uint32) []byte {
	b := []byte{'g', 'o', 'v', 'b', 0, 1, 0, 64}
	b = binary.BigEndian.AppendUint64(b, ring)
	b = binary.BigEndian.AppendUint32(b, rkey)
	return binary.BigEndian.AppendUint32(b, size)
}

// hostile is a stream peer that violates the protocol.
type hostile struct {
	t    *testing.T
	id   *cm.ID
	mr   *rdma.MR
	ring uint64 // address of the stream's ring
	rkey uint32
}

// newHostile connects to a stream.
func newHostile(t *testing.T) (*hostile, *stream.Conn) {
	t.Helper()
	lc := listenConfig(on(stream.Config{Buffer: 8 << 10, Linger: 200 * time.Millisecond}))
	l, err := lc.Listen(context.Background(), address(t, 0).String())
	keep(t, l, err)
	h := &hostile{t: t, id: resolve(t, l.Addr().(stream.Addr).AddrPort)}
	h.mr, err = h.id.RegWrite(make([]byte, 16<<10))
	keep(t, h.mr, err)
	for i := range 8 {
		require.NoError(t, h.id.PostRecv(uint64(i), h.mr.Bytes()[8<<10:][:64], h.mr))
	}
	e, err := h.id.ConnectEvent(withTimeout(t), nil, hello(h.mr.Region().Address, h.mr.RKey(), 8<<10))
	require.NoError(t, err)
	require.Equal(t, "govb", string(e.PrivateData[:4]))
	h.ring, h.rkey = binary.BigEndian.Uint64(e.PrivateData[8:]), binary.BigEndian.Uint32(e.PrivateData[16:])
	c, err := l.AcceptRDMA(withTimeout(t))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return h, c
}

// control sends a control message.
func (h *hostile) control(flags byte, read, handled uint64) {
	b := append(make([]byte, 0, 24), flags, 0, 0, 0, 0, 0, 0, 0)
	h.send(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, read), handled))
}

func (h *hostile) send(b []byte) {
	n := copy(h.mr.Bytes(), b)
	require.NoError(h.t, h.id.PostSend(1, h.mr.Bytes()[:n], h.mr, 0))
}

// write writes n bytes to the ring and claims to have written claimed bytes.
func (h *hostile) write(at uint64, n int, claimed uint32) {
	batch, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(h.t, err)
	defer batch.Close()
	batch.WriteImm(1, at, h.rkey, ibv.ToBE32(claimed)).Add(h.mr.SGE(0, uint32(n)))
	_, err = h.id.QP().PostSend(batch)
	require.NoError(h.t, err)
}

// TestStreamHostilePeer checks that protocol violations of a peer have no worse effect than errors of reads and writes.
func TestStreamHostilePeer(t *testing.T) {
	for name, c := range map[string]struct {
		do  func(*hostile)
		err syscall.Errno
	}{
		"claims to have written more than the ring holds": {func(h *hostile) { h.write(h.ring, 8, 8<<10+1) },
			syscall.EPROTO},
		"overruns the ring in small pieces": {func(h *hostile) {
			for range 9 {
				h.write(h.ring, 8, 1<<10)
			}
		}, syscall.EPROTO},
		"has read unsent data":         {func(h *hostile) { h.control(0, 1<<40, 0) }, syscall.EPROTO},
		"has received unsent messages": {func(h *hostile) { h.control(0, 0, 100) }, syscall.EPROTO},
		"sends a short message":        {func(h *hostile) { h.send([]byte("hello")) }, syscall.EPROTO},
		"sends an oversized message":   {func(h *hostile) { h.send(make([]byte, 100)) }, 0},
		"uses unknown flags":           {func(h *hostile) { h.control(0x80, 0, 0) }, syscall.EPROTO},
		"writes after half-closing": {func(h *hostile) {
			h.control(1, 0, 0)
			h.write(h.ring, 8, 8)
		}, syscall.EPROTO},
		"writes outside of the ring": {func(h *hostile) { h.write(h.ring+1<<20, 8, 8) }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			h, conn := newHostile(t)
			require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			c.do(h)
			time.Sleep(50 * time.Millisecond)
			_, err := io.Copy(io.Discard, conn)
			if name != "writes after half-closing" { // the reader sees the end of the stream
				assert.Error(t, err)
				if c.err != 0 {
					assert.ErrorIs(t, err, c.err)
				}
			}
			for err = nil; err == nil; { // the last message may be in flight
				_, err = conn.Write([]byte("x"))
			}
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			if c.err != 0 {
				assert.ErrorIs(t, err, c.err)
			}
			t.Log(err)
			assert.NoError(t, conn.Close())
		})
	}
}

// TestHostileHandshake checks that an invalid hello is rejected with a reason, and that the listener continues.
func TestHostileHandshake(t *testing.T) {
	l, err := listenConfig(on(stream.Config{})).Listen(context.Background(), address(t, 0).String())
	keep(t, l, err)
	for name, bad := range map[string][]byte{
		"nothing":               nil,
		"another protocol":      []byte("GET / HTTP/1.1"),
		"another version":       append([]byte{'g', 'o', 'v', 'b', 0, 9}, hello(1, 2, 1<<20)[6:]...),
		"a ring without memory": hello(1, 2, 0),
		"a ring of 4 GiB":       hello(1, 2, 1<<32-1),
	} {
		err := resolve(t, l.Addr().(stream.Addr).AddrPort).Connect(withTimeout(t), nil, bad)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED, name)
		var e *cm.EventError
		if assert.ErrorAs(t, err, &e, name) {
			assert.Contains(t, string(e.Event.PrivateData), "protocol", name)
		}
	}
	c, err := dialer(on(stream.Config{})).Dial(withTimeout(t), l.Addr().String())
	require.NoError(t, err)
	assert.NoError(t, c.Close())
}

// TestDialHostileListener dials listeners that reply with garbage or not at all.
func TestDialHostileListener(t *testing.T) {
	unchanged(t)
	l := listen(t, 7991)
	served := make(chan error, 1)
	serve := func(answer func(*cm.ID) error) {
		go func() {
			id, _, err := l.GetRequest(withTimeout(t))
			if err == nil {
				_, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
			}
			if err == nil {
				err = answer(id)
			}
			if err == nil {
				err = id.Close()
			}
			served <- err
		}()
	}
	serve(func(id *cm.ID) error { return id.Accept(withTimeout(t), nil, []byte("nonsense")) })
	_, err := dialer(on(stream.Config{})).Dial(withTimeout(t), address(t, 7991).String())
	assert.ErrorContains(t, err, "does not use the stream protocol")
	require.NoError(t, <-served)
	over := make(chan struct{})
	serve(func(*cm.ID) error { <-over; return nil })
	start := time.Now()
	_, err = dialer(on(stream.Config{HandshakeTimeout: 300 * time.Millisecond})).Dial(context.Background(),
		address(t, 7991).String())
	close(over)
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	var timeout net.Error
	if assert.ErrorAs(t, err, &timeout) {
		assert.True(t, timeout.Timeout())
	}
	assert.Less(t, time.Since(start), 3*time.Second, "HandshakeTimeout bounds each step")
	require.NoError(t, <-served)
	require.NoError(t, l.Close())
}

// TestContextsEndEachStep cancels Dial in each step and checks for leaks.
func TestContextsEndEachStep(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		l, err := listenConfig(on(stream.Config{Protocol: protocol})).Listen(withTimeout(t), address(t, 0).String())
		require.NoError(t, err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		failed := 0
		for after := time.Duration(0); after < 40*time.Millisecond; after += time.Millisecond / 2 {
			ctx, cancel := context.WithTimeout(context.Background(), after)
			c, err := dialer(on(stream.Config{Protocol: protocol})).Dial(ctx, l.Addr().String())
			if err == nil {
				c.Close()
			} else {
				failed++
				assert.True(t, ctx.Err() != nil, "%v", err)
			}
			cancel()
		}
		assert.Positive(t, failed)
		t.Log(failed, "of 80 were canceled")
		require.NoError(t, l.Close())
	})
}

// TestListenerClosesWhileOthersConnect closes a listener during handshakes and checks for leaks.
func TestListenerClosesWhileOthersConnect(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		for round := range 20 {
			config := on(stream.Config{Protocol: protocol, Buffer: 8 << 10, Linger: 100 * time.Millisecond})
			l, err := listenConfig(config).Listen(context.Background(), address(t, 0).String())
			require.NoError(t, err)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					d := dialer(on(stream.Config{Protocol: protocol, Buffer: 8 << 10, Linger: 100 * time.Millisecond,
						HandshakeTimeout: 2 * time.Second}))
					c, err := d.Dial(context.Background(), l.Addr().String())
					if err == nil {
						c.Close()
					}
				})
			}
			time.Sleep(time.Duration(round) * 2 * time.Millisecond)
			assert.NoError(t, l.Close())
			all.Wait()
		}
	})
}

// TestCloseDuringReadsAndWrites closes a working or failed connection from several goroutines while others read and
// write.
func TestCloseDuringReadsAndWrites(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		for round := range 40 {
			a, b, err := connect(t, stream.Config{Protocol: protocol, Buffer: 256 << 10,
				Linger: 100 * time.Millisecond})
			require.NoError(t, err)
			var all sync.WaitGroup
			for _, c := range []*stream.Conn{a, b} {
				all.Go(func() { io.Copy(io.Discard, c) })
				all.Go(func() {
					for p := make([]byte, 100<<10); ; {
						if _, err := c.Write(p); err != nil {
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(round) * time.Millisecond / 2)
			var ok, again int
			var mu sync.Mutex
			for range 3 {
				for _, c := range []*stream.Conn{a, b}[:1+round%2] {
					all.Go(func() {
						err := c.Close()
						mu.Lock()
						defer mu.Unlock()
						var lost *stream.UndeliveredError // data of a Write
						if err == nil || errors.As(err, &lost) {
							ok++
						} else if assert.ErrorIs(t, err, net.ErrClosed) {
							again++
						}
					})
				}
			}
			all.Go(func() {
				time.Sleep(5 * time.Millisecond)
				a.SetDeadline(time.Now())
			})
			if round%2 == 0 {
				b.Read(make([]byte, 1))
				time.Sleep(10 * time.Millisecond)
				b.Close()
			}
			all.Wait()
			assert.Equal(t, 1+round%2, ok)
			assert.Equal(t, 2*(1+round%2), again)
		}
	})
}

// TestCloseWaitsForCopies checks that the rings stay mapped while Read or Write copies data.
func TestCloseWaitsForCopies(t *testing.T) {
	const size = 32 << 20
	a, b := pipe(t, stream.Config{Buffer: size, Linger: time.Millisecond})
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	_, err := a.Write(sent)
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = b.Read(one)
	require.NoError(t, err)
	time.Sleep(500 * time.Millisecond) // until everything has arrived
	got := make(chan int, 1)
	go func() {
		n, _ := b.Read(sent)
		got <- n
	}()
	time.Sleep(time.Millisecond)
	assert.NoError(t, b.Close())
	t.Log(<-got, "bytes were read")
}

// TestDisconnectAfterPeer checks that Disconnect does not wait for an event that was already delivered.
func TestDisconnectAfterPeer(t *testing.T) {
	l := listen(t, 7992)
	serve := func() error {
		id, _, err := l.GetRequest(withTimeout(t))
		if err != nil {
			return err
		}
		defer id.Close()
		if _, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{}); err != nil {
			return err
		}
		if err = id.Accept(withTimeout(t), nil, nil); err != nil {
			return err
		}
		return id.Disconnect(withTimeout(t))
	}
	served := make(chan error, 1)
	go func() { served <- serve() }()
	id := resolve(t, address(t, 7992))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	e, err := id.Event(withTimeout(t))
	require.NoError(t, err)
	require.Equal(t, rdmacm.CM_EVENT_DISCONNECTED, e.Type)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	assert.NoError(t, id.Disconnect(ctx))
	require.NoError(t, <-served)
}

// TestClosedID checks that every method of a closed ID returns an error that says so.
func TestClosedID(t *testing.T) {
	testbed.Kernel(t)
	id, err := createID(rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, id.Close())
	for name, err := range map[string]error{
		"Bind": id.Bind(address(t, 0)), "ResolveAddr": id.ResolveAddr(withTimeout(t), netip.AddrPort{}, address(t, 0),
			time.Second),
		"ResolveRoute": id.ResolveRoute(withTimeout(t), time.Second), "Listen": id.Listen(1),
		"Connect": id.Connect(withTimeout(t), nil, nil),
		"Accept":  id.Accept(withTimeout(t), nil, nil), "Reject": id.Reject(nil), "Disconnect": id.Disconnect(withTimeout(t)),
		"Establish": id.Establish(),
		"Migrate":   id.Migrate(nil), "SetToS": id.SetToS(1), "Notify": id.Notify(ibv.EVENT_COMM_EST),
		"WriteEvent": id.WriteEvent(0, 1),
		"PostSend":   id.PostSend(1, nil, nil, ibv.SEND_INLINE), "Leave": id.Leave(address(t, 0)),
	} {
		assert.ErrorIs(t, err, rdma.ErrClosed, name)
	}
	assert.Equal(t, rdmacm.PS_TCP, id.PortSpace())
	assert.Zero(t, id.PortNum())
	assert.False(t, id.LocalAddr().IsValid())
	require.NoError(t, id.Close(), "again")
}
