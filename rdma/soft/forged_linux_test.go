// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// TestForgedResponses: responses that do not match a request are dropped and counted, even from the peer's address:
// longer or shorter than the read, for unsent packets, or of another kind or transport. They complete no request and
// write no byte, and the request completes when the peer responds.
func TestForgedResponses(t *testing.T) {
	const size = 10000 // 3 packets of 4096 bytes
	p := newPair(t, "127.0.3.1", "127.0.3.2", size)
	for i := range p.memory[1] {
		p.memory[1][i] = byte(i * 7)
	}
	s := &hostileTest{t: t, out: &meter{from: netip.MustParseAddr("127.0.3.1")}, lines: []*line{{}}}
	forger := s.attacker(1, netip.MustParseAddr("127.0.3.2"), make([]byte, 1<<16))
	require.True(t, p.fabric[1].SetLink("soft0", false)) // disconnect the peer
	p.sends.Reset()
	p.sends.Read(1, p.there.Address(), p.there.RKey()).Add(p.here.SGE(0, size)).Signaled()
	_, err := p.a.PostSend(p.sends)
	require.NoError(t, err)
	var asked uint32
	waitFor(t, func() bool {
		c := p.fabric[0].Connections()[0]
		asked = (c.NextPSN - c.InFlight) & 0xffffff
		return c.InFlight == 3
	})
	before := append([]byte{}, p.memory[0]...)
	const first, middle, last, only, ack, atomic, xrc = ibv.OPCODE_RDMA_READ_RESPONSE_FIRST,
		ibv.OPCODE_RDMA_READ_RESPONSE_MIDDLE, ibv.OPCODE_RDMA_READ_RESPONSE_LAST, ibv.OPCODE_RDMA_READ_RESPONSE_ONLY,
		ibv.OPCODE_ACKNOWLEDGE, ibv.OPCODE_ATOMIC_ACKNOWLEDGE, 0xa0
	for _, c := range []struct {
		name   string
		opcode byte
		psn    uint32 // relative to the request
		n      int    // payload length
		aeth   uint32
		pkey   uint16
		count  string // name of the counter
	}{
		{"too short", first, 0, 4092, 0, 0xffff, "rx_late_ack"},
		{"too short, and the end", only, 0, 8, 0, 0xffff, "rx_late_ack"},
		{"the last one too long", last, 2, 4096, 0, 0xffff, "rx_late_ack"},
		{"behind what is asked for", middle, 3, 4096, 0, 0xffff, "rx_late_ack"},
		{"far behind", middle, 1 << 20, 4096, 0, 0xffff, "rx_late_ack"},
		{"before", middle, 1<<24 - 1, 4096, 0, 0xffff, "rx_late_ack"},
		{"of an atomic", atomic, 0, 8, 0, 0xffff, "rx_late_ack"},
		{"an acknowledgement of what was never sent", ack, 3, 0, 0, 0xffff, "rx_late_ack"},
		{"a refusal of what was never sent", ack, 5, 0, 0x62 << 24, 0xffff, "rx_late_ack"},
		{"a refusal for no reason", ack, 0, 0, 0x6f << 24, 0xffff, "rx_bad_syndrome"},
		{"data that is refused", first, 0, 4096, 0x62 << 24, 0xffff, "rx_bad_syndrome"},
		{"of XRC", xrc | first, 0, 4096, 0, 0xffff, "rx_wrong_transport"},
		{"a refusal of XRC", xrc | ack, 0, 0, 0x62 << 24, 0xffff, "rx_wrong_transport"},
		{"of another partition", first, 0, 4096, 0, 0x9234, "bad_pkey"},
		{"a refusal of another partition", ack, 0, 0, 0x62 << 24, 0x9234, "bad_pkey"},
	} {
		counts := p.fabric[0].HWCounters("soft0")
		b := forger.b[:12]
		b[0], b[1] = c.opcode, 0
		binary.BigEndian.PutUint16(b[2:], c.pkey)
		binary.BigEndian.PutUint32(b[4:], p.a.Num())
		binary.BigEndian.PutUint32(b[8:], (asked+c.psn)&0xffffff)
		if c.opcode != middle {
			b = binary.BigEndian.AppendUint32(b, c.aeth)
		}
		b = append(b, bytes.Repeat([]byte{0xbb}, c.n+4)...)
		packet.Seal(b, &forger.from, &forger.to, 0)
		_, err := forger.socket.WriteToUDPAddrPort(b, forger.port)
		require.NoError(t, err)
		for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
			n, err := p.a.SendCQ().Poll(p.wcs)
			require.NoError(t, err)
			require.Zero(t, n, "%s: %v", c.name, p.wcs[0].Status)
			if p.fabric[0].HWCounters("soft0")[c.count] > counts[c.count] {
				break
			}
			require.True(t, time.Now().Before(deadline), "%s is not counted as %s", c.name, c.count)
		}
		assert.Equal(t, before, p.memory[0], c.name)
	}
	require.True(t, p.fabric[1].SetLink("soft0", true))
	waitFor(t, func() bool {
		n, err := p.a.SendCQ().Poll(p.wcs)
		require.NoError(t, err)
		return n > 0
	})
	require.NoError(t, rdma.CompletionErr(&p.wcs[0]))
	require.True(t, bytes.Equal(p.memory[1][around:][:size], p.memory[0][around:][:size]))
}

// TestForgedPass: a message forged as one passed on by a process with the same address is dropped and counted, because
// its sender does not know their secret.
func TestForgedPass(t *testing.T) {
	at := netip.MustParseAddr("127.0.3.5")
	f := fabricAt(t, at.String())
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, packet.Port)))
	require.NoError(t, err)
	defer c.Close()
	from := c.LocalAddr().(*net.UDPAddr).AddrPort()
	p := make([]byte, 12+16+16+message.MADSize+4)
	p[0], p[1], p[7] = 0xff, 0xf, 2
	mad, err := (&message.MAD{Attribute: message.SIDRReq, LocalID: 1, ServiceID: 0x106_1234}).Encode()
	require.NoError(t, err)
	copy(p[12+16+16:], mad)
	packet.Seal(p, &packet.Endpoint{GID: from.Addr().As16(), Port: from.Port()},
		&packet.Endpoint{GID: at.As16(), Port: packet.Port}, 0)
	_, err = c.Write(p)
	require.NoError(t, err)
	waitFor(t, func() bool { return f.HWCounters("soft0")["rx_bad_version"] == 1 })
	assert.Zero(t, f.HWCounters("soft0")["rx_cm_no_listener"])
}
