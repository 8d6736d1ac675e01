// SPDX-License-Identifier: BSD-2-Clause

// Package streams measures stream connections on software devices. It also runs in trees of other commits (make bench
// WHAT=soft BASE=COMMIT), so it uses only stable API.
package streams

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// pair returns both ends of a stream on software devices.
func pair(b *testing.B) (local, remote *stream.Conn) {
	l, config := listener(b, stream.DefaultBuffer)
	local, remote = connect(b, l, config)
	b.Cleanup(func() { local.Close() })
	b.Cleanup(func() { remote.Close() })
	return local, remote
}

func listener(b *testing.B, buffer int) (*stream.Listener, stream.Config) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { fabric.Close() })
	config := stream.Config{Backend: fabric, Buffer: buffer}
	l, err := (&stream.ListenConfig{Config: config}).Listen(context.Background(), "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	return l, config
}

func connect(b *testing.B, l *stream.Listener, config stream.Config) (local, remote *stream.Conn) {
	accepted := make(chan *stream.Conn, 1)
	go func() {
		c, err := l.AcceptRDMA(context.Background())
		if err != nil {
			b.Error(err)
		}
		accepted <- c
	}()
	local, err := (&stream.Dialer{Config: config}).Dial(context.Background(), l.Addr().String())
	require.NoError(b, err)
	return local, <-accepted
}

// BenchmarkWrite writes 1 MiB to a stream whose other end is read.
func BenchmarkWrite(b *testing.B) {
	near, far := pair(b)
	go io.Copy(io.Discard, struct{ io.Reader }{far})
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := near.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEcho sends 64 bytes to the other end of a stream and back.
func BenchmarkEcho(b *testing.B) {
	near, far := pair(b)
	go io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{far}, make([]byte, 64))
	p := make([]byte, 64)
	for b.Loop() {
		if _, err := near.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect dials, accepts and closes a stream at both ends.
func BenchmarkConnect(b *testing.B) {
	l, config := listener(b, 64<<10)
	for b.Loop() {
		near, far := connect(b, l, config)
		done := make(chan struct{})
		go func() {
			far.Close()
			close(done)
		}()
		near.Close()
		<-done
	}
}

// BenchmarkLend transfers 64 KiB or 1 MiB with Write and Read, which copy, with WriteLent and ReadLent, and with
// io.Copy at either end.
func BenchmarkLend(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		source := bytes.NewReader(make([]byte, size))
		for name, variant := range map[string]struct {
			write func(c *stream.Conn, p []byte) error
			read  func(c *stream.Conn)
		}{
			"copied":      {func(c *stream.Conn, p []byte) error { _, err := c.Write(p); return err }, readAll},
			"lent":        {func(c *stream.Conn, p []byte) error { _, err := c.WriteLent(p); return err }, look},
			"lent by two": {lendBy(2), look},
			"lent by the writer": {func(c *stream.Conn, p []byte) error { _, err := c.WriteLent(p); return err },
				readAll},
			"lent to the reader": {func(c *stream.Conn, p []byte) error { _, err := c.Write(p); return err }, look},
			"io.Copy copied": {func(c *stream.Conn, p []byte) error {
				source.Reset(p)
				_, err := io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{source}, make([]byte, 128<<10))
				return err
			}, readAll},
			"io.Copy": {func(c *stream.Conn, p []byte) error {
				source.Reset(p)
				_, err := io.Copy(c, struct{ io.Reader }{source})
				return err
			}, look},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				near, far := pair(b)
				go variant.read(far)
				p := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					if err := variant.write(near, p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// lendBy lends a number of buffers in turn.
func lendBy(buffers int) func(c *stream.Conn, p []byte) error {
	lent := make([]*stream.Lent, buffers)
	i := 0
	return func(c *stream.Conn, p []byte) (err error) {
		if lent[i] != nil {
			lent[i].Wait()
		}
		lent[i], err = c.Lend(p)
		i = (i + 1) % buffers
		return err
	}
}

func readAll(c *stream.Conn) {
	io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<20))
}

func look(c *stream.Conn) {
	for err := error(nil); err == nil; {
		_, err = c.ReadLent(func(p []byte) (int, error) { return len(p), nil })
	}
}
