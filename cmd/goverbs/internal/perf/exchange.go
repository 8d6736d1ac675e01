// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// link is the connection over which two ends exchange parameters. As in perftest, the client sends first, and an end
// sends again only after it has received.
type link interface {
	send(message []byte) error
	receive(message []byte) error // exactly len(message) bytes
	keys() codec
	local() netip.Addr // address of this end
	remote() string    // address of the peer
	finish()           // sends the last message, if the link has one
	Close() error
}

// swap exchanges messages of equal size.
func swap(l link, client bool, local, remote []byte) error {
	if client {
		return errors.Join(l.send(local), l.receive(remote))
	}
	if err := l.receive(remote); err != nil {
		return err
	}
	return l.send(local)
}

// tcp is a link over TCP.
type tcp struct {
	net.Conn
	in  *io.PipeReader // data from Conn
	end context.CancelCauseFunc
}

// overTCP returns a link over a connection. The test ends when ctx does, or grace after the peer has closed the
// connection: the last messages may still be in flight.
func overTCP(ctx context.Context, end context.CancelCauseFunc, c net.Conn) tcp {
	context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	in, out := io.Pipe()
	go func() { // reads continuously, to detect during a test that the peer has gone
		_, _ = io.Copy(out, c)
		_ = out.CloseWithError(errGone)
		time.AfterFunc(grace, func() { end(errGone) })
	}()
	return tcp{c, in, end}
}

// grace is how long a test continues after the peer has gone.
const grace = time.Second

var errGone = errors.New("peer closed the connection; see its output")

// messageTimeout bounds the wait for the rest of a message: all programs send messages at once, and another test sends
// shorter ones.
const messageTimeout = 10 * time.Second

func (t tcp) send(message []byte) error {
	_, err := t.Write(message)
	return err
}

func (t tcp) receive(message []byte) error {
	_, err := io.ReadFull(t.in, message[:1])
	if err == nil {
		timer := time.AfterFunc(messageTimeout, func() { t.end(errOther) })
		defer timer.Stop()
		_, err = io.ReadFull(t.in, message[1:])
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errGone
	}
	return err
}

func (t tcp) Close() error {
	_ = t.in.Close()
	return t.Conn.Close()
}

func (tcp) keys() codec { return textKeys{} }

func (t tcp) local() netip.Addr {
	own, _ := t.LocalAddr().(*net.TCPAddr)
	if own == nil {
		return netip.Addr{}
	}
	return own.AddrPort().Addr()
}

func (t tcp) remote() string { return t.RemoteAddr().String() }

// finish sends the message that older versions wait for; newer ones have already closed.
func (t tcp) finish() { _ = t.send([]byte("done\x00")) }

// connectLink connects to the peer, or waits for one. When the peer has gone, the link calls end.
func (r *session) connectLink(ctx context.Context, end context.CancelCauseFunc) (link, error) {
	o := r.o
	if o.Manager {
		l, err := connectManager(ctx, r)
		if err == nil {
			go l.watch(end)
			r.device, err = l.id.Device()
		}
		return l, err
	}
	if o.client() {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(o.Peer, strconv.Itoa(o.Port)))
		if err != nil {
			address := net.JoinHostPort(o.Peer, strconv.Itoa(o.Port))
			return nil, fmt.Errorf("no server on %s: %w; start %s or goverbs perf with the same options there", address,
				err, o)
		}
		return overTCP(ctx, end, c), nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(o.Port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	o.waits("TCP port " + strconv.Itoa(o.Port))
	c, err := l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return overTCP(ctx, end, c), nil
}

// waits reports the address on which this end waits.
func (o *Options) waits(at string) {
	if o.Waiting != nil {
		o.Waiting(at)
	}
}

// version is the perftest version whose exchange this package implements.
const version = "6.06"

// oldest is the oldest compatible version of perftest.
const oldest = 5.70

// maxPage exceeds the page size and cache line size of every system that perftest supports. Both ends reserve room for
// one of the peer's.
const maxPage = 1 << 20

// terms are the parameters that both ends agree on first.
type terms struct {
	version string
	cycle   int // bytes: minimum size of the target of an operation
	mtu     ibv.MTU
	goverbs bool // the peer is goverbs
	tcp     bool // the peer requests a baseline
}

// agree exchanges versions, page and cache line sizes, and MTUs; mtu is that of this end.
func agree(l link, o *Options, mtu ibv.MTU) (t terms, err error) {
	client, local, remote := o.client(), o.markedVersion(version), make([]byte, 16)
	if err = swap(l, client, local, remote); err != nil {
		return t, fmt.Errorf("exchange of versions: %w", err)
	}
	peer, rest, _ := strings.Cut(string(remote), "\x00")
	t.version = peer
	t.goverbs, t.tcp = parseMark(rest)
	if n, err := strconv.ParseFloat(t.version, 64); err != nil || n < oldest {
		return t, fmt.Errorf("unsupported peer version %q; use perftest %.2f or later", t.version, oldest)
	}
	sizes := [2]int{os.Getpagesize(), 64}
	for i := range sizes {
		if err = swap(l, client, binary.BigEndian.AppendUint32(nil, uint32(sizes[i])), remote[:4]); err != nil {
			return t, fmt.Errorf("exchange of sizes: %w", err)
		}
		n := binary.BigEndian.Uint32(remote)
		if n > maxPage {
			return t, fmt.Errorf("invalid page or cache line size from the peer: %d bytes", n)
		}
		sizes[i] = max(sizes[i], int(n))
	}
	t.cycle = sizes[0]
	if err = swap(l, client, []byte{'0' + byte(mtu), 0}, remote[:2]); err != nil {
		return t, fmt.Errorf("exchange of MTUs: %w", err)
	}
	t.mtu = mtu
	if m := ibv.MTU(remote[0] - '0'); m >= ibv.MTU_256 && m < mtu {
		t.mtu = m
	}
	return t, nil
}

// keys describe a queue pair and its memory to the peer.
type keys struct {
	lid     uint16
	reads   uint8 // and atomic operations that it serves at once
	qpn     uint32
	psn     uint32
	rkey    uint32
	address uint64
	gid     ibv.GID
	global  bool // the path uses a GID
	srqn    uint32
	qkey    uint32 // for UD; not sent
}

// codec encodes keys for a link.
type codec interface {
	size(global bool) int
	put(k *keys) []byte
	get(b []byte, global bool) (keys, error)
}

// textKeys is the encoding over TCP: hexadecimal numbers, each followed by a colon.
type textKeys struct{}

func (textKeys) size(global bool) int {
	if global {
		return 108
	}
	return 59
}

func (t textKeys) put(k *keys) []byte {
	b := make([]byte, 0, 128)
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", k.lid, k.reads, k.qpn, k.psn, k.rkey, k.address)
	if k.global {
		for _, octet := range k.gid.Raw() {
			b = fmt.Appendf(b, "%02x:", octet)
		}
	}
	b = fmt.Appendf(b, "%08x:", k.srqn)
	return append(b, make([]byte, t.size(k.global))...)[:t.size(k.global)]
}

func (t textKeys) get(b []byte, global bool) (k keys, err error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	fields := strings.Split(strings.TrimSuffix(text, ":"), ":")
	k.global = global
	want := 7
	if global {
		want += len(k.gid.Raw())
	}
	if len(fields) != want {
		return k, fmt.Errorf("invalid queue pair keys from the peer: %q has %d fields, not %d; use -x on both ends or "+
			"on neither", text, len(fields), want)
	}
	number := func(i, bits int) (n uint64) {
		n, bad := strconv.ParseUint(fields[i], 16, bits)
		if bad != nil && err == nil {
			err = fmt.Errorf("invalid queue pair keys from the peer: %q: field %d: %w", text, i+1, bad)
		}
		return n
	}
	k.lid, k.reads = uint16(number(0, 32)), uint8(number(1, 8))
	k.qpn, k.psn = uint32(number(2, 24)), uint32(number(3, 24))
	k.rkey, k.address = uint32(number(4, 32)), number(5, 64)
	if global {
		for i := range k.gid.Raw() {
			k.gid.Raw()[i] = byte(number(6+i, 8))
		}
	}
	k.srqn = uint32(number(want-1, 32))
	return k, err
}

// exchangeKeys exchanges keys. Many of these exchanges only synchronize both ends.
func exchangeKeys(l link, client bool, mine *keys) (keys, error) {
	c := l.keys()
	theirs := make([]byte, c.size(mine.global))
	if err := swap(l, client, c.put(mine), theirs); err != nil {
		return keys{}, err
	}
	return c.get(theirs, mine.global)
}

// outcome is the result that the ends of a bandwidth test exchange.
type outcome struct {
	size, iterations    uint64
	peak, average, rate float64
}

// errPairs reports keys of an unexpected queue pair. Both ends exchange the keys of each queue pair several times.
var errPairs = fmt.Errorf("%w: number or order of queue pairs differs", errOther)

// swapOutcomes exchanges outcomes and returns the peer's. The outcome of a server that only serves is meaningless.
func swapOutcomes(l link, client bool, local outcome) (peer outcome, err error) {
	values := []uint64{local.size, local.iterations, math.Float64bits(local.peak), math.Float64bits(local.average),
		math.Float64bits(local.rate)}
	for i, n := range values {
		var theirs [8]byte
		if err := swap(l, client, binary.BigEndian.AppendUint64(nil, n), theirs[:]); err != nil {
			return peer, err
		}
		values[i] = binary.BigEndian.Uint64(theirs[:])
	}
	return outcome{values[0], values[1], math.Float64frombits(values[2]), math.Float64frombits(values[3]),
		math.Float64frombits(values[4])}, nil
}
