// SPDX-License-Identifier: BSD-2-Clause

package support

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGUIDs(t *testing.T) {
	const guid = "0002:c903:00a1:b2c3"
	for _, text := range []string{guid, "2:c903:a1:b2c3", "0x0002c90300a1b2c3", "0x2c90300a1b2c3", "0002c90300a1b2c3",
		"0002C90300A1B2C3", "00:02:c9:03:00:a1:b2:c3", "00-02-C9-03-00-A1-B2-C3", guid + "\n", " " + guid} {
		g, err := ParseGUID(text)
		require.NoError(t, err, text)
		assert.Equal(t, uint64(0x2c90300a1b2c3), g.Host(), text)
		assert.Equal(t, guid, g.String())
	}
	for _, text := range []string{"", "0x", "0x1ffffffffffffffff", "2c90300a1b2c3", "0002:c903:00a1", guid + ":0001",
		guid + ":", ":" + guid, "0002:c903::b2c3", "0002:c903:00a1:b2cg", "0002-c903-00a1-b2c3",
		"00:02-c9:03-00:a1-b2:c3",
		"00:02:c9:03:00:a1:b2:c", "00002:c903:00a1:b2c3", "-002c90300a1b2c3", "+0x2c90300a1b2c3", "fe80::1"} {
		_, err := ParseGUID(text)
		assert.ErrorContains(t, err, "is not a GUID: write it as 0002:c903:00a1:b2c3", "%q", text)
	}
	g := map[GUID]MAC{GUID(ToBE64(0x2c90300a1b2c3)): {2, 0, 0x5e, 0x10, 0, 1}}
	text, err := json.Marshal(g)
	require.NoError(t, err)
	assert.Equal(t, `{"0002:c903:00a1:b2c3":"02:00:5e:10:00:01"}`, string(text))
	var back map[GUID]MAC
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, g, back)
}

// FuzzMACs compares with package net, which also has addresses of other lengths.
func FuzzMACs(f *testing.F) {
	for _, s := range []string{"02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001", "02005E100001",
		"02:00:5e:10:00:01:02:03", "",
		"2:0:5e:10:0:1", "0200.5e10.001", "02:00-5e:10:00:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := net.ParseMAC(trim(s))
		var m MAC
		if err != nil || len(want) != 6 {
			assert.Error(t, m.UnmarshalText([]byte(s)))
			return
		}
		require.NoError(t, m.UnmarshalText([]byte(s)))
		assert.Equal(t, want, net.HardwareAddr(m[:]))
		assert.Equal(t, want.String(), m.String())
	})
}

// FuzzGIDs compares with netip, which is strict and accepts the same forms of addresses.
func FuzzGIDs(f *testing.F) {
	for _, s := range []string{"::", "::1", "1::", "fe80::2:c903:a1:b2c3", "::ffff:192.0.2.1", "::ffff:c000:201",
		"fe80:0000:0000:0000:0002:c903:00a1:b2c3", "1:0:0:2:0:0:0:3", "0:0:1::", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8",
		"1::2:3:4:5:6:7:8", "1:2:3:4:5:6:1.2.3.4", "1::1.2.3.04", "1:::2", "1::2::3",
		":1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:",
		"fe80::1%eth0", "12345::", "192.0.2.1", "192.0.2.256", "1.2.3.4.5", "::1.2.3", "::ffff:0:1.2.3.4", "\n::1 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := parseGID(s)
		if ok {
			text := formatGID(got)
			assert.Equal(t, netip.AddrFrom16(got).String(), text)
			back, ok := parseGID(text)
			assert.True(t, ok)
			assert.Equal(t, got, back)
		}
		want, err := netip.ParseAddr(trim(s))
		switch {
		case err == nil && want.Zone() == "":
			require.True(t, ok, "%q", s)
			assert.Equal(t, want.As16(), got, "%q", s)
		case ok: // a form that is not an address
			short := fmt.Sprintf("%032x", got)
			high, low := short[:16], short[16:]
			h, l := withoutHex(trim(s)), ""
			if len(h) == 32 {
				h, l = h[:16], h[16:]
			} else {
				h, l = halvesOf(t, trim(s))
			}
			assert.Equal(t, [2]GUID{mustGUID(t, "0x"+high), mustGUID(t, "0x"+low)},
				[2]GUID{mustGUID(t, "0x"+h), mustGUID(t, "0x"+l)}, "%q", s)
		}
	})
}

func halvesOf(t *testing.T, s string) (high, low string) {
	for i := range s {
		if s[i] == ':' {
			return withoutHex(s[:i]), withoutHex(s[i+1:])
		}
	}
	require.Fail(t, "unknown form", "%q", s)
	return "", ""
}

func mustGUID(t *testing.T, s string) GUID {
	g, err := ParseGUID(s)
	require.NoError(t, err)
	return g
}

func TestGIDForms(t *testing.T) {
	want := [16]byte{0xfe, 0x80, 9: 2, 10: 0xc9, 11: 3, 13: 0xa1, 14: 0xb2, 15: 0xc3}
	for _, s := range []string{"fe80::2:c903:a1:b2c3", "fe80:0000:0000:0000:0002:c903:00a1:b2c3\n",
		"fe800000000000000002c90300a1b2c3", "0xFE800000000000000002c90300a1b2c3",
		"0xfe80000000000000:0x0002c90300a1b2c3", "0xfe80000000000000:0x2c90300a1b2c3",
		"fe80000000000000:0002c90300a1b2c3"} {
		got, ok := parseGID(s)
		assert.True(t, ok, s)
		assert.Equal(t, want, got, s)
	}
	for _, s := range []string{"", ":", "1:2", "0x1:", ":0x1", "fe80000000000000:2c90300a1b2c3", "0xfe80::1",
		"fe80000000000000:0x", "e800000000000000002c90300a1b2c3", "[::1]", "::1/64", "fe80::1%eth0", "localhost"} {
		_, ok := parseGID(s)
		assert.False(t, ok, "%q", s)
	}
}
