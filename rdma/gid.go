package rdma

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// GIDs reads the GID tables of all ports of the device, without empty entries. The indexes change when the addresses of
// the network interface change, so do not remember them: look a GID up by its properties, with FindGID.
//
// C: ibv_query_gid_table
//
// Man: ibv_query_gid_table(3)
func (d *Device) GIDs() ([]ibv.GIDEntry, error) {
	attr, err := d.Query()
	if err != nil {
		return nil, err
	}
	most := 0
	for n := uint8(1); n >= 1 && n <= attr.PhysPortCnt; n++ {
		port, err := d.Port(n)
		if err != nil {
			return nil, err
		}
		most += int(port.GIDTblLen)
	}
	if most == 0 {
		return nil, nil
	}
	entries := make([]ibv.GIDEntry, most)
	err = d.query("ibv_query_gid_table", func() error {
		n, err := libibverbs.QueryGIDTable(d.c, &entries[0], uint64(most), 0)
		entries = entries[:max(n, 0)]
		return err
	})
	return entries, err
}

// GID reads an entry of a port's GID table.
//
// C: ibv_query_gid_ex, ibv_query_gid
//
// Man: ibv_query_gid_ex(3)
func (d *Device) GID(port uint8, index int) (*ibv.GIDEntry, error) {
	e := new(ibv.GIDEntry)
	return e, d.query("ibv_query_gid_ex", func() error { return libibverbs.QueryGIDEx(d.c, uint32(port), uint32(index), e, 0) })
}

// GIDQuery describes a GID. A field that is not set matches every GID.
type GIDQuery struct {
	Port      uint8        // 0: any
	Address   netip.Addr   // of the network interface; peers use it
	Type      *ibv.GIDType // nil: RoCE v2 if the port has it, otherwise any type
	Interface string       // name of the network interface: "eth0"
	VLAN      *uint16      // of the interface; 0: none
	GID       *ibv.GID     // exactly this GID
}

// String describes the query: "with port 1, address 10.0.0.1".
func (q GIDQuery) String() string {
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
		add(true, "GID %s", GIDString(*q.GID))
	}
	if len(all) == 0 {
		return "of any kind"
	}
	return "with " + strings.Join(all, ", ")
}

// GIDAddress returns a GID as an IP address. For RoCE v2 it is that of the network interface; other GIDs only look like
// one.
func GIDAddress(g ibv.GID) netip.Addr { return netip.AddrFrom16(*g.Raw()).Unmap() }

// GIDString returns a GID as people write it.
func GIDString(g ibv.GID) string { return netip.AddrFrom16(*g.Raw()).String() }

// FindGID finds the GID of the device that matches a query. If there are several, it prefers one whose network
// interface is in the network namespace of the calling thread, then RoCE v2, then IPv4 over IPv6, and link-local
// addresses last. A query with an interface name or a VLAN matches only GIDs of that namespace. If nothing matches, the
// error is ENOENT and lists the GIDs of the device. The kernel creates GIDs of new addresses in the background.
//
// Man: ibv_query_gid_table(3)
func (d *Device) FindGID(q GIDQuery) (ibv.GIDEntry, error) {
	all, err := d.GIDs()
	if err != nil {
		return ibv.GIDEntry{}, err
	}
	var fit []gidCandidate
	here := interfaces{}
	for _, e := range all {
		if c, ok := q.fits(e, here); ok {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return ibv.GIDEntry{}, &VerbError{Verb: "ibv_query_gid_table", Object: d.name, Errno: enoent, Reason: fmt.Sprintf("there is no GID %v; there are %s", q, listGIDs(all))}
	}
	return slices.MaxFunc(fit, func(a, b gidCandidate) int { return a.rank - b.rank }).entry, nil
}

// gidCandidate is a matching entry and its rank.
type gidCandidate struct {
	entry ibv.GIDEntry
	rank  int
}

func (q *GIDQuery) fits(e ibv.GIDEntry, interfaces interfaces) (c gidCandidate, ok bool) {
	address := GIDAddress(e.GID)
	if q.Port != 0 && uint32(q.Port) != e.PortNum || q.Address.IsValid() && q.Address.Unmap().WithZone("") != address ||
		q.Type != nil && *q.Type != e.GIDType || q.GID != nil && *q.GID != e.GID {
		return c, false
	}
	c.entry = e
	name, here := interfaces.with(int(e.NDevIfindex), address)
	if q.Interface != "" && (!here || name != q.Interface) || q.VLAN != nil && (!here || vlanOf(name) != *q.VLAN) {
		return c, false
	}
	for i, better := range []bool{!address.IsLinkLocalUnicast(), address.Is4(), e.GIDType == ibv.GID_TYPE_ROCE_V2, here} {
		if better {
			c.rank |= 1 << i
		}
	}
	return c, true
}

// interfaces caches the network interfaces of this namespace by number, because a system call for one takes time.
type interfaces map[int]struct {
	name      string
	addresses []net.Addr
}

// with returns the name of an interface if it is in this namespace and has the address. An interface of another
// namespace may have the same number.
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

// vlanOf returns the VLAN of a network interface, as the kernel lists it, or 0.
func vlanOf(name string) uint16 {
	f, err := os.Open("/proc/thread-self/net/vlan/config") // of the thread's namespace, as net's interfaces are
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

func listGIDs(all []ibv.GIDEntry) string {
	if len(all) == 0 {
		return "none: has the network interface an address?"
	}
	var names []string
	for _, e := range all {
		names = append(names, fmt.Sprintf("%s (port %d, %v)", GIDString(e.GID), e.PortNum, e.GIDType))
	}
	return strings.Join(names, ", ")
}

// ResolveMAC resolves the Ethernet address and the VLAN for the GID in the attributes of an address handle. It may
// block for seconds, until the network answers or a timeout.
//
// C: ibv_resolve_eth_l2_from_gid
func (d *Device) ResolveMAC(attr *ibv.AHAttr) (mac net.HardwareAddr, vlan uint16, err error) {
	const verb = "ibv_resolve_eth_l2_from_gid"
	if attr == nil {
		return nil, 0, noAttributes(verb, d.name)
	}
	address, id := new([6]byte), new(uint16)
	err = d.query(verb, func() error {
		return libibverbs.ResolveEthL2FromGID(d.c, attr, unsafe.SliceData(address[:]), id)
	})
	return address[:], *id, err
}
