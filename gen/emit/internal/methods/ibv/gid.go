// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ibv

// ParseGID parses a GID in one of these forms: an IPv6 address (fe80::2:c903:a1:b2c3, ::ffff:192.0.2.1), the IPv4
// address of a RoCE v2 GID (192.0.2.1), 32 hex digits, or two halves (0xfe80000000000000:0x0002c90300a1b2c3).
// Surrounding space is ignored, because sysfs files end with a newline.
func ParseGID(text string) (GID, error) {
	b, ok := parseGID(text)
	if !ok {
		return GID{}, &textError{text, "a GID", "write it as an IPv6 address without a zone (fe80::2:c903:a1:b2c3, " +
			"::ffff:192.0.2.1), as 32 hex digits, or as its halves (0xfe80000000000000:0x0002c90300a1b2c3)"}
	}
	var g GID
	*g.Raw() = b
	return g, nil
}

// String returns the GID as an IPv6 address: "fe80::2:c903:a1:b2c3", "::ffff:192.0.2.1".
func (p GID) String() string { return formatGID(*p.Raw()) }

// MarshalText returns the same text as String.
func (p GID) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses like ParseGID.
func (p *GID) UnmarshalText(text []byte) error {
	g, err := ParseGID(string(text))
	if err == nil {
		*p = g
	}
	return err
}
