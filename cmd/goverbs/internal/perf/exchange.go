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

// link is the connection on which two ends exchange what the test needs. perftest's rule: the client sends first, and
// nobody sends twice without having received.
type link interface {
	send(message []byte) error
	receive(message []byte) error // exactly as many bytes
	keys() codec
	local() netip.Addr // of this end
	remote() string    // the peer's address
	farewell()         // the last message, if the link has one
	Close() error
}

// swap exchanges messages of one size.
func swap(l link, client bool, mine, theirs []byte) error {
	if client {
		return errors.Join(l.send(mine), l.receive(theirs))
	}
	if err := l.receive(theirs); err != nil {
		return err
	}
	return l.send(mine)
}

// tcp is a link over TCP.
type tcp struct {
	net.Conn
	in  *io.PipeReader // what Conn brings
	end context.CancelCauseFunc
}

// overTCP makes a link of a connection. The test ends when ctx does. When the peer has closed the connection, a test
// still has grace: its last message may come by another way.
func overTCP(ctx context.Context, end context.CancelCauseFunc, c net.Conn) tcp {
	context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	in, out := io.Pipe()
	go func() { // reads all the time, so that it is noticed in the middle of a test that the peer is gone
		_, _ = io.Copy(out, c)
		_ = out.CloseWithError(errGone)
		time.AfterFunc(grace, func() { end(errGone) })
	}()
	return tcp{c, in, end}
}

// grace is how long a test goes on when the peer is gone.
const grace = time.Second

var errGone = errors.New("the peer closed the connection: it has ended, and says why")

// half is how long the rest of a message may take, which all programs send at once: shorter ones are of another test.
const half = 10 * time.Second

func (t tcp) send(message []byte) error {
	_, err := t.Write(message)
	return err
}

func (t tcp) receive(message []byte) error {
	_, err := io.ReadFull(t.in, message[:1])
	if err == nil {
		late := time.AfterFunc(half, func() { t.end(errOther) })
		defer late.Stop()
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

// farewell is what older ones read; newer ones have closed.
func (t tcp) farewell() { _ = t.send([]byte("done\x00")) }

// meet connects to the peer, or waits for one. The link calls end when the peer is gone.
func (r *rig) meet(ctx context.Context, end context.CancelCauseFunc) (link, error) {
	o := r.o
	if o.Manager {
		l, err := meetByManager(ctx, r)
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
			return nil, fmt.Errorf("nobody waits at %s: start the same test there without a peer, as %s or goverbs "+
				"perf; %w", net.JoinHostPort(o.Peer, strconv.Itoa(o.Port)), o, err)
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

// waits says where this end waits for its peer.
func (o *Options) waits(at string) {
	if o.Waiting != nil {
		o.Waiting(at)
	}
}

// version is what this end says it is: perftest's of which it speaks the exchange.
const version = "6.06"

// oldest is the version of perftest that speaks it, too.
const oldest = 5.70

// maxPage is the largest page of any system that perftest runs on, and more than any cache line: both ends make room
// for one of the peer's.
const maxPage = 1 << 20

// terms are what two ends agree on before their queue pairs.
type terms struct {
	version string
	cycle   int // bytes: the target of an operation has as many at least
	mtu     ibv.MTU
	goverbs bool // the peer is this program
	tcp     bool // and wants a baseline
}

// agree exchanges versions, sizes of pages and cache lines, and MTUs; mtu is that of this end.
func agree(l link, o *Options, mtu ibv.MTU) (t terms, err error) {
	client, mine, theirs := o.client(), o.branded(version), make([]byte, 16)
	if err = swap(l, client, mine, theirs); err != nil {
		return t, fmt.Errorf("exchange of versions: %w", err)
	}
	said, rest, _ := strings.Cut(string(theirs), "\x00")
	t.version = said
	t.goverbs, t.tcp = brandOf(rest)
	if n, err := strconv.ParseFloat(t.version, 64); err != nil || n < oldest {
		return t, fmt.Errorf("the peer is no perftest of %.2f or later, for it says it is %q", oldest, t.version)
	}
	sizes := [2]int{os.Getpagesize(), 64}
	for i := range sizes {
		if err = swap(l, client, binary.BigEndian.AppendUint32(nil, uint32(sizes[i])), theirs[:4]); err != nil {
			return t, fmt.Errorf("exchange of sizes: %w", err)
		}
		n := binary.BigEndian.Uint32(theirs)
		if n > maxPage {
			return t, fmt.Errorf("the peer says that its pages or cache lines have %d bytes", n)
		}
		sizes[i] = max(sizes[i], int(n))
	}
	t.cycle = sizes[0]
	if err = swap(l, client, []byte{'0' + byte(mtu), 0}, theirs[:2]); err != nil {
		return t, fmt.Errorf("exchange of MTUs: %w", err)
	}
	t.mtu = mtu
	if m := ibv.MTU(theirs[0] - '0'); m >= ibv.MTU_256 && m < mtu {
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
	global  bool // it has a GID: the way is not that of a LID
	srqn    uint32
	qkey    uint32 // of UD; nobody sends it
}

// codec writes keys in the form of a link.
type codec interface {
	size(global bool) int
	put(k *keys) []byte
	get(b []byte, global bool) (keys, error)
}

// textKeys are those over TCP: hexadecimal numbers with a colon behind each.
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
		return k, fmt.Errorf("the peer sent %q as the keys of a queue pair: it has %d fields, not %d. If one end has "+
			"-x, the other needs it as well", text, len(fields), want)
	}
	number := func(i, bits int) (n uint64) {
		n, bad := strconv.ParseUint(fields[i], 16, bits)
		if bad != nil && err == nil {
			err = fmt.Errorf("the peer sent %q as the keys of a queue pair: field %d: %w", text, i+1, bad)
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

// shake exchanges keys. Many of these exchanges only keep both ends in step.
func shake(l link, client bool, mine *keys) (keys, error) {
	c := l.keys()
	theirs := make([]byte, c.size(mine.global))
	if err := swap(l, client, c.put(mine), theirs); err != nil {
		return keys{}, err
	}
	return c.get(theirs, mine.global)
}

// outcome is what ends of a bandwidth test tell each other.
type outcome struct {
	size, iterations    uint64
	peak, average, rate float64
}

// errPairs says that the peer told of another queue pair than before: both exchange keys of each several times.
var errPairs = fmt.Errorf("%w: it has another number of queue pairs, or exchanges them in another order", errOther)

// tell exchanges outcomes, and returns the peer's. That of a server that does nothing means nothing.
func tell(l link, client bool, mine outcome) (peer outcome, err error) {
	said := []uint64{mine.size, mine.iterations, math.Float64bits(mine.peak), math.Float64bits(mine.average),
		math.Float64bits(mine.rate)}
	for i, n := range said {
		var theirs [8]byte
		if err := swap(l, client, binary.BigEndian.AppendUint64(nil, n), theirs[:]); err != nil {
			return peer, err
		}
		said[i] = binary.BigEndian.Uint64(theirs[:])
	}
	return outcome{said[0], said[1], math.Float64frombits(said[2]), math.Float64frombits(said[3]),
		math.Float64frombits(said[4])}, nil
}
