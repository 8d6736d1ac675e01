// SPDX-License-Identifier: BSD-2-Clause

// Package message holds what the devices of a fabric say to each other: requests of queue pairs, their answers, and
// datagrams of the connection manager. A message is a value: it has no pointer to an object of either side, so that a
// wire may bring it to another place.
package message

import (
	"encoding/binary"
	"hash/maphash"
)

// Address says where a port is. The zero value is nowhere.
type Address struct {
	// Link is the 48-bit Ethernet address in the low bits. A port keeps it, whichever GIDs it has.
	Link uint64
	// GID is the address of the network layer: of RoCE v2, an IPv6 address or an IPv4 one mapped into it, in network
	// byte order.
	GID [16]byte
}

// group is the bit of a link address that says that it is of a group: the lowest of the first byte that is sent.
const group = 1 << 40

// IsGroup says whether the address is that of a multicast group.
func (a *Address) IsGroup() bool { return a.Link&group != 0 }

// Group is the address of the multicast group that a GID names. Several groups may have one link address.
func Group(gid [16]byte) Address {
	return Address{0x3333<<32 | uint64(binary.BigEndian.Uint32(gid[12:])), gid}
}

// remote is the bit of a link address that says that it is made of a GID: no device of the fabric has it.
const remote = 1 << 63

// Remote is the address of a port that is reached by its GID alone.
func Remote(gid [16]byte) Address {
	return Address{maphash.Bytes(seed, gid[:])&^group | remote, gid}
}

// seed keeps strangers from choosing a GID whose link address is that of another one.
var seed = maphash.MakeSeed()

// IsRemote says whether the address is one of Remote's.
func (a *Address) IsRemote() bool { return a.Link&remote != 0 }
