// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
)

// MADSize is the size of every management datagram in bytes.
const MADSize = 256

// The header that every MAD has, and its content in the connection manager's class.
const (
	madVersion   = 1
	cmClass      = 7
	cmVersion    = 2
	methodSend   = 3
	madTID       = 8  // offset of the transaction ID
	madAttribute = 16 // offset of the attribute
	madModifier  = 20 // offset of the ECE options on Linux
	madHeader    = 24
)

// Offsets in the message, after the header.
const (
	reqLocalGID  = 56
	reqRemoteGID = 72
	rejARILength = 9
	rejARI       = 12
	sidrLength   = 5
	sidrARI      = 24
)

// addressesSize is the size of the IP addressing data before the private data: version, IP version, port, and both
// addresses.
const addressesSize = 36

// Encode returns the message's 256 bytes. They do not include From and To, which are in the packet headers.
func (m *MAD) Encode() ([]byte, error) {
	if !m.Attribute.known() {
		return nil, fmt.Errorf("encode MAD: unknown attribute %#x", uint16(m.Attribute))
	}
	b := make([]byte, MADSize)
	b[0], b[1], b[2], b[3] = madVersion, cmClass, cmVersion, methodSend
	order.PutUint64(b[madTID:], m.TID)
	order.PutUint16(b[madAttribute:], uint16(m.Attribute))
	order.PutUint32(b[madModifier:], m.ECE.Options)
	body := b[madHeader:]
	for _, f := range fields[m.Attribute] {
		v := f.get(m)
		if v>>f.width != 0 {
			return nil, fmt.Errorf("encode MAD: %v: %s: %#x does not fit into %d bits", m.Attribute, f.name, v, f.width)
		}
		f.put(body, v)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("encode MAD: %v: %w", m.Attribute, err)
	}
	switch m.Attribute {
	case REQ:
		copy(body[reqLocalGID:], m.Path.Local[:])
		copy(body[reqRemoteGID:], m.Path.Remote[:])
	case REJ:
		body[rejARILength] = uint8(len(m.ARI)) << 1
		copy(body[rejARI:], m.ARI)
	case SIDRRep:
		body[sidrLength] = uint8(len(m.ARI))
		copy(body[sidrARI:], m.ARI)
	}
	private := len(body) - m.Attribute.PrivateSize()
	if m.Attribute.hasAddresses() && m.Dest.IsValid() {
		m.putAddresses(body[private-addressesSize:])
	}
	copy(body[private:], m.Private)
	return b, nil
}

// DecodeMAD is the inverse of Encode. Private data has the maximum size of its message. Reserved fields are ignored. A
// REQ or SIDR_REQ without valid IP addresses, as for services other than IP's, has none.
func DecodeMAD(b []byte) (*MAD, error) {
	if len(b) != MADSize {
		return nil, fmt.Errorf("decode MAD: got %d bytes, want %d", len(b), MADSize)
	}
	if b[0] != madVersion || b[1] != cmClass || b[2] != cmVersion || b[3] != methodSend {
		return nil, fmt.Errorf("decode MAD: header % x is not a connection manager's", b[:4])
	}
	m := &MAD{TID: order.Uint64(b[madTID:]), Attribute: Attribute(order.Uint16(b[madAttribute:]))}
	if !m.Attribute.known() {
		return nil, fmt.Errorf("decode MAD: unknown attribute %#x", uint16(m.Attribute))
	}
	if m.Attribute == REQ || m.Attribute == REP {
		m.ECE.Options = order.Uint32(b[madModifier:])
	}
	body := b[madHeader:]
	for _, f := range fields[m.Attribute] {
		f.set(m, f.read(body))
	}
	private := len(body) - m.Attribute.PrivateSize()
	if m.Attribute.hasAddresses() {
		m.readAddresses(body[private-addressesSize:])
	}
	err := m.readInformation(body)
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("decode MAD: %v: %w", m.Attribute, err)
	}
	m.Private = slices.Clone(body[private:])
	return m, nil
}

// readInformation reads the fields that are not numbers, before the addresses.
func (m *MAD) readInformation(body []byte) error {
	ari, n := 0, 0
	switch m.Attribute {
	case REQ:
		m.Path.Local, m.Path.Remote = [16]byte(body[reqLocalGID:]), [16]byte(body[reqRemoteGID:])
	case REJ:
		ari, n = rejARI, int(body[rejARILength]>>1)
	case SIDRRep:
		ari, n = sidrARI, int(body[sidrLength])
	}
	if n > MaxARI {
		return fmt.Errorf("%d bytes of additional information exceed the maximum of %d", n, MaxARI)
	}
	if n > 0 {
		m.ARI = slices.Clone(body[ari : ari+n])
	}
	return nil
}

// check rejects invalid messages.
func (m *MAD) check() error {
	switch {
	case len(m.Private) > m.Attribute.PrivateSize():
		return fmt.Errorf("%d bytes of private data exceed the maximum of %d", len(m.Private),
			m.Attribute.PrivateSize())
	case len(m.ARI) > MaxARI || len(m.ARI) > 0 && m.Attribute != REJ && m.Attribute != SIDRRep:
		return fmt.Errorf("invalid %d bytes of additional information", len(m.ARI))
	case m.ECE.Options != 0 && m.Attribute != REQ && m.Attribute != REP:
		return errors.New("the attribute has no ECE options")
	case m.Attribute == REQ && m.Transport != RC && m.Transport != UC && m.Transport != XRC:
		return fmt.Errorf("invalid transport %#x", uint8(m.Transport))
	case m.Attribute == REQ && (m.Path.MTU < ibv.MTU_256 || m.Path.MTU > ibv.MTU_4096):
		return fmt.Errorf("invalid path MTU %d", m.Path.MTU)
	case m.Attribute.hasAddresses() && (m.Source.IsValid() || m.Dest.IsValid()) && !m.addressesAreGood():
		return fmt.Errorf("addresses %v and %v are of different families", m.Source, m.Dest)
	}
	return nil
}

// hasAddresses reports whether IP addresses may precede the private data.
func (a Attribute) hasAddresses() bool { return a == REQ || a == SIDRReq }

func (m *MAD) addressesAreGood() bool {
	from, to := m.Source.Addr(), m.Dest
	return from.Is4() && to.Is4() || isIPv6(from) && isIPv6(to)
}

// isIPv6 reports whether an address is a canonical IPv6 address: not IPv4-mapped and without a zone.
func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }

// putAddresses writes IP version, port and addresses. IPv4 addresses are at the end of their 16 bytes.
func (m *MAD) putAddresses(b []byte) {
	order.PutUint16(b[2:], m.Source.Port())
	if m.Dest.Is4() {
		b[1] = 4 << 4
		from, to := m.Source.Addr().As4(), m.Dest.As4()
		copy(b[4+12:], from[:])
		copy(b[20+12:], to[:])
		return
	}
	b[1] = 6 << 4
	from, to := m.Source.Addr().As16(), m.Dest.As16()
	copy(b[4:], from[:])
	copy(b[20:], to[:])
}

// readAddresses is the inverse of putAddresses. It ignores invalid addresses.
func (m *MAD) readAddresses(b []byte) {
	from, to := b[4:20], b[20:36]
	switch version := b[1] >> 4; {
	case b[0] != 0:
		return
	case version == 4:
		from, to = from[12:], to[12:]
	case version != 6:
		return
	}
	source, _ := netip.AddrFromSlice(from)
	m.Dest, _ = netip.AddrFromSlice(to)
	m.Source = netip.AddrPortFrom(source, order.Uint16(b[2:]))
	if !m.addressesAreGood() {
		m.Source, m.Dest = netip.AddrPort{}, netip.Addr{}
	}
}
