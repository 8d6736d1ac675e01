// SPDX-License-Identifier: BSD-2-Clause

// Package echo is a client and a server that returns what it receives, as a demonstration of streams.
package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma/stream"
)

// Address appends the default port if address has none.
func Address(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, "18520")
}

const (
	heartbeat = 5 * time.Second // detects a peer that has vanished
	backlog   = 16
)

// Serve runs a server at an address until ctx ends. It calls ready with the address once it listens. It serves up to
// clients connections at once; others wait. A host gets at most three quarters of them; its further connections are
// closed.
func Serve(ctx context.Context, address string, clients int, ready func(address string)) error {
	l, err := (&stream.ListenConfig{Config: stream.Config{Heartbeat: heartbeat}, Backlog: backlog}).Listen(ctx, address)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	free, taken := make(chan struct{}, clients), places.New(clients, 0)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Join(err, l.Close())
		}
		host := hostOf(c)
		if !taken.TryTake(host) {
			<-free
			conns.Go(func() { c.Close() })
			continue
		}
		conns.Go(func() {
			defer func() {
				taken.Give(host)
				<-free
			}()
			end := context.AfterFunc(ctx, func() { c.Close() })
			defer end()
			io.Copy(c, c) // the client detects a failure
			c.Close()
		})
	}
}

// hostOf returns the address of the peer's host, or the zero Addr.
func hostOf(c net.Conn) netip.Addr {
	at, _ := c.RemoteAddr().(stream.Addr)
	return at.AddrPort.Addr()
}

// Result is the result of an echo client.
type Result struct {
	Peer     string  `json:"peer"`
	Sent     int64   `json:"sent"` // bytes
	Returned int64   `json:"returned"`
	Seconds  float64 `json:"seconds"`
}

// WriteText writes a line.
func (r *Result) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d bytes sent, %d returned in %.3f s\n", r.Peer, r.Sent, r.Returned, r.Seconds)
	return err
}

// RunClient sends the input to a server and writes what the server returns, until both end.
func RunClient(ctx context.Context, address string, from io.Reader, to io.Writer) (*Result, error) {
	r, begin := &Result{Peer: address}, time.Now()
	c, err := (&stream.Dialer{Config: stream.Config{Heartbeat: heartbeat}}).Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	end := context.AfterFunc(ctx, func() { c.Close() })
	defer end()
	sent := make(chan error, 1)
	go func() {
		var err error
		r.Sent, err = io.Copy(c, from)
		sent <- errors.Join(err, c.CloseWrite())
	}()
	if r.Returned, err = io.Copy(to, c); err == nil {
		err = <-sent
	}
	if cause := ctx.Err(); cause != nil {
		c.Close()
		return nil, cause
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	if r.Returned != r.Sent {
		return nil, fmt.Errorf("echo: %s: connection closed after %d of %d bytes were returned", address,
			r.Returned, r.Sent)
	}
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}
