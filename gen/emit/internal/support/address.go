// SPDX-License-Identifier: BSD-2-Clause

package support

// GUID is the EUI-64 of a node, a port or a system, in network byte order. It prints like in ibv_devinfo:
// 0002:c903:00a1:b2c3.
type GUID BE64

// ParseGUID parses a GUID in one of these forms: 0002:c903:00a1:b2c3, 00:02:c9:03:00:a1:b2:c3 (also with -),
// 0x0002c90300a1b2c3, or 16 hex digits. Surrounding space is ignored, because sysfs files end with a newline.
func ParseGUID(text string) (GUID, error) {
	var b [8]byte
	s := trim(text)
	hex := withoutHex(s)
	digits := hex != s && len(hex) <= 16 || len(s) == 16
	if n, ok := parseNumber(hex, 16); ok && digits {
		return GUID(ToBE64(n)), nil
	}
	if !groups(s, ':', b[:], 2, 1) && !groups(s, ':', b[:], 1, 2) && !groups(s, '-', b[:], 1, 2) {
		return 0, &textError{text, "a GUID", "write it as 0002:c903:00a1:b2c3, 00:02:c9:03:00:a1:b2:c3, " +
			"0x0002c90300a1b2c3, or 16 hex digits"}
	}
	return GUID(ToBE64(bigEndian(b[:]))), nil
}

// Host returns the number in host byte order.
func (g GUID) Host() uint64 { return BE64(g).Host() }

// String returns, for example, "0002:c903:00a1:b2c3".
func (g GUID) String() string {
	var b [8]byte
	for i := range b {
		b[i] = byte(g.Host() >> (56 - 8*i))
	}
	return string(appendGroups(nil, b[:], 2))
}

// MarshalText returns the same text as String.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses like ParseGUID.
func (g *GUID) UnmarshalText(text []byte) (err error) {
	v, err := ParseGUID(string(text))
	if err == nil {
		*g = v
	}
	return err
}

// MAC is an Ethernet address. net.HardwareAddr(m[:]) converts it to the type of package net.
type MAC [6]uint8

// String returns, for example, "02:00:5e:10:00:01".
func (m MAC) String() string { return string(appendGroups(nil, m[:], 1)) }

// MarshalText returns the same text as String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses an address with colons, hyphens or periods (0200.5e10.0001), or 12 hex digits.
func (m *MAC) UnmarshalText(text []byte) error {
	var b MAC
	s := trim(string(text))
	if n, ok := parseNumber(s, 16); ok && len(s) == 2*len(b) {
		for i := range m {
			m[i] = byte(n >> (40 - 8*i))
		}
		return nil
	}
	if !groups(s, ':', b[:], 1, 2) && !groups(s, '-', b[:], 1, 2) && !groups(s, '.', b[:], 2, 4) {
		return &textError{string(text), "an Ethernet address",
			"write it as 02:00:5e:10:00:01, 02-00-5e-10-00-01, 0200.5e10.0001 or 02005e100001"}
	}
	*m = b
	return nil
}

// groups parses hex numbers into b until it is full. Each number has the given number of bytes and at least least
// digits; between separates them.
func groups(s string, between byte, b []byte, bytes, least int) bool {
	for i := 0; i < len(b); i += bytes {
		n := 0
		for n < len(s) && s[n] != between {
			n++
		}
		v, ok := parseNumber(s[:n], 16)
		if !ok || n < least || n > 2*bytes || n < len(s) == (i+bytes == len(b)) {
			return false
		}
		for j := range bytes {
			b[i+j] = byte(v >> (8 * (bytes - 1 - j)))
		}
		s = s[min(n+1, len(s)):]
	}
	return true
}

// appendGroups appends such numbers with all digits.
func appendGroups(s, b []byte, bytes int) []byte {
	for i, v := range b {
		if i > 0 && i%bytes == 0 {
			s = append(s, ':')
		}
		s = append(s, "0123456789abcdef"[v>>4], "0123456789abcdef"[v&15])
	}
	return s
}

func bigEndian(b []byte) (v uint64) {
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

// withoutHex returns the text after 0x.
func withoutHex(s string) string {
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return s[2:]
	}
	return s
}

// formatGID formats a GID as an IPv6 address in the form of RFC 5952.
func formatGID(g [16]byte) string {
	four := true // whether it is an IPv4-mapped address
	for i, c := range g[:12] {
		four = four && c == mapped[i]
	}
	if four {
		s := []byte("::ffff:")
		for i, c := range g[12:] {
			if i > 0 {
				s = append(s, '.')
			}
			s = appendNumber(s, uint64(c), 10)
		}
		return string(s)
	}
	zeros, end := 0, 0 // first of the longest runs of zeros, unless the run is only one group
	for i := 0; i < 8; i++ {
		j := i
		for j < 8 && g[2*j] == 0 && g[2*j+1] == 0 {
			j++
		}
		if j-i > max(end-zeros, 1) {
			zeros, end = i, j
		}
	}
	var s []byte
	for i := 0; i < 8; i++ {
		if i == zeros && end > zeros {
			s = append(s, "::"...)
			if i = end; i == 8 {
				break
			}
		} else if i > 0 {
			s = append(s, ':')
		}
		s = appendNumber(s, bigEndian(g[2*i:2*i+2]), 16)
	}
	return string(s)
}

// mapped is the prefix of an IPv4-mapped address.
var mapped = [12]byte{10: 0xff, 11: 0xff}

// parseGID parses a GID in any form that ParseGID accepts.
func parseGID(text string) (g [16]byte, ok bool) {
	s := trim(text)
	colons := 0
	for i := range len(s) {
		if s[i] == ':' {
			colons++
		}
	}
	switch colons {
	case 0:
		if copy(g[:], mapped[:]); parseIPv4(s, g[12:]) {
			return g, true
		}
		hex := withoutHex(s)
		return g, len(hex) == 32 && halves(hex[:16], hex[16:], &g)
	case 1:
		at := 0
		for s[at] != ':' {
			at++
		}
		high, low := s[:at], s[at+1:]
		if isHalf(high) && isHalf(low) {
			return g, halves(withoutHex(high), withoutHex(low), &g)
		}
		return g, false
	}
	return parseIPv6(s)
}

// isHalf reports whether s may be a 64-bit number: prefixed with 0x, or with all digits.
func isHalf(s string) bool {
	hex := withoutHex(s)
	return hex != s && len(hex) <= 16 || len(s) == 16
}

func halves(high, low string, g *[16]byte) bool {
	h, ok := parseNumber(high, 16)
	l, also := parseNumber(low, 16)
	for i := range 8 {
		g[i], g[8+i] = byte(h>>(56-8*i)), byte(l>>(56-8*i))
	}
	return ok && also
}

// parseIPv4 parses four decimal numbers. It rejects leading zeros, which some programs interpret as octal.
func parseIPv4(s string, b []byte) bool {
	for i := range 4 {
		n := 0
		for n < len(s) && s[n] != '.' {
			n++
		}
		v, ok := parseNumber(s[:n], 10)
		if !ok || v > 255 || n > 1 && s[0] == '0' || n < len(s) == (i == 3) {
			return false
		}
		b[i] = byte(v)
		s = s[min(n+1, len(s)):]
	}
	return true
}

// parseIPv6 parses an IPv6 address.
func parseIPv6(s string) (g [16]byte, ok bool) {
	at, gap := 0, -1 // number of bytes so far; position of ::
	if len(s) > 1 && s[:2] == "::" {
		gap, s = 0, s[2:]
	}
	for s != "" {
		if at == 16 {
			return g, false
		}
		n := 0
		for n < len(s) && s[n] != ':' {
			n++
		}
		if n == len(s) && at <= 12 && parseIPv4(s, g[at:]) {
			at += 4
			break
		}
		v, ok := parseNumber(s[:n], 16)
		if !ok || n > 4 {
			return g, false
		}
		g[at], g[at+1] = byte(v>>8), byte(v)
		at += 2
		switch s = s[n:]; {
		case s == "":
		case len(s) > 1 && s[:2] == "::":
			if gap >= 0 {
				return g, false
			}
			gap, s = at, s[2:]
		case s == ":":
			return g, false
		default:
			s = s[1:]
		}
	}
	if gap < 0 {
		return g, at == 16
	}
	if at == 16 { // :: stands for at least one group
		return g, false
	}
	tail := g[gap:at]
	moved := [16]byte{}
	copy(moved[:], g[:gap])
	copy(moved[16-len(tail):], tail)
	return moved, true
}
