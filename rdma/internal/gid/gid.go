// SPDX-License-Identifier: BSD-2-Clause

// Package gid selects GIDs of a device by address, type and network interface. It queries the system's interfaces, not
// the device.
package gid

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Query describes a GID. A field that is not set matches every GID.
type Query struct {
	Port      uint8        // 0: any
	Address   netip.Addr   // address of the network interface, which peers use
	Type      *ibv.GIDType // nil: RoCE v2 if the port has it, otherwise any type
	Interface string       // name of the network interface, such as "eth0"
	VLAN      *uint16      // VLAN of the interface; 0: no VLAN
	GID       *ibv.GID     // exactly this GID
}

// String describes the query: "with port 1, address 10.0.0.1".
func (q Query) String() string {
	var all []string
	add := func(set bool, format string, v any) {
		if set {
			all = append(all, fmt.Sprintf(format, v))
		}
	}
	add(q.Port != 0, "port %d", q.Port)
	add(q.Address.IsValid(), "address %v", q.Address)
	if q.Type != nil {
		add(true, "type %v", *q.Type)
	}
	add(q.Interface != "", "interface %s", q.Interface)
	if q.VLAN != nil {
		add(true, "VLAN %d", *q.VLAN)
	}
	if q.GID != nil {
		add(true, "GID %s", *q.GID)
	}
	if len(all) == 0 {
		return "of any kind"
	}
	return "with " + strings.Join(all, ", ")
}

// Address returns a GID as an IP address.
func Address(g ibv.GID) netip.Addr { return netip.AddrFrom16(*g.Raw()).Unmap() }

// EntryAddress returns the IP address of a GID entry. A link-local address has its network interface as zone.
func EntryAddress(e *ibv.GIDEntry) netip.Addr {
	a := Address(e.GID)
	if !a.Is6() || !a.IsLinkLocalUnicast() || e.NDevIfindex == 0 {
		return a
	}
	if i, err := net.InterfaceByIndex(int(e.NDevIfindex)); err == nil {
		return a.WithZone(i.Name)
	}
	return a.WithZone(strconv.Itoa(int(e.NDevIfindex)))
}

// Choose returns the entry that fits a query best, and reports whether any fits. It prefers entries whose network
// interface is in the network namespace of the calling thread, then RoCE v2, then IPv4 over IPv6. Link-local addresses
// come last.
func Choose(q Query, all []ibv.GIDEntry) (e ibv.GIDEntry, ok bool) {
	var fit []candidate
	here := interfaces{}
	for _, e := range all {
		if c, ok := fits(q, e, here); ok {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return e, false
	}
	return slices.MaxFunc(fit, func(a, b candidate) int { return a.rank - b.rank }).entry, true
}

// candidate is a matching entry and its rank.
type candidate struct {
	entry ibv.GIDEntry
	rank  int
}

func fits(q Query, e ibv.GIDEntry, all interfaces) (c candidate, ok bool) {
	address := Address(e.GID)
	if q.Port != 0 && uint32(q.Port) != e.PortNum || q.Address.IsValid() && q.Address.Unmap().WithZone("") != address ||
		q.Type != nil && *q.Type != e.GIDType || q.GID != nil && *q.GID != e.GID {
		return c, false
	}
	c.entry = e
	name, here := all.with(int(e.NDevIfindex), address)
	if q.Interface != "" && (!here || name != q.Interface) || q.VLAN != nil && (!here || vlanOf(name) != *q.VLAN) {
		return c, false
	}
	for i, better := range []bool{!address.IsLinkLocalUnicast(), address.Is4(), e.GIDType == ibv.GID_TYPE_ROCE_V2,
		here} {
		if better {
			c.rank |= 1 << i
		}
	}
	return c, true
}

// interfaces caches this namespace's network interfaces by index, because each lookup is a system call.
type interfaces map[int]struct {
	name      string
	addresses []net.Addr
}

// with returns the name of an interface, if it is in this namespace and has the address. An interface of another
// namespace may have the same index.
func (all interfaces) with(index int, address netip.Addr) (name string, here bool) {
	i, known := all[index]
	if !known {
		if found, err := net.InterfaceByIndex(index); err == nil {
			i.name = found.Name
			i.addresses, _ = found.Addrs()
		}
		all[index] = i
	}
	return i.name, slices.ContainsFunc(i.addresses, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap().WithZone("") == address
	})
}

// vlanOf returns the VLAN of a network interface from the kernel's list, or 0.
func vlanOf(name string) uint16 {
	f, err := os.Open("/proc/thread-self/net/vlan/config") // of the thread's namespace, like the interfaces
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); { // "eth0.7  | 7  | eth0"
		columns := strings.Split(lines.Text(), "|")
		if len(columns) == 3 && strings.TrimSpace(columns[0]) == name {
			id, _ := strconv.ParseUint(strings.TrimSpace(columns[1]), 10, 16)
			return uint16(id)
		}
	}
	return 0
}

// List formats entries for an error text.
func List(all []ibv.GIDEntry) string {
	if len(all) == 0 {
		return "none: check that the network interface has an address"
	}
	var names []string
	for _, e := range all {
		names = append(names, fmt.Sprintf("%s (port %d, %v)", e.GID, e.PortNum, e.GIDType))
	}
	return strings.Join(names, ", ")
}
