// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// The baseline is the same test over TCP between the same ends, before the RDMA test. The server listens on another
// port; the client opens a connection for each size and begins with the tokens that both ends exchanged on their link.
// perftest has no such test, so both ends must be goverbs. They announce that after the NUL of their version string,
// which perftest ignores.

const (
	goverbsMark = "goverbs" // after the NUL of the version
	requestsTCP = 't'       // after the mark
	tokenBytes  = 16        // from each end
	tcpLimit    = time.Second
	tcpGrace    = 5 * time.Second
)

// markedVersion returns a version string that identifies goverbs.
func (o *Options) markedVersion(version string) []byte {
	b := make([]byte, 16)
	n := copy(b, version) + 1
	n += copy(b[n:], goverbsMark)
	if o.TCP {
		b[n] = requestsTCP
	}
	return b
}

// parseMark reports whether the peer is goverbs, and whether it requests a baseline.
func parseMark(rest string) (ours, asks bool) {
	n := len(goverbsMark)
	return len(rest) > n && rest[:n] == goverbsMark, len(rest) > n && rest[:n] == goverbsMark && rest[n] == requestsTCP
}

// baseline is a test over TCP.
type baseline struct {
	*Options
	ctx   context.Context
	token []byte // of both ends
	where string // address of the server
	wait  net.Listener
}

// prepareBaseline exchanges tokens and the port of the baseline.
func (o *Options) prepareBaseline(ctx context.Context, l link, local netip.Addr) (b *baseline, err error) {
	b = &baseline{Options: o, ctx: ctx}
	ours, remote := make([]byte, tokenBytes), make([]byte, tokenBytes)
	if _, err := rand.Read(ours); err != nil {
		return nil, err
	}
	if err := swap(l, o.client(), ours, remote); err != nil {
		return nil, fmt.Errorf("exchange of tokens: %w", err)
	}
	var port, given [8]byte
	if o.client() {
		b.token = append(ours, remote...)
	} else {
		b.token = append(remote, ours...)
		var config net.ListenConfig
		if b.wait, err = config.Listen(ctx, "tcp", netip.AddrPortFrom(local, 0).String()); err == nil {
			binary.BigEndian.PutUint64(port[:], uint64(b.wait.Addr().(*net.TCPAddr).Port))
		}
	}
	if err := errors.Join(err, swap(l, o.client(), port[:], given[:])); err != nil {
		return nil, errors.Join(fmt.Errorf("exchange of ports: %w", err), b.Close())
	}
	if o.client() {
		n := binary.BigEndian.Uint64(given[:])
		if n == 0 || n > 65535 {
			return nil, fmt.Errorf("invalid TCP port %d from the peer", n)
		}
		b.where = net.JoinHostPort(o.Peer, strconv.Itoa(int(n)))
	}
	return b, nil
}

// Close closes the listener.
func (b *baseline) Close() error {
	if b.wait == nil {
		return nil
	}
	return b.wait.Close()
}

// rows measures all sizes. On the server it returns no rows. An error ends the baseline, not the test.
func (b *baseline) rows() (rows []*Row, err error) {
	for _, size := range b.Sizes {
		row, err := b.one(size)
		if err != nil {
			return rows, fmt.Errorf("TCP, message size %d: %w", size, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (b *baseline) one(size int) (*Row, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(b.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := c.SetDeadline(time.Now().Add(b.limit() + tcpGrace)); err != nil {
		return nil, err
	}
	t := &stream{baseline: b, c: c, size: size, message: make([]byte, size)}
	if b.client() {
		return t.measure()
	}
	return nil, t.serve()
}

// limit returns the time limit for a size.
func (b *baseline) limit() time.Duration {
	if b.Duration > 0 {
		return b.Duration
	}
	return tcpLimit
}

// connect opens the connection for a size. The server accepts only the client.
func (b *baseline) connect() (*net.TCPConn, error) {
	if b.client() {
		d := net.Dialer{Timeout: tcpGrace}
		c, err := d.DialContext(b.ctx, "tcp", b.where)
		if err != nil {
			return nil, err
		}
		if _, err := c.Write(b.token); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c.(*net.TCPConn), nil
	}
	l := b.wait.(*net.TCPListener)
	if err := l.SetDeadline(time.Now().Add(b.limit() + 2*tcpGrace)); err != nil {
		return nil, err
	}
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		token := make([]byte, len(b.token))
		if err = c.SetDeadline(time.Now().Add(time.Second)); err == nil {
			_, err = io.ReadFull(c, token)
		}
		if err == nil && subtle.ConstantTimeCompare(token, b.token) == 1 {
			return c, nil
		}
		_ = c.Close() // not the client
	}
}

// tcpRows measures the baseline if either end requests it. Otherwise it returns the reason.
func (r *session) tcpRows(ctx context.Context, l link, t terms) (rows []*Row, reason string, err error) {
	if !r.o.TCP && !t.tcp {
		return nil, "", nil
	}
	if !t.goverbs {
		return nil, "no TCP baseline: the peer is perftest; use goverbs perf on both ends", nil
	}
	b, err := r.o.prepareBaseline(ctx, l, l.local())
	if err != nil {
		return nil, "", err
	}
	rows, bad := b.rows()
	_ = b.Close()
	if ctx.Err() != nil {
		return nil, "", context.Cause(ctx)
	}
	if bad != nil {
		rows, reason = nil, "no TCP baseline: "+bad.Error()
	}
	return rows, reason, swap(l, r.o.client(), make([]byte, tokenBytes), make([]byte, tokenBytes))
}
