// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// onlyReader and onlyWriter hide WriteTo and ReadFrom from io.Copy.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// TestSoftGather: WriteBuffers sends many small slices as one message and removes them, like net.Buffers.
func TestSoftGather(t *testing.T) {
	for _, size := range []int{3, 40} { // inline, and not
		a, b := softPipe(t, Config{})
		text := random(20 * size)
		var v net.Buffers
		for i := range 20 {
			v = append(v, text[i*size:(i+1)*size], nil)
		}
		before := a.link.Messages
		n, err := a.WriteBuffers(&v)
		require.NoError(t, err)
		assert.EqualValues(t, len(text), n)
		assert.Empty(t, v)
		assert.EqualValues(t, before+1, a.link.Messages)
		got := make([]byte, len(text))
		_, err = io.ReadFull(b, got)
		require.NoError(t, err)
		assert.Equal(t, text, got)
	}
}

// TestSoftGatherStops: after a deadline, unsent slices remain and can be sent later.
func TestSoftGatherStops(t *testing.T) {
	a, b := softPipe(t, Config{Buffer: protocol.MinBuffer})
	text := random(3 * protocol.MinBuffer)
	v, sent := net.Buffers{text[:100], text[100:5000], nil, text[5000:]}, a.link.Messages
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { // a deadline that is set before may end before the first byte is sent
		assert.Eventually(t, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.link.Messages > sent
		}, tooLong, time.Millisecond)
		assert.NoError(t, a.SetWriteDeadline(time.Now()))
	})
	n, err := a.WriteBuffers(&v)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Positive(t, n)
	assert.Equal(t, text[n:], bytes.Join(v, nil))
	writing.Wait()
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	go func() {
		_, err := a.WriteBuffers(&v)
		assert.NoError(t, err)
		assert.NoError(t, a.CloseWrite())
	}()
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(text, got))
}

// senders are the ways to send. Each changes its argument afterwards.
var senders = map[string]func(c *Conn, mr *rdma.MR, p []byte) error{
	"write": func(c *Conn, _ *rdma.MR, p []byte) error { _, err := c.Write(p); return err },
	"gather": func(c *Conn, _ *rdma.MR, p []byte) error {
		_, err := c.WriteBuffers(&net.Buffers{p[:len(p)/3], p[len(p)/3:]})
		return err
	},
	"lent": func(c *Conn, _ *rdma.MR, p []byte) error { _, err := c.WriteLent(p); return err },
	"lend": func(c *Conn, _ *rdma.MR, p []byte) error {
		first, err := c.Lend(p[:len(p)/2])
		if err != nil {
			return err
		}
		second, err := c.Lend(p[len(p)/2:])
		if err != nil {
			return err
		}
		second.Wait()
		first.Wait()
		first.Wait()
		return nil
	},
	"region": func(c *Conn, mr *rdma.MR, p []byte) error {
		copy(mr.Bytes()[5:], p)
		_, err := c.WriteMR(mr, 5, len(p))
		clear(mr.Bytes())
		return err
	},
	"from": func(c *Conn, _ *rdma.MR, p []byte) error {
		n, err := io.Copy(c, onlyReader{bytes.NewReader(p)})
		if err == nil && n != int64(len(p)) {
			err = io.ErrShortWrite
		}
		return err
	},
}

// TestSoftLendsDeliver: with each way of sending and receiving, the bytes arrive unchanged although the sender
// overwrites its memory as soon as it may.
func TestSoftLendsDeliver(t *testing.T) {
	for name, config := range map[string]Config{
		"small": {Buffer: protocol.MinBuffer}, "stream": {}, "rsocket": {Protocol: RSocket, Buffer: 256 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := softPipe(t, config)
			pd, err := a.PD()
			require.NoError(t, err)
			mr, err := pd.RegMR(make([]byte, 1<<20), 0)
			require.NoError(t, err)
			defer func() { assert.NoError(t, mr.Close()) }()
			want := random(6 << 20)
			go func() {
				p := make([]byte, 512<<10)
				for rest := want; len(rest) > 0; {
					for name, send := range senders {
						n := copy(p[:1+rand.IntN(len(p))], rest)
						if err := send(a, mr, p[:n]); !assert.NoError(t, err, name) {
							return
						}
						rest = rest[n:]
						clear(p)
					}
				}
				assert.NoError(t, a.CloseWrite())
			}()
			var got bytes.Buffer
			for i := 0; got.Len() < len(want)/2; i++ {
				if i%2 == 0 {
					_, err = io.CopyN(&got, b, 1000)
				} else {
					_, err = b.ReadLent(func(p []byte) (int, error) {
						return got.Write(p[:(len(p)+1)/2])
					})
				}
				require.NoError(t, err)
			}
			n, err := io.Copy(onlyWriter{&got}, b)
			require.NoError(t, err)
			assert.Positive(t, n)
			assert.True(t, bytes.Equal(want, got.Bytes()), "%d bytes of %d", got.Len(), len(want))
		})
	}
}

// TestSoftLentRegisteredOnce: lent memory is registered once and stays registered until the last connection is closed.
func TestSoftLentRegisteredOnce(t *testing.T) {
	a, b := softPipe(t, Config{})
	go io.Copy(io.Discard, b)
	p := random(100_000)
	for range 5 {
		_, err := a.WriteLent(p)
		require.NoError(t, err)
	}
	stats := a.shared.cache.Stats()
	assert.EqualValues(t, 1, stats.Misses)
	assert.EqualValues(t, 4, stats.Hits)
	assert.Zero(t, stats.Leases)
	_, err := a.Write(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestSoftWriteMRRefuses: WriteMR rejects a region of another domain, and bytes outside the region.
func TestSoftWriteMRRefuses(t *testing.T) {
	a, _ := softPipe(t, Config{})
	d, err := a.id.Device()
	require.NoError(t, err)
	own, err := d.AllocPD()
	require.NoError(t, err)
	strange, err := own.RegMR(make([]byte, 8), 0)
	require.NoError(t, err)
	_, err = a.WriteMR(strange, 0, 8)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "Conn.PD")
	require.NoError(t, rdma.CloseAll(nil, strange, own))
	pd, err := a.PD()
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 8), 0)
	require.NoError(t, err)
	for _, at := range []struct {
		offset uint64
		n      int
	}{{0, 9}, {9, 0}, {8, 1}, {1 << 63, 1}, {0, -1}} {
		_, err = a.WriteMR(mr, at.offset, at.n)
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", at)
	}
	_, err = a.WriteMR(mr, 8, 0)
	assert.NoError(t, err)
	assert.NoError(t, mr.Close())
}

// TestSoftCloseDuringLends: Close waits neither for a function of ReadLent, whose memory stays valid, nor for a reader
// of ReadFrom that blocks.
func TestSoftCloseDuringLends(t *testing.T) {
	a, b := softPipe(t, Config{Linger: 5 * time.Second})
	text := random(64 << 10)
	_, err := a.Write(text)
	require.NoError(t, err)
	looks, resume := make(chan struct{}), make(chan struct{})
	looked := make(chan error, 1)
	go func() {
		_, err := b.ReadLent(func(p []byte) (int, error) {
			close(looks)
			<-resume
			if !bytes.Equal(p, text[:len(p)]) {
				return 0, errors.New("read different data")
			}
			return len(p), nil
		})
		looked <- err
	}()
	<-looks
	r, w := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := b.ReadFrom(r)
		copied <- err
	}()
	_, err = w.Write(text) // sent from the memory that it was received in
	require.NoError(t, err)
	_, err = io.ReadFull(a, make([]byte, len(text)))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.ErrorIs(t, a.Close(), syscall.EPIPE, "b has not consumed the data")
	close(resume)
	assert.NoError(t, <-looked)
	_, err = b.ReadLent(func([]byte) (int, error) { return 0, nil })
	assert.ErrorIs(t, err, net.ErrClosed)
	w.Write([]byte("more"))
	assert.ErrorIs(t, <-copied, net.ErrClosed)
}

// TestSoftCloseDuringLend: the function of ReadLent may close the connection.
func TestSoftCloseDuringLend(t *testing.T) {
	a, b := softPipe(t, Config{})
	_, err := a.Write([]byte("some"))
	require.NoError(t, err)
	n, err := b.ReadLent(func(p []byte) (int, error) {
		err := b.Close()
		return copy(make([]byte, 2), p), err
	})
	assert.NoError(t, err)
	assert.Equal(t, 2, n)
}

// TestSoftForgottenLend: Close releases lends without a Wait, and a later Wait does nothing.
func TestSoftForgottenLend(t *testing.T) {
	a, b := softPipe(t, Config{})
	lent, err := a.Lend(random(32 << 10))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	lent.Wait()
	_, err = a.Lend(make([]byte, 32<<10))
	assert.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, b.Close())
}

// TestSoftLendsOfWrongLength: consuming more bytes than use received is an error.
func TestSoftLendsOfWrongLength(t *testing.T) {
	a, b := softPipe(t, Config{})
	_, err := a.Write([]byte("some"))
	require.NoError(t, err)
	for _, n := range []int{-1, 5} {
		_, err = b.ReadLent(func([]byte) (int, error) { return n, nil })
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = b.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, nil }))
	assert.ErrorIs(t, err, io.ErrShortWrite)
	var rest strings.Builder
	require.NoError(t, a.CloseWrite())
	_, err = b.WriteTo(&rest)
	assert.NoError(t, err)
	assert.Equal(t, "ome", rest.String())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSoftLentReturned: a deadline and Close return lent memory even if the peer reads or acknowledges nothing. After
// that, the device no longer uses it.
func TestSoftLentReturned(t *testing.T) {
	closing := func(c *Conn) { c.Close() }
	deadline := func(c *Conn) { c.SetWriteDeadline(time.Now()) }
	reset := func(c *Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(syscall.ECONNRESET)
	}
	for name, test := range map[string]struct {
		cut  bool // the peer acknowledges nothing
		end  func(c *Conn)
		want error
	}{
		"deadline":           {false, deadline, os.ErrDeadlineExceeded},
		"Close":              {false, closing, net.ErrClosed},
		"cut, deadline":      {true, deadline, os.ErrDeadlineExceeded},
		"cut, Close":         {true, closing, net.ErrClosed},
		"cut, peer is reset": {true, reset, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, _ := softPipe(t, Config{Buffer: 256 << 10, AckTimeout: 31, Linger: 50 * time.Millisecond})
			p := random(128 << 10)
			_, err := a.WriteLent(p)
			require.NoError(t, err)
			if test.cut {
				a.config.Backend.(*soft.Fabric).SetLink("soft0", false)
			} else {
				p = random(1 << 20)
			}
			type result struct {
				n   int
				err error
			}
			wrote := make(chan result, 1)
			go func() {
				n, err := a.WriteLent(p)
				wrote <- result{n, err}
			}()
			require.Eventually(t, func() bool {
				a.mu.Lock()
				defer a.mu.Unlock()
				return len(a.lending.all) > 0
			}, 10*time.Second, time.Millisecond)
			select {
			case r := <-wrote:
				t.Fatal("WriteLent did not wait:", r.n, r.err)
			case <-time.After(20 * time.Millisecond):
			}
			began := time.Now()
			test.end(a)
			r := <-wrote
			assert.Less(t, time.Since(began), lendTimeout+8*time.Second)
			assert.ErrorIs(t, r.err, test.want)
			a.mu.Lock()
			assert.Empty(t, a.lending.all)
			a.mu.Unlock()
		})
	}
}
