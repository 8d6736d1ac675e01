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

// The baseline is the same test over TCP, between the same two ends, before the one over RDMA. The server listens at a
// port of its own; for each size the client makes a connection, which begins with what both have said on their link.
// perftest has nothing of the kind, so both ends need to be goverbs: they say so behind the end of their version, where
// perftest does not look.

const (
	brand      = "goverbs" // behind the version's NUL
	asksForTCP = 't'       // behind that
	tokenBytes = 16        // of each end
	tcpLimit   = time.Second
	tcpGrace   = 5 * time.Second
)

// branded is a version with the mark of this program.
func (o *Options) branded(version string) []byte {
	b := make([]byte, 16)
	n := copy(b, version) + 1
	n += copy(b[n:], brand)
	if o.TCP {
		b[n] = asksForTCP
	}
	return b
}

// brandOf says if the peer is goverbs, and asks for a baseline.
func brandOf(rest string) (ours, asks bool) {
	n := len(brand)
	return len(rest) > n && rest[:n] == brand, len(rest) > n && rest[:n] == brand && rest[n] == asksForTCP
}

// baseline is a test over TCP.
type baseline struct {
	*Options
	ctx   context.Context
	token []byte // of both ends
	where string // of the server
	wait  net.Listener
}

// meetTCP has both ends agree where the baseline is measured.
func (o *Options) meetTCP(ctx context.Context, l link, own netip.Addr) (b *baseline, err error) {
	b = &baseline{Options: o, ctx: ctx}
	mine, theirs := make([]byte, tokenBytes), make([]byte, tokenBytes)
	if _, err := rand.Read(mine); err != nil {
		return nil, err
	}
	if err := swap(l, o.client(), mine, theirs); err != nil {
		return nil, fmt.Errorf("exchange of tokens: %w", err)
	}
	var port, given [8]byte
	if o.client() {
		b.token = append(mine, theirs...)
	} else {
		b.token = append(theirs, mine...)
		var config net.ListenConfig
		if b.wait, err = config.Listen(ctx, "tcp", netip.AddrPortFrom(own, 0).String()); err == nil {
			binary.BigEndian.PutUint64(port[:], uint64(b.wait.Addr().(*net.TCPAddr).Port))
		}
	}
	if err := errors.Join(err, swap(l, o.client(), port[:], given[:])); err != nil {
		return nil, errors.Join(fmt.Errorf("exchange of ports: %w", err), b.Close())
	}
	if o.client() {
		n := binary.BigEndian.Uint64(given[:])
		if n == 0 || n > 65535 {
			return nil, fmt.Errorf("the peer says that it waits for TCP at port %d", n)
		}
		b.where = net.JoinHostPort(o.Peer, strconv.Itoa(int(n)))
	}
	return b, nil
}

// Close ends what waits for connections.
func (b *baseline) Close() error {
	if b.wait == nil {
		return nil
	}
	return b.wait.Close()
}

// rows measures all sizes; on the server there are none. An error ends the baseline, not the test.
func (b *baseline) rows() (rows []*Row, err error) {
	for _, size := range b.Sizes {
		row, err := b.one(size)
		if err != nil {
			return rows, fmt.Errorf("TCP, messages of %d bytes: %w", size, err)
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

// limit is how long a size takes at most.
func (b *baseline) limit() time.Duration {
	if b.Duration > 0 {
		return b.Duration
	}
	return tcpLimit
}

// connect makes the connection of a size. The server takes none but the client's.
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
		said := make([]byte, len(b.token))
		if err = c.SetDeadline(time.Now().Add(time.Second)); err == nil {
			_, err = io.ReadFull(c, said)
		}
		if err == nil && subtle.ConstantTimeCompare(said, b.token) == 1 {
			return c, nil
		}
		_ = c.Close() // somebody else
	}
}

// tcpRows measures the baseline if one of the ends asks for it, and says why there is none.
func (r *rig) tcpRows(ctx context.Context, l link, t terms) (rows []*Row, why string, err error) {
	if !r.o.TCP && !t.tcp {
		return nil, "", nil
	}
	if !t.goverbs {
		return nil, "no baseline over TCP: the peer is perftest, and both ends need to be goverbs perf for it", nil
	}
	b, err := r.o.meetTCP(ctx, l, l.local())
	if err != nil {
		return nil, "", err
	}
	rows, bad := b.rows()
	_ = b.Close()
	if ctx.Err() != nil {
		return nil, "", context.Cause(ctx)
	}
	if bad != nil {
		rows, why = nil, "no baseline: "+bad.Error()
	}
	return rows, why, swap(l, r.o.client(), make([]byte, tokenBytes), make([]byte, tokenBytes))
}
