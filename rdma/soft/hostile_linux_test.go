// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// attacker sends packets to a device that are well made, from an address that it has as any program of the machine may:
// the ICRC is right, and the rest is drawn.
type attacker struct {
	t        testing.TB
	random   *rand.Rand
	socket   *net.UDPConn
	from, to packet.Endpoint
	b        [packet.MaxSize]byte
}

func newAttacker(t testing.TB, seed uint64, from, to string) *attacker {
	s, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return &attacker{t: t, random: rand.New(rand.NewPCG(seed, 0)), socket: s,
		from: packet.Endpoint{GID: netip.MustParseAddr(from).As16(),
			Port: s.LocalAddr().(*net.UDPAddr).AddrPort().Port()},
		to: packet.Endpoint{GID: netip.MustParseAddr(to).As16(), Port: packet.Port}}
}

// known is what an attacker knows of a queue pair.
type known struct {
	qpn    uint32
	psn    func(*rand.Rand) uint32
	rkey   uint32
	remote uint64
}

// send sends a packet with any opcode and any headers, to the queue pair, or to the connection manager, or to nobody.
func (a *attacker) send(k *known) {
	r := a.random
	n := 12 + 4*r.IntN(20)
	if r.IntN(50) == 0 {
		n = 12 + 4*r.IntN((packet.MaxSize-16)/4)
	}
	p := a.b[:n+4]
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	p[0] = [...]byte{0, 0, 0, 0x20, 0x60, 0xa0}[r.IntN(6)] | byte(r.IntN(32))
	p[1] &= 0xf0
	binary.BigEndian.PutUint16(p[2:], 0xffff)
	qpn := k.qpn
	switch r.IntN(16) {
	case 0:
		qpn = 1
	case 1:
		qpn = r.Uint32() & 0xffffff
	}
	binary.BigEndian.PutUint32(p[4:], qpn)
	binary.BigEndian.PutUint32(p[8:], k.psn(r)|uint32(r.IntN(2))<<31)
	if n >= 28 && r.IntN(2) == 0 { // of a request, where it may reach something
		binary.BigEndian.PutUint64(p[12:], k.remote+uint64(r.IntN(1<<13))-1<<12)
		binary.BigEndian.PutUint32(p[20:], k.rkey^1<<r.IntN(32))
		binary.BigEndian.PutUint32(p[24:], uint32(n-28)<<r.IntN(20))
	}
	if r.IntN(4) > 0 && qpn == 1 { // a datagram of the connection manager
		n = 12 + 8 + 256
		p = a.b[:n+4]
		p[0], p[1] = 0x64, 0
		binary.BigEndian.PutUint32(p[12:], 0x80010000)
		copy(p[20:], []byte{1, 7, 2, 3, 0, 0, 0, 0})
		p[36], p[37] = 0, 0x10+byte(r.IntN(9))
		p[70] &= 0x3f
	}
	packet.Seal(p, &a.from, &a.to, 0)
	_, err := a.socket.WriteToUDPAddrPort(p, netip.AddrPortFrom(netip.AddrFrom16(a.to.GID).Unmap(), a.to.Port))
	require.NoError(a.t, err)
}

// TestHostilePackets sends packets to a device that are not its peer's, and such from its peer's address whose sequence
// numbers are not near those of the connection: the connection lives on, no byte changes that the peer did not write,
// inside the registered memory and around it, and memory does not grow. An attacker with address, queue pair and
// sequence number can break a connection, as on any device that speaks RoCE. GOVERBS_PACKETS is how many packets are
// sent.
func TestHostilePackets(t *testing.T) {
	count := 100_000
	if n, err := strconv.Atoi(os.Getenv("GOVERBS_PACKETS")); err == nil {
		count = n
	}
	const size = 1 << 13
	p := newPair(t, "127.0.0.10", "127.0.0.11", size)
	ends := [2]uint32{}
	for i, q := range []interface{ Num() uint32 }{p.a, p.b} {
		ends[i] = q.Num()
	}
	end, err := p.a.Endpoint()
	require.NoError(t, err)
	first := end.PSN
	remote, rkey := uint64(p.there.SGE(0, 1).Addr), p.there.RKey()
	p.sends.Reset()
	p.sends.Write(1, remote, rkey).Add(p.here.SGE(0, 64)).Signaled()
	there := func() []byte { return p.memory[1] }
	for i := range there() {
		there()[i] = byte(i * 7)
	}
	want := append([]byte{}, there()...)
	copy(want[around:], p.memory[0][around:][:64])
	sent := uint32(0)
	far := func(r *rand.Rand) uint32 { return (first + sent + 1<<16 + r.Uint32N(1<<24-1<<17)) & 0xffffff }
	k := &known{ends[1], far, rkey, remote}
	stranger := newAttacker(t, 1, "127.0.0.12", "127.0.0.11")
	liar := newAttacker(t, 2, "127.0.0.10", "127.0.0.11")
	beside := func(r *rand.Rand) uint32 { return (first + sent + r.Uint32N(256) - 128) & 0xffffff }
	near := &known{ends[1], beside, rkey, remote}
	var before, after runtime.MemStats
	for i := range count / 100 {
		for range 50 {
			stranger.send(near)
			liar.send(k)
		}
		p.run(t)
		if sent++; i == count/1000 {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Equal(t, want, there())
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4<<20), "bytes that are left of the attack")
	counts := p.fabric[1].HWCounters("soft0")
	require.Greater(t, counts["rcvd_pkts"], uint64(count/4), "%v", counts) // a full socket drops some
	for _, name := range []string{"rx_bad_opcode", "rx_bad_length", "rx_bad_mad"} {
		require.NotZero(t, counts[name], name)
	}
	t.Log(p.fabric[1].Counters(), counts)
}
