// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// hostileTest is a device with connections of every kind to another device, and private memory that no peer may access.
type hostileTest struct {
	t       *testing.T
	fabrics [2]*soft.Fabric // peer, attacked device
	devices [2]*rdma.Device
	pds     [2]*rdma.PD
	idle    [2]*rdma.CQ // always empty; polled only to receive packets
	lines   []*line
	out     *meter // traffic sent by the attacked device

	private *rdma.MR     // no remote access
	secret  []byte       // contents of private
	stream  *stream.Conn // connected by the connection manager, or nil
}

// line is a connection, or two UD queue pairs, that both ends keep using.
type line struct {
	*hostileTest
	name   string
	kind   ibv.QPType // type of the peer's queue pair
	tags   bool       // the attacked side uses tag matching
	qps    [2]*rdma.QP
	cqs    [2]*rdma.CQ
	mrs    [2]*rdma.MR
	ends   [2]rdma.Endpoint
	memory []byte // region of the attacked side and the bytes around it
	srq    *rdma.SRQ
	number uint32 // of srq, for XRC requests
	ah     *rdma.AH
	last   byte // contents of the last message
}

// The peer writes to the first half of each line's region; receives and reads use the second.
const (
	regionSize  = 1 << 13
	receiveAt   = regionSize / 2
	receiveSize = 2048
	messageSize = 100
	canary      = 0x5a
)

const remoteRights = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC

// newHostileTest connects devices at two addresses.
func newHostileTest(t *testing.T, peer, at netip.Addr) *hostileTest {
	s := &hostileTest{t: t, secret: random(64, 77)}
	for i, a := range []netip.Addr{peer, at} {
		f, err := soft.New(soft.Options{CMResponse: 50 * time.Millisecond,
			Devices: []soft.DeviceOptions{{Address: a, Wire: true}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		s.fabrics[i] = f
		s.devices[i], err = rdma.OpenOn(f, "soft0")
		s.keep(s.devices[i], err)
		s.pds[i], err = s.devices[i].AllocPD()
		s.keep(s.pds[i], err)
		s.idle[i], err = s.devices[i].CreateCQ(1, nil, 0)
		s.keep(s.idle[i], err)
	}
	var err error
	s.private, err = s.pds[1].RegMR(bytes.Repeat(s.secret, 64), ibv.ACCESS_LOCAL_WRITE)
	s.keep(s.private, err)
	for _, l := range []*line{
		{name: "RC", kind: ibv.QPT_RC}, {name: "second RC", kind: ibv.QPT_RC}, {name: "UC", kind: ibv.QPT_UC},
		{name: "UD", kind: ibv.QPT_UD}, {name: "XRC", kind: ibv.QPT_XRC_SEND},
		{name: "tags", kind: ibv.QPT_RC, tags: true},
	} {
		l.hostileTest = s
		l.open()
		s.lines = append(s.lines, l)
	}
	s.out = &meter{secret: s.secret, to: map[netip.Addr]int{}, from: at}
	c, err := s.fabrics[1].Capture(s.out)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return s
}

// keep closes an object when the test ends.
func (s *hostileTest) keep(o io.Closer, err error) {
	s.t.Helper()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { assert.NoError(s.t, o.Close()) })
}

// ackTimeout is the code for a second per try: during an attack a full socket buffer drops heartbeats until a slow
// machine has emptied it.
const ackTimeout = 18

// open creates both queue pairs and connects them.
func (l *line) open() {
	t := l.t
	for i := range l.qps {
		var err error
		l.cqs[i], err = l.devices[i].CreateCQ(64, nil, 0)
		l.keep(l.cqs[i], err)
		memory := bytes.Repeat([]byte{canary}, regionSize+2*around)
		l.mrs[i], err = l.pds[i].RegMR(memory[around:][:regionSize], remoteRights)
		l.keep(l.mrs[i], err)
		l.memory = memory
		attr := &ibv.QPInitAttrEx{QPType: l.kind, CompMask: ibv.QP_INIT_ATTR_PD, PD: l.pds[i].Ptr(),
			SendCQ: l.cqs[i].Ptr(), RecvCQ: l.cqs[i].Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}
		if i == 1 {
			l.shared(attr)
		}
		l.qps[i], err = l.devices[i].CreateQPEx(attr, rdma.QueueOptions{})
		l.keep(l.qps[i], err)
		l.ends[i], err = l.qps[i].Endpoint()
		require.NoError(t, err)
	}
	for i, q := range l.qps {
		attr, err := q.ConnectAttr(l.ends[1-i])
		require.NoError(t, err)
		attr.Timeout = ackTimeout
		require.NoError(t, q.ConnectWith(attr))
	}
	if l.kind == ibv.QPT_UD {
		path, err := l.qps[0].Path(l.ends[1])
		require.NoError(t, err)
		l.ah, err = l.pds[0].CreateAH(&path)
		l.keep(l.ah, err)
	}
	l.arm()
}

// shared creates the shared receive queue of a connection's attacked queue pair.
func (l *line) shared(attr *ibv.QPInitAttrEx) {
	d, p, cq := l.devices[1], l.pds[1], l.cqs[1]
	srq := &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, PD: p.Ptr(), CQ: cq.Ptr(),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ}
	switch {
	case l.tags:
		srq.SRQType, srq.TMCap = ibv.SRQT_TM, ibv.TMCap{MaxNumTags: 4, MaxOps: 4}
		srq.CompMask |= ibv.SRQ_INIT_ATTR_TM
	case l.kind == ibv.QPT_XRC_SEND:
		domain, err := d.OpenXRCD(&ibv.XRCDInitAttr{FD: -1, Oflags: 0o100, // O_CREAT on Linux
			CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
		l.keep(domain, err)
		srq.SRQType, srq.XRCD = ibv.SRQT_XRC, domain.Ptr()
		srq.CompMask |= ibv.SRQ_INIT_ATTR_XRCD
		*attr = ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD, XRCD: domain.Ptr()}
	default:
		return
	}
	var err error
	l.srq, err = d.CreateSRQEx(srq, rdma.QueueOptions{})
	l.keep(l.srq, err)
	if l.tags {
		attr.SRQ = l.srq.Ptr()
		return
	}
	l.number, err = l.srq.Num()
	require.NoError(l.t, err)
}

// arm posts a receive for the next message.
func (l *line) arm() {
	entry := l.mrs[1].SGE(receiveAt, receiveSize)
	if l.tags {
		b, err := rdma.NewTagBatch(1, 1)
		require.NoError(l.t, err)
		defer b.Close()
		b.AddTag(1, 2, 7, ^uint64(0)).Add(entry)
		_, err = l.srq.PostTags(b)
		require.NoError(l.t, err)
		return
	}
	b, err := rdma.NewRecvBatch(1, 1)
	require.NoError(l.t, err)
	defer b.Close()
	b.Recv(2).Add(entry)
	if l.srq != nil {
		_, err = l.srq.PostRecv(b)
	} else {
		_, err = l.qps[1].PostRecv(b)
	}
	require.NoError(l.t, err)
}

// use sends a message and checks its bytes; on RC it also writes and reads. Datagrams and UC messages are
// retransmitted, since the attack may have filled a socket buffer.
func (l *line) use() {
	t := l.t
	l.last++
	local, remote := l.mrs[0].Bytes()[:messageSize], l.mrs[1].Bytes()
	for i := range local {
		local[i] = l.last + byte(i)
	}
	before := 0
	switch {
	case l.tags: // without the header
		clear(local[:16])
		local[0], local[15] = byte(ibv.TMH_EAGER), 7
		local = local[16:]
	case l.kind == ibv.QPT_UD:
		before = rdma.GRHBytes
	}
	for try := 0; ; try++ {
		require.Less(t, try, 20, "%s: messages no longer arrive\n%v\n%v", l.name, l.fabrics[1].Connections(),
			l.fabrics[1].HWCounters("soft0"))
		l.post(0, func(b *rdma.SendBatch) rdma.SendRequest {
			r := b.Send(1)
			if l.ah != nil {
				r.UD(l.ah.Ptr(), l.ends[1].QPNum, l.ends[1].QKey)
			}
			if l.number != 0 {
				b.WR(0).QPType.XRC().RemoteSRQN = l.number
			}
			return r.Add(l.mrs[0].SGE(0, messageSize))
		})
		if l.completed(1, time.Second) {
			break
		}
	}
	got := remote[receiveAt+before:][:len(local)]
	require.Equal(t, local, got, l.name)
	for i := range receiveSize {
		remote[receiveAt+i] = canary
	}
	l.arm()
	if l.kind != ibv.QPT_RC || l.tags {
		return
	}
	word := local[:8]
	l.post(0, func(b *rdma.SendBatch) rdma.SendRequest {
		return b.Write(3, l.mrs[1].Address(), l.mrs[1].RKey()).Add(l.mrs[0].SGE(0, 8))
	})
	require.Equal(t, word, remote[:8], l.name)
	l.post(1, func(b *rdma.SendBatch) rdma.SendRequest { // the attacked device sends requests too
		return b.Read(4, l.mrs[0].Address(), l.mrs[0].RKey()).Add(l.mrs[1].SGE(regionSize-8, 8))
	})
	require.Equal(t, word, remote[regionSize-8:], l.name)
	for i := range 8 {
		remote[i], remote[regionSize-8+i] = canary, canary
	}
}

// post posts a request at one end and waits until it completes.
func (l *line) post(end int, request func(b *rdma.SendBatch) rdma.SendRequest) {
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(l.t, err)
	defer b.Close()
	request(b).Signaled()
	_, err = l.qps[end].PostSend(b)
	require.NoError(l.t, err, l.name)
	require.True(l.t, l.completed(end, bound), "%s: a request did not complete\n%v\n%v", l.name,
		l.fabrics[end].Connections(), l.fabrics[1].HWCounters("soft0"))
}

// completed polls both ends until one has a completion, and reports whether it had one in time.
func (l *line) completed(end int, within time.Duration) bool {
	wcs := make([]ibv.WC, 1)
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		n, err := l.cqs[end].Poll(wcs)
		require.NoError(l.t, err)
		if n > 0 {
			require.NoError(l.t, rdma.CompletionErr(&wcs[0]), "%s, end %d\n%v", l.name, end,
				l.fabrics[1].HWCounters("soft0"))
			return true
		}
		l.idle[1-end].Poll(wcs) // receives the other device's packets
	}
	return false
}

// checkRegions checks that only the peer's writes changed a line's region, and that its surroundings are unchanged.
func (s *hostileTest) checkRegions() {
	s.t.Helper()
	s.checkPrivate()
	for _, l := range s.lines {
		if i := bytes.IndexFunc(l.memory, func(r rune) bool { return r != canary }); i >= 0 {
			require.Fail(s.t, "memory has changed", "%s: byte %d of the region", l.name, i-around)
		}
	}
}

// checkPrivate checks that private memory is unchanged and was not disclosed.
func (s *hostileTest) checkPrivate() {
	s.t.Helper()
	for _, l := range s.lines {
		for i, b := range l.memory {
			if (i < around || i >= around+regionSize) && b != canary {
				require.Fail(s.t, "memory outside of a region has changed", "%s: byte %d", l.name, i-around)
			}
		}
	}
	require.True(s.t, bytes.Equal(bytes.Repeat(s.secret, 64), s.private.Bytes()), "private memory has changed")
	require.False(s.t, s.out.leakedSecret(), "private memory was sent")
}

// meter reads a capture and counts the UDP bytes from each address to each other.
type meter struct {
	from   netip.Addr
	secret []byte

	mu     sync.Mutex
	rest   []byte // incomplete record
	begun  bool
	to     map[netip.Addr]int
	leaked bool
}

func (m *meter) Write(b []byte) (int, error) {
	const fileHeader, recordHeader, ip, udp = 24, 16, 20, 8
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rest = append(m.rest, b...)
	at := m.rest
	if !m.begun && len(at) >= fileHeader {
		m.begun, at = true, at[fileHeader:]
	}
	for m.begun && len(at) >= recordHeader {
		n := int(binary.LittleEndian.Uint32(at[8:]))
		if len(at) < recordHeader+n {
			break
		}
		p := at[recordHeader:][:n]
		if at = at[recordHeader+n:]; netip.AddrFrom4([4]byte(p[12:16])) == m.from {
			m.to[netip.AddrFrom4([4]byte(p[16:20]))] += n - ip - udp
			m.leaked = m.leaked || bytes.Contains(p, m.secret[:8])
		}
	}
	m.rest = append(m.rest[:0], at...)
	return len(b), nil
}

// bytesTo returns the number of bytes sent to an address.
func (m *meter) bytesTo(a netip.Addr) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.to[a]
}

func (m *meter) leakedSecret() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaked
}

// listen makes the connection manager accept a stream on the attacked side. The listener stays open.
func (s *hostileTest) listen(at netip.AddrPort) {
	var served sync.WaitGroup
	s.t.Cleanup(served.Wait) // runs after the stream and the listener are closed
	slowConfig := func(f *soft.Fabric) stream.Config {
		c := config(f)
		c.AckTimeout = ackTimeout
		return c
	}
	l, err := listening(slowConfig(s.fabrics[1])).Listen(s.t.Context(), at.String())
	s.keep(l, err)
	served.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			served.Go(func() {
				io.Copy(c, c)
				c.Close()
			})
		}
	})
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	defer cancel()
	s.stream, err = dialer(slowConfig(s.fabrics[0])).Dial(ctx, at.String())
	s.keep(s.stream, err)
}
