// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/uapi"
)

// attributes are the attributes in a netlink message or a nested attribute.
type attributes []byte

// kindMask selects the type of an attribute without its flags.
const kindMask = 0x3fff

// each calls do with all attributes of a type. It skips malformed data.
func (a attributes) each(number uapi.RDMANLDevAttr, do func(value attributes)) {
	all, err := nl.ParseRouteAttr(a)
	if err != nil {
		return
	}
	for _, one := range all {
		if uapi.RDMANLDevAttr(one.Attr.Type&kindMask) == number {
			do(one.Value)
		}
	}
}

// find returns the first attribute of a type, or nil.
func (a attributes) find(number uapi.RDMANLDevAttr) (found attributes) {
	a.each(number, func(value attributes) {
		if found == nil {
			found = value
		}
	})
	return found
}

// number returns an attribute of 1, 4 or 8 bytes, or 0.
func (a attributes) number(number uapi.RDMANLDevAttr) uint64 {
	switch v := a.find(number); len(v) {
	case 1:
		return uint64(v[0])
	case 4:
		return uint64(binary.NativeEndian.Uint32(v))
	case 8:
		return binary.NativeEndian.Uint64(v)
	}
	return 0
}

func (a attributes) number32(number uapi.RDMANLDevAttr) uint32 { return uint32(a.number(number)) }

// text returns a NUL-terminated attribute.
func (a attributes) text(number uapi.RDMANLDevAttr) string {
	text, _, _ := bytes.Cut(a.find(number), []byte{0})
	return printable(string(text))
}

// address returns a socket address, or "".
func (a attributes) address(number uapi.RDMANLDevAttr) string {
	v := a.find(number)
	if len(v) < 8 {
		return ""
	}
	port := binary.BigEndian.Uint16(v[2:])
	switch family := binary.NativeEndian.Uint16(v); {
	case family == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(v[4:8])), port).String()
	case family == unix.AF_INET6 && len(v) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(v[8:24])), port).String()
	}
	return ""
}
