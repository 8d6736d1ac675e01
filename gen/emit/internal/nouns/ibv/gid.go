// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ibv

// ParseGID reads a GID as people write it: as an IPv6 address (fe80::2:c903:a1:b2c3, ::ffff:192.0.2.1), as the IPv4
// address that a GID of RoCE v2 stands for (192.0.2.1), as its 32 hex digits, or as its halves (0xfe80000000000000:
// 0x0002c90300a1b2c3 in one word). Space around it is ignored, because files of sysfs end with a newline.
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

// String is the GID as an IPv6 address: "fe80::2:c903:a1:b2c3", "::ffff:192.0.2.1".
func (p GID) String() string { return formatGID(*p.Raw()) }

// MarshalText is String.
func (p GID) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParseGID.
func (p *GID) UnmarshalText(text []byte) error {
	g, err := ParseGID(string(text))
	if err == nil {
		*p = g
	}
	return err
}
