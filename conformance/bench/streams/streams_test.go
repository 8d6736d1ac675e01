// SPDX-License-Identifier: BSD-2-Clause

// Package streams measures stream connections on software devices. It runs in trees of other commits as well (make
// bench-soft-beside), so it uses what streams have had for long.
package streams

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// stream gives both ends of a stream on software devices.
func stream(b *testing.B) (near, far *cm.Conn) {
	l, config := listener(b, cm.DefaultBuffer)
	near, far = connect(b, l, config)
	b.Cleanup(func() { near.Close() })
	b.Cleanup(func() { far.Close() })
	return near, far
}

func listener(b *testing.B, buffer int) (*cm.Listener, *cm.Config) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { fabric.Close() })
	config := &cm.Config{Backend: fabric, Buffer: buffer}
	l, err := config.Listen(context.Background(), "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	return l, config
}

func connect(b *testing.B, l *cm.Listener, config *cm.Config) (near, far *cm.Conn) {
	accepted := make(chan *cm.Conn, 1)
	go func() {
		c, err := l.AcceptRDMA(context.Background())
		if err != nil {
			b.Error(err)
		}
		accepted <- c
	}()
	near, err := config.Dial(context.Background(), l.Addr().String())
	require.NoError(b, err)
	return near, <-accepted
}

// BenchmarkWrite is a write of 1 MiB to a stream whose other end is read.
func BenchmarkWrite(b *testing.B) {
	near, far := stream(b)
	go io.Copy(io.Discard, struct{ io.Reader }{far})
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := near.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEcho is 64 bytes to the other end of a stream and back.
func BenchmarkEcho(b *testing.B) {
	near, far := stream(b)
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

// BenchmarkConnect is a stream that is dialled, accepted and closed at both ends.
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
