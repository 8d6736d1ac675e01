// SPDX-License-Identifier: BSD-2-Clause

// Package message defines the messages between devices: requests of queue pairs, their answers, and datagrams of the
// connection manager. A message holds no pointer to an object of either side, so that a wire can carry it to another
// process or host.
package message

import (
	"encoding/binary"
	"hash/maphash"
)

// Address locates a port. The zero value is no address.
type Address struct {
	// Link is the 48-bit Ethernet address in the low bits. It does not change with the port's GIDs.
	Link uint64
	// GID is the network layer address. For RoCE v2 it is an IPv6 or IPv4-mapped address, in network byte order.
	GID [16]byte
}

// group is the multicast bit of a link address: the lowest bit of the first byte on the wire.
const group = 1 << 40

// IsGroup reports whether the address is that of a multicast group.
func (a *Address) IsGroup() bool { return a.Link&group != 0 }

// Group returns the address of the multicast group of a GID. Several groups may share a link address.
func Group(gid [16]byte) Address {
	return Address{0x3333<<32 | uint64(binary.BigEndian.Uint32(gid[12:])), gid}
}

// remote marks a link address derived from a GID, which no device of the fabric has.
const remote = 1 << 63

// Remote returns the address of a port known only by its GID.
func Remote(gid [16]byte) Address {
	return Address{maphash.Bytes(seed, gid[:])&^group | remote, gid}
}

// seed makes link addresses unpredictable, so that strangers cannot choose GIDs that collide.
var seed = maphash.MakeSeed()

// IsRemote reports whether the address was returned by Remote.
func (a *Address) IsRemote() bool { return a.Link&remote != 0 }
