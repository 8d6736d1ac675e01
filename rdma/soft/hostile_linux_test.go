// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// attacker sends packets to a attacked device from an ordinary socket of the machine: their ICRC is right, everything
// else is drawn.
type attacker struct {
	*hostileTest
	draw   draw
	socket *net.UDPConn
	from   packet.Endpoint
	to     packet.Endpoint
	port   netip.AddrPort
	b      [packet.MaxSize + 64]byte
	sent   int // bytes sent
	// insider is an attacker with the peer's address and knowledge: expected sequence numbers and keys. Other attackers
	// have either the address or the numbers, not both.
	insider bool
	peer    bool // has the peer's address
}

// draw makes an attacker's choices: from bytes while there are some, then at random.
type draw struct {
	bytes  []byte
	random *rand.Rand
}

func (d *draw) below(n int) int {
	if len(d.bytes) == 0 {
		return d.random.IntN(n)
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % n
}

func (s *hostileTest) attacker(seed uint64, from netip.Addr, bytes []byte) *attacker {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
	s.keep(c, err)
	to := s.out.from
	return &attacker{hostileTest: s, draw: draw{bytes, rand.New(rand.NewPCG(seed, 0))}, socket: c,
		from: packet.Endpoint{GID: from.As16(), Port: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()},
		to:   packet.Endpoint{GID: to.As16(), Port: packet.Port}, port: netip.AddrPortFrom(to, packet.Port),
		peer: from == s.fabricAddress()}
}

// fabricAddress returns the address of the peers' device.
func (s *hostileTest) fabricAddress() netip.Addr {
	gid := s.lines[0].ends[0].GID
	return netip.AddrFrom16([16]byte(*gid.Raw())).Unmap()
}

// target is a line that an attacker aims at.
type target struct {
	*line
	expects, next uint32 // sequence numbers: expected from the peer, and next of the attacked device
}

// targets returns the lines with their current sequence numbers.
func (s *hostileTest) targets() (all []target) {
	now := map[uint32]soft.Connection{}
	for _, c := range s.fabrics[1].Connections() {
		now[c.QPN] = c
	}
	for _, l := range s.lines {
		c := now[l.ends[1].QPNum]
		all = append(all, target{l, c.ExpectedPSN, c.NextPSN})
	}
	return all
}

// lengths are payload lengths.
var lengths = [...]int{0, 4, 8, 64, 100, 256, 1020, 1024, 2048, 4092, 4096}

// transportNumbers are the high bits of opcodes. RC's are 0.
var transportNumbers = map[ibv.QPType]byte{ibv.QPT_UC: 1, ibv.QPT_UD: 3, ibv.QPT_XRC_SEND: 5}

// headerSizes are the sizes of extended headers by opcode, negative if no payload follows.
var headerSizes = map[byte]int{0: 0, 1: 0, 2: 0, 3: 4, 4: 0, 5: 4, 6: 16, 7: 0, 8: 0, 9: 4, 10: 16, 11: 20, 12: -16,
	13: 4, 14: 0, 15: 4, 16: 4, 17: -4, 18: -12, 19: -28, 20: -28, 22: 4, 23: 4, 28: -20, 29: -24}

// packet sends a packet with any opcode and headers to a line, or to an unknown queue pair.
func (a *attacker) packet(x *target) {
	d := &a.draw
	code := byte(d.below(256))
	if transports := [...]byte{0, 0, 1, 3, 5}; d.below(8) > 0 { // usually an existing one
		code = transports[d.below(len(transports))]<<5 | code&0x1f
		if d.below(2) == 0 {
			code = code&0x1f | transportNumbers[x.kind]<<5
		}
	}
	if code>>5 == 3 && d.below(8) > 0 {
		code = 3<<5 | 4 | code&1
	}
	headers := 12
	p := a.b[:]
	fill := d.random.Uint64()
	for i := 0; i < 128; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], fill*uint64(i+1))
	}
	order := binary.BigEndian
	switch code >> 5 {
	case 3:
		order.PutUint32(p[12:], x.ends[1].QKey+1) // with the right Q_Key anyone may send
		if a.insider {
			order.PutUint32(p[12:], x.ends[1].QKey)
		}
		headers += 8
	case 5:
		order.PutUint32(p[12:], x.number)
		headers += 4
	}
	aim, wrong := [...]*rdma.MR{x.mrs[1], x.mrs[1], a.private}[d.below(3)], uint32(0)
	if !a.insider || d.below(8) == 0 {
		wrong = 1 << d.below(32)
	}
	n := lengths[d.below(len(lengths))]
	offset := [...]int{0, 8, -8, regionSize - 4096, regionSize - 8, regionSize, -4096, 1}[d.below(8)]
	order.PutUint64(p[headers:], aim.Address()+uint64(offset)) // RETH or AtomicETH
	order.PutUint32(p[headers+8:], aim.RKey()^wrong)
	says := [...]uint32{uint32(n), uint32(n), uint32(n) + 1, 0, 8, 3 * 1024, regionSize, 1 << 31, 1<<32 - 1}
	order.PutUint32(p[headers+12:], says[d.below(len(says))])
	if d.below(2) == 0 { // AETH: syndrome
		p[headers] = [...]byte{0x1f, 0x00, 0x20, 0x60, 0x61, 0x62, 0x63, 0xff}[d.below(8)]
	}
	of, ok := headerSizes[code&0x1f]
	switch {
	case !ok || d.below(8) == 0:
		of = 4 * d.below(8)
	case of < 0: // no payload
		of, n = -of, 0
	}
	if n += headers + of; d.below(32) == 0 {
		n += d.below(4)
	}
	p[0], p[1] = code, byte(d.below(256))&0xc0
	if d.below(16) == 0 {
		p[1] = byte(d.below(256))
	}
	order.PutUint16(p[2:], [...]uint16{0xffff, 0x7fff, 0x1234, 0, 0xffff, 0xffff, 0xffff, 0xffff}[d.below(8)])
	order.PutUint32(p[4:], a.number(x))
	order.PutUint32(p[8:], a.sequence(x, code)|uint32(d.below(2))<<31)
	a.send(p[:min(n+4, packet.MaxSize+8)])
}

// number returns a queue pair number, usually the line's.
func (a *attacker) number(x *target) uint32 {
	switch a.draw.below(16) {
	case 0:
		return 1
	case 1:
		return a.draw.random.Uint32() & 0xffffff
	case 2:
		return 0xffffff
	}
	if a.peer && !a.insider && !x.hasNumbers() {
		return x.ends[1].QPNum ^ 1<<23
	}
	return x.ends[1].QPNum
}

// hasNumbers reports whether packets of the line need an expected sequence number. Those of UC and UD do not: the
// peer's address, or the Q_Key, suffices to send.
func (l *line) hasNumbers() bool { return l.kind != ibv.QPT_UC && l.kind != ibv.QPT_UD }

// sequence returns a sequence number: near the expected one, if the attacker may know it.
func (a *attacker) sequence(x *target, code byte) uint32 {
	near := x.expects
	if code&0x1f >= ibv.OPCODE_RDMA_READ_RESPONSE_FIRST && code&0x1f <= ibv.OPCODE_ATOMIC_ACKNOWLEDGE {
		near = x.next
	}
	switch d := &a.draw; {
	case a.peer && !a.insider:
		return (near + 1<<16 + d.random.Uint32N(1<<24-1<<17)) & 0xffffff
	case d.below(2) == 0:
		return near
	default:
		return (near + uint32(d.below(256)) - 128) & 0xffffff
	}
}

// send sends a packet.
func (a *attacker) send(p []byte) {
	packet.Seal(p, &a.from, &a.to, 0)
	if a.draw.below(32) == 0 { // sometimes not a packet at all
		p = p[:a.draw.below(len(p))]
	}
	_, err := a.socket.WriteToUDPAddrPort(p, a.port)
	require.NoError(a.t, err)
	a.sent += len(p)
}

// Packet returns the buffer for a datagram of the connection manager.
func (a *attacker) Packet(n int) []byte { return a.b[:n] }

// manage sends a valid or corrupted datagram of the connection manager.
func (a *attacker) manage() {
	d := &a.draw
	local, to := netip.AddrFrom16(a.from.GID), netip.AddrFrom16(a.to.GID)
	m := &message.MAD{Attribute: message.REQ + message.Attribute(d.below(9)), TID: uint64(d.below(64)),
		LocalID: d.random.Uint32(), RemoteID: d.random.Uint32()}
	if d.below(2) == 0 { // existing connection
		all := a.fabrics[1].Connections()
		c := all[d.below(len(all))]
		if m.RemoteID, m.QPN = c.CMID, c.QPN; a.insider {
			for _, other := range a.fabrics[0].Connections() {
				if other.QPN == c.PeerQPN {
					m.LocalID = other.CMID
				}
			}
		}
	}
	switch m.Attribute {
	case message.REQ, message.SIDRReq:
		space := [...]rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP}[d.below(2)]
		m.ServiceID, m.PKey = uint64(space)<<16|uint64(attackPort+d.below(2)), 0xffff
		m.Source, m.Dest = netip.AddrPortFrom(local.Unmap(), 99), to.Unmap()
		m.RemoteID = 0
		if m.Attribute == message.REQ {
			m.Path = message.Path{Local: a.from.GID, Remote: a.to.GID, MTU: ibv.MTU_1024, AckTimeout: 16}
			m.CAGUID, m.QPN = d.random.Uint64(), d.random.Uint32()&0xffffff
		}
	case message.MRA:
		m.ServiceTimeout = uint8(d.below(32))
	case message.REJ:
		m.Reason = uint16(d.below(40))
	}
	if packet.AppendMAD(a, m, 0) != nil {
		return
	}
	const size = 12 + 8 + message.MADSize + 4
	for range d.below(4) { // corrupt it
		a.b[d.below(size)] ^= 1 << d.below(8)
	}
	a.send(a.b[:size])
}

const attackPort = 7001

// attack sends count packets.
func (a *attacker) attack(count int) {
	all := a.targets()
	for range count {
		if a.draw.below(8) == 0 {
			a.manage()
		} else {
			a.packet(&all[a.draw.below(len(all))])
		}
	}
}

// settle waits until the attacked device has read all packets sent to it.
func (s *hostileTest) settle() {
	for before := uint64(0); ; time.Sleep(time.Millisecond) {
		now, wcs := uint64(0), make([]ibv.WC, 1)
		s.idle[1].Poll(wcs)
		for name, n := range s.fabrics[1].HWCounters("soft0") {
			if name == "rcvd_pkts" || len(name) > 3 && name[:3] == "rx_" {
				now += n
			}
		}
		if now == before {
			return
		}
		before = now
	}
}

// reasons are counters of dropped packets, each of which the attack of TestHostilePackets increments.
var reasons = []string{"rx_icrc_encapsulated", "rx_bad_size", "rx_bad_version", "rx_bad_opcode", "rx_bad_length",
	"rx_bad_pkey", "rx_bad_qpn", "rx_bad_qkey", "rx_bad_syndrome", "rx_bad_mad", "rx_unknown_qp", "rx_wrong_peer",
	"rx_wrong_transport", "bad_pkey", "bad_qkey", "out_of_seq_request", "rx_behind_gap", "rx_late_ack",
	"duplicate_request", "rx_cm_no_listener", "rx_cm_bad_path", "rx_cm_unknown_id", "rx_cm_wrong_peer"}

// TestHostilePackets sends packets to a device from a stranger's address, and from the peer's address with sequence
// numbers far from the expected ones. Connections of all types and datagrams keep working. No byte inside or around the
// registered memory is changed or disclosed. Memory and goroutines do not grow. Responses are not much longer than
// requests, and every drop is counted by its reason. As with any RoCE device, an attacker who knows address, queue pair
// and sequence number can break a connection. GOVERBS_PACKETS sets the number of packets.
func TestHostilePackets(t *testing.T) {
	count := 100_000
	if n, err := strconv.Atoi(os.Getenv("GOVERBS_PACKETS")); err == nil {
		count = n
	}
	peer, at, other := netip.MustParseAddr("127.0.0.10"), netip.MustParseAddr("127.0.0.11"),
		netip.MustParseAddr("127.0.0.12")
	s := newHostileTest(t, peer, at)
	s.listen(netip.AddrPortFrom(at, attackPort))
	stranger, liar := s.attacker(1, other, nil), s.attacker(2, peer, nil)
	var before, after runtime.MemStats
	var routines, used int
	for i := range count / 100 {
		stranger.attack(50)
		liar.attack(50)
		if i%20 == 19 {
			s.settle()
			used0 := s.out.bytesTo(peer)
			echoed(t, s.stream, random(100, byte(i)))
			for _, l := range s.lines {
				l.use()
			}
			used += s.out.bytesTo(peer) - used0
			s.checkRegions()
		}
		if i == count/1000 {
			s.settle()
			runtime.GC()
			runtime.ReadMemStats(&before)
			routines = runtime.NumGoroutine()
		}
	}
	s.settle()
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4<<20), "bytes that are left of the attack")
	require.Less(t, runtime.NumGoroutine(), routines+20, "goroutines that are left of the attack")
	counts := s.fabrics[1].HWCounters("soft0")
	t.Log(counts, "sent, got:", stranger.sent, s.out.bytesTo(other), liar.sent, s.out.bytesTo(peer)-used)
	require.Greater(t, counts["rcvd_pkts"], uint64(count/4), "%v", counts) // a full socket buffer drops some
	for _, name := range reasons {
		require.NotZero(t, counts[name], name)
	}
	require.Less(t, s.out.bytesTo(other), stranger.sent, "bytes that strangers got for theirs")
	require.Less(t, s.out.bytesTo(peer)-used, liar.sent, "bytes that the peer got for those of the liar")
}

// TestHostilePeer: a peer that accesses memory without permission gets nothing, on each kind of line, whatever else it
// breaks.
func TestHostilePeer(t *testing.T) {
	at := netip.MustParseAddr("127.0.0.11")
	for i := range 60 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			s := newHostileTest(t, netip.MustParseAddr("127.0.0.10"), at)
			a := s.attacker(uint64(i), s.fabricAddress(), nil)
			a.insider = true
			a.attackFromInside(i%len(s.lines), 300)
		})
	}
}

// attackFromInside attacks one line as an insider. The other line keeps working, and no byte is changed or disclosed
// without permission.
func (a *attacker) attackFromInside(index, count int) {
	all, second := a.lines, a.lines[0]
	if index == 0 {
		second = a.lines[1]
	}
	a.lines = []*line{all[index]}
	a.attack(count)
	a.settle()
	a.lines = all
	a.checkPrivate()
	second.use()
}

// FuzzPackets attacks a device with packets drawn by the fuzzer. Half of the attackers are insiders: they may break
// their line and write where the peer may. No other byte changes, and other lines keep working.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add(slices.Repeat([]byte{1, 7, 3}, 100))
	f.Fuzz(func(t *testing.T, bytes []byte) {
		pid := os.Getpid() // fuzz workers run in parallel
		local := func(last byte) netip.Addr {
			return netip.AddrFrom4([4]byte{127, byte(100 + pid>>8&63), byte(pid), last})
		}
		s := newHostileTest(t, local(1), local(2))
		h := fnv.New64a()
		h.Write(bytes)
		insider := len(bytes) > 0 && bytes[0]&1 != 0
		from := local(1)
		if !insider && h.Sum64()&1 != 0 {
			from = local(3)
		}
		a := s.attacker(h.Sum64(), from, bytes)
		a.insider = insider
		if insider {
			a.attackFromInside(int(h.Sum64()>>1%uint64(len(s.lines))), 100)
			return
		}
		a.attack(100)
		s.settle()
		s.checkRegions()
		for _, l := range s.lines {
			l.use()
		}
	})
}
