// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
)

func bits[T ~uint8 | ~uint16 | ~uint32 | ~uint64](t *rapid.T, name string, width int) T {
	return T(rapid.Uint64Range(0, 1<<width-1).Draw(t, name))
}

func gid(t *rapid.T, name string) [16]byte {
	return [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
}

// drawMAD draws a message that Encode accepts.
func drawMAD(t *rapid.T) *MAD {
	m := &MAD{Attribute: Attribute(rapid.IntRange(int(REQ), int(SIDRRep)).Draw(t, "attribute")),
		TID: bits[uint64](t, "TID", 64)}
	m.Private = rapid.SliceOfN(rapid.Byte(), 0, m.Attribute.PrivateSize()).Draw(t, "private")
	if m.Attribute != SIDRRep {
		m.LocalID = bits[uint32](t, "local ID", 32)
	}
	if m.Attribute != REQ && m.Attribute != SIDRReq {
		m.RemoteID = bits[uint32](t, "remote ID", 32)
	}
	switch m.Attribute {
	case REQ, REP:
		m.CAGUID, m.QPN, m.PSN = bits[uint64](t, "GUID", 64), bits[uint32](t, "QPN", 24), bits[uint32](t, "PSN", 24)
		m.ResponderResources, m.InitiatorDepth = bits[uint8](t, "resources", 8), bits[uint8](t, "depth", 8)
		m.RNRRetryCount, m.FlowControl, m.SRQ = bits[uint8](t, "RNR", 3), rapid.Bool().Draw(t, "flow"),
			rapid.Bool().Draw(t, "SRQ")
		m.ECE = ECE{bits[uint32](t, "vendor", 24), bits[uint32](t, "options", 32)}
	case MRA:
		m.Of, m.ServiceTimeout = bits[Of](t, "of", 2), bits[uint8](t, "timeout", 5)
	case REJ:
		m.Of, m.Reason = bits[Of](t, "of", 2), bits[uint16](t, "reason", 16)
	case DREQ:
		m.QPN = bits[uint32](t, "QPN", 24)
	case SIDRRep:
		m.Status, m.QPN, m.QKey = bits[uint8](t, "status", 8), bits[uint32](t, "QPN", 24), bits[uint32](t, "Q_Key", 32)
		m.ServiceID = bits[uint64](t, "service", 64)
	}
	switch m.Attribute {
	case REP:
		m.AckDelay = bits[uint8](t, "delay", 5)
	case REJ, SIDRRep:
		m.ARI = rapid.SliceOfN(rapid.Byte(), 0, MaxARI).Draw(t, "ARI")
	case REQ:
		m.RemoteTimeout, m.LocalTimeout, m.MaxRetries = bits[uint8](t, "remote", 5), bits[uint8](t, "local", 5),
			bits[uint8](t, "retries", 4)
		m.RetryCount, m.Transport = bits[uint8](t, "retry", 3),
			rapid.SampledFrom([]Transport{RC, UC, XRC}).Draw(t, "transport")
		m.Path = Path{
			Local: gid(t, "local GID"), Remote: gid(t, "remote GID"), FlowLabel: bits[uint32](t, "label", 20),
			Rate:         bits[uint8](t, "rate", 6),
			TrafficClass: bits[uint8](t, "class", 8), HopLimit: bits[uint8](t, "hops", 8),
			AckTimeout: bits[uint8](t, "ack", 5),
			MTU:        ibv.MTU(rapid.IntRange(1, 5).Draw(t, "MTU")),
		}
	}
	if m.Attribute == REQ || m.Attribute == SIDRReq {
		m.ServiceID, m.PKey = bits[uint64](t, "service", 64), bits[uint16](t, "P_Key", 16)
		from, to := gid(t, "from"), gid(t, "to")
		m.Source, m.Dest = netip.AddrPortFrom(netip.AddrFrom16(from), bits[uint16](t, "port", 16)), netip.AddrFrom16(to)
		if rapid.Bool().Draw(t, "IPv4") || !m.addressesAreGood() {
			m.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(from[:])), m.Source.Port())
			m.Dest = netip.AddrFrom4([4]byte(to[:]))
		}
	}
	return m
}

// TestMADBytes: decoding returns the encoded message, with zeros after the private data, because no message contains
// its length.
func TestMADBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMAD(t)
		b, err := m.Encode()
		require.NoError(t, err)
		require.Len(t, b, MADSize)
		got, err := DecodeMAD(b)
		require.NoError(t, err)
		m.Private = append(m.Private, make([]byte, m.Attribute.PrivateSize()-len(m.Private))...)
		if len(m.ARI) == 0 {
			m.ARI = nil
		}
		require.Equal(t, m, got)
	})
}

// TestMADLayout checks the offsets of fields in the specification and in Linux.
func TestMADLayout(t *testing.T) {
	four := netip.MustParseAddrPort("10.1.2.3:4567")
	for _, c := range []struct {
		m    MAD
		want map[int][]byte // by offset in the message, after the header
	}{
		{MAD{Attribute: REQ, LocalID: 0x01020304, ServiceID: 0x0000000001061D2F, QPN: 0xabcdef, ResponderResources: 5,
			InitiatorDepth: 6, RemoteTimeout: 20,
			LocalTimeout: 21, Transport: XRC, FlowControl: true, PSN: 0x123456, RetryCount: 7, PKey: 0xffff,
			RNRRetryCount: 6, MaxRetries: 15, SRQ: true,
			Path: Path{MTU: ibv.MTU_4096, HopLimit: 64, AckTimeout: 17, FlowLabel: 0xfffff, Rate: 3}, Source: four,
			Dest: four.Addr(), Private: []byte("hello")},
			map[int][]byte{0: {1, 2, 3, 4}, 8: {0, 0, 0, 0, 1, 6, 0x1d, 0x2f}, 32: {0xab, 0xcd, 0xef, 5}, 39: {6},
				43: {20<<3 | 3<<1 | 1}, 44: {0x12, 0x34, 0x56, 21<<3 | 7},
				48: {0xff, 0xff, 5<<4 | 6, 15<<4 | 1<<3 | 1}, 88: {0xff, 0xff, 0xf0, 3}, 93: {64}, 95: {17 << 3},
				140: {0, 4 << 4, 4567 >> 8, 4567 & 255}, 156: {10, 1, 2, 3}, 172: {10, 1, 2, 3}, 176: []byte("hello")}},
		{MAD{Attribute: REP, LocalID: 1, RemoteID: 2, QPN: 0xabcdef, PSN: 0x123456, ResponderResources: 5,
			InitiatorDepth: 6, AckDelay: 15, FlowControl: true,
			RNRRetryCount: 7, SRQ: true, ECE: ECE{0x123456, 9}, Private: []byte("welcome")},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2}, 12: {0xab, 0xcd, 0xef, 0x12},
				19: {0x34, 0x12, 0x34, 0x56, 0x56, 5, 6, 15<<3 | 1, 7<<5 | 1<<4}, 36: []byte("welcome"),
				-4: {0, 0, 0, 9}}},
		{MAD{Attribute: REJ, LocalID: 1, RemoteID: 2, Of: OfREP, Reason: RejectConsumer, ARI: []byte{9, 8},
			Private: []byte("no")},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2, 1 << 6, 2 << 1, 0, 28, 9, 8}, 84: []byte("no")}},
		{MAD{Attribute: MRA, LocalID: 1, RemoteID: 2, Of: OfOther, ServiceTimeout: 24},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2, 3 << 6, 24 << 3}}},
		{MAD{Attribute: DREQ, LocalID: 1, RemoteID: 2, QPN: 3, Private: []byte("bye")},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 3, 0}, 12: []byte("bye")}},
		{MAD{Attribute: RTU, LocalID: 1, RemoteID: 2, Private: []byte("go")},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2}, 8: []byte("go")}},
		{MAD{Attribute: DREP, LocalID: 1, RemoteID: 2, Private: []byte("gone")},
			map[int][]byte{0: {0, 0, 0, 1, 0, 0, 0, 2}, 8: []byte("gone")}},
		{MAD{Attribute: SIDRReq, LocalID: 7, PKey: 0x8001, ServiceID: 0x01110000,
			Source: netip.MustParseAddrPort("[fe80::1]:1"), Dest: netip.MustParseAddr("fe80::2")},
			map[int][]byte{0: {0, 0, 0, 7, 0x80, 1, 0, 0, 0, 0, 0, 0, 1, 0x11, 0, 0, 0, 6 << 4, 0, 1, 0xfe, 0x80},
				35: {1, 0xfe, 0x80}}},
		{MAD{Attribute: SIDRRep, RemoteID: 7, Status: 2, QPN: 0x123456, QKey: 0x01234567, ARI: []byte{5},
			Private: []byte("x")},
			map[int][]byte{0: {0, 0, 0, 7, 2, 1, 0, 0, 0x12, 0x34, 0x56}, 20: {1, 0x23, 0x45, 0x67, 5},
				96: []byte("x")}},
	} {
		c.m.TID = 0x1122334455667788
		b, err := c.m.Encode()
		require.NoError(t, err)
		assert.Equal(t, []byte{1, 7, 2, 3}, b[:4])
		assert.Equal(t, c.m.TID, binary.BigEndian.Uint64(b[8:]))
		assert.Equal(t, uint16(c.m.Attribute), binary.BigEndian.Uint16(b[16:]))
		for at, want := range c.want {
			assert.Equal(t, want, b[24+at:24+at+len(want)], "%v at %d", c.m.Attribute, at)
		}
	}
}

// TestMADsThatDoNotFit: values too large for a field are rejected, not truncated.
func TestMADsThatDoNotFit(t *testing.T) {
	for want, m := range map[string]*MAD{
		"unknown attribute 0x19": {Attribute: SIDRRep + 1},
		"QPN":                    {Attribute: DREQ, QPN: 1 << 24},
		"ECE vendor":             {Attribute: REP, ECE: ECE{Vendor: 1 << 24}},
		"retry count":            {Attribute: REQ, RetryCount: 8},
		"invalid transport 0x3":  {Attribute: REQ, Transport: 3},
		"extended transport":     {Attribute: REQ, Transport: 1 << 5},
		"invalid path MTU 0":     {Attribute: REQ},
		"different families":     {Attribute: REQ, Path: Path{MTU: 1}, Dest: netip.MustParseAddr("10.0.0.2")},
		"additional":             {Attribute: REJ, ARI: make([]byte, 73)},
		"private data exceed":    {Attribute: SIDRRep, Private: make([]byte, 137)},
		"service timeout":        {Attribute: MRA, ServiceTimeout: 32},
		"has no ECE options":     {Attribute: RTU, ECE: ECE{Options: 1}},
	} {
		_, err := m.Encode()
		assert.ErrorContains(t, err, want)
	}
}

// FuzzDecodeMAD: arbitrary bytes are rejected, or decoded to a message that can be encoded again.
func FuzzDecodeMAD(f *testing.F) {
	for a := REQ; a <= SIDRRep; a++ {
		m := &MAD{Attribute: a, Path: Path{MTU: 1}, Source: netip.MustParseAddrPort("10.0.0.1:1"),
			Dest: netip.MustParseAddr("10.0.0.2")}
		b, err := m.Encode()
		require.NoError(f, err)
		f.Add(b)
		f.Add(b[:MADSize-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMAD(b)
		if err != nil {
			return
		}
		again, err := m.Encode()
		require.NoError(t, err)
		got, err := DecodeMAD(again)
		require.NoError(t, err)
		require.Equal(t, m, got)
	})
}

// TestHostileMADs: bytes that are not a message of the connection manager are rejected.
func TestHostileMADs(t *testing.T) {
	good := &MAD{Attribute: REQ, Path: Path{MTU: 1}, Source: netip.MustParseAddrPort("10.0.0.1:1"),
		Dest: netip.MustParseAddr("10.0.0.2")}
	for want, harm := range map[string]func([]byte) []byte{
		"255 bytes":               func(b []byte) []byte { return b[:255] },
		"257 bytes":               func(b []byte) []byte { return append(b, 0) },
		"header":                  func(b []byte) []byte { b[1] = 3; return b },
		"unknown attribute 0x510": func(b []byte) []byte { b[16] = 5; return b },
		"invalid transport":       func(b []byte) []byte { b[24+43] |= 2 << 1; return b },
		"invalid path MTU 15":     func(b []byte) []byte { b[24+50] = 0xf0; return b },
		"73 bytes":                func(b []byte) []byte { b[17] = uint8(REJ); b[24+9] = 73 << 1; return b },
	} {
		b, err := good.Encode()
		require.NoError(t, err)
		_, err = DecodeMAD(harm(b))
		assert.ErrorContains(t, err, want)
	}
}

// TestNoAddresses: a request for a service other than IP's is decoded without addresses.
func TestNoAddresses(t *testing.T) {
	for _, a := range []Attribute{REQ, SIDRReq} {
		good := &MAD{Attribute: a, Path: Path{MTU: 1}, Source: netip.MustParseAddrPort("10.0.0.1:1"),
			Dest: netip.MustParseAddr("10.0.0.2"), TID: 7}
		b, err := good.Encode()
		require.NoError(t, err)
		at := MADSize - a.PrivateSize() - addressesSize
		for name, harm := range map[string]func(b []byte){
			"nothing":      func(b []byte) { clear(b) },
			"IP version 5": func(b []byte) { b[1] = 5 << 4 },
			"version 1":    func(b []byte) { b[0] = 1 },
			"IPv4 as IPv6": func(b []byte) { b[1], b[14], b[15] = 6<<4, 0xff, 0xff },
		} {
			bad := slices.Clone(b)
			harm(bad[at : at+addressesSize])
			m, err := DecodeMAD(bad)
			require.NoError(t, err, name)
			assert.EqualValues(t, 7, m.TID, name)
			assert.False(t, m.Source.IsValid() || m.Dest.IsValid(), name)
		}
	}
}
