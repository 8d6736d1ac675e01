// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// checkNamespace reports ports whose interfaces are in another namespace.
func (h *Host) checkNamespace() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		for _, name := range p.Netdevs {
			if h.interfaceNamed(name) == nil {
				all = append(all, found("namespace.netdev", p.String(), name+" is in another namespace", name, name))
			}
		}
	})
	return all
}

// interfaces returns the interfaces of a port in this namespace.
func (h *Host) interfaces(p *sysfs.Port) (all []*Interface) {
	for _, name := range p.Netdevs {
		if f := h.interfaceNamed(name); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// active reports whether a port is active. If it is not, checkLink reports the reason.
func (h *Host) active(p *sysfs.Port) bool { return p.State == "ACTIVE" }

func (h *Host) checkLink() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		if f := h.link(p); f != nil {
			all = append(all, *f)
		}
	})
	return all
}

// link returns the root cause if a port does not work.
func (h *Host) link(p *sysfs.Port) *Finding {
	one := func(f Finding) *Finding { return &f }
	for _, f := range h.interfaces(p) {
		if !f.Up {
			return one(found("link.down", p.String(), f.Name+" is down", f.Name))
		}
		if h.text("sys/class/net/"+f.Name+"/carrier") == "0" {
			return one(found("link.carrier", p.String(), f.Name+" has no carrier", f.Name))
		}
	}
	switch {
	case p.InfiniBand() && p.State == "INIT":
		return one(found("link.sm", p.String(), "state INIT"))
	case p.InfiniBand() && p.Phys != "" && p.Phys != "LinkUp":
		return one(found("link.carrier", p.String(), "physical state "+p.Phys, p.Of.Name))
	case !h.active(p) && len(h.interfaces(p)) == len(p.Netdevs): // otherwise checkNamespace reports it
		return one(found("link.port", p.String(), "state "+p.State))
	}
	if rate := h.text(p.Dir + "/rate"); p.InfiniBand() && strings.Contains(rate, "(1X ") {
		return one(found("link.width", p.String(), rate))
	}
	return nil
}

// routed reports whether an address is valid beyond its link.
func routed(a netip.Addr) bool { return !a.IsLinkLocalUnicast() && !a.IsLoopback() && a.IsValid() }

func (h *Host) checkGIDs() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		if !p.Ethernet() || !h.active(p) || len(h.interfaces(p)) < len(p.Netdevs) {
			return // other checks report the reason
		}
		name := "NETDEV"
		if len(p.Netdevs) > 0 {
			name = p.Netdevs[0]
		}
		if len(p.GIDs) == 0 {
			all = append(all, found("gids.none", p.String(), "", name))
			return
		}
		global := 0
		for _, g := range p.GIDs {
			if !routed(g.Address) {
				continue
			}
			global++
			if f := h.interfaceNamed(g.Netdev); f != nil && !f.holds(g.Address) {
				where := fmt.Sprintf("%v GID %d", p, g.Index)
				all = append(all, found("gids.stale", where, g.Address.String(), g.Address, g.Netdev))
			}
		}
		for _, f := range h.interfaces(p) {
			for _, a := range f.Addresses {
				has := func(g sysfs.GID) bool { return g.Address == a.Addr() }
				if routed(a.Addr()) && !slices.ContainsFunc(p.GIDs, has) {
					all = append(all, found("gids.missing", p.String(), a.Addr().String()+" of "+f.Name, a, f.Name))
					global++
				}
			}
		}
		if global == 0 {
			all = append(all, found("gids.local", p.String(), "", name))
		}
	})
	return all
}

func (i *Interface) holds(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

func (h *Host) checkRoCE() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		if !p.Ethernet() || len(p.GIDs) == 0 {
			return
		}
		if !slices.ContainsFunc(p.GIDs, func(g sysfs.GID) bool { return g.V2 }) {
			all = append(all, found("roce.v1", p.String(), ""))
			return
		}
		n := strconv.Itoa(p.Number)
		mode := h.text("sys/kernel/config/rdma_cm/" + p.Of.Name + "/ports/" + n + "/default_roce_mode")
		if strings.Contains(mode, "v1") {
			all = append(all, found("roce.manager", p.String(), mode, p.Of.Name, n))
		}
	})
	return all
}

// headers is the space that the kernel reserves for RoCE headers in a packet.
const headers = 96

func (h *Host) checkMTU() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		if !p.Ethernet() {
			return
		}
		for _, f := range h.interfaces(p) {
			if f.MTU == 0 {
				continue
			}
			for _, size := range []int{4096, 2048, 1024} {
				if f.MTU >= size && f.MTU < size+headers {
					finding := fmt.Sprintf("MTU %d of %s limits packets to %d bytes", f.MTU, f.Name, size/2)
					all = append(all, found("mtu.room", p.String(), finding, f.Name, strconv.Itoa(size+headers)))
					return
				}
			}
			if f.MTU < 1024+headers {
				desc := fmt.Sprintf("MTU %d of %s", f.MTU, f.Name)
				all = append(all, found("mtu.small", p.String(), desc, f.Name))
				return
			}
		}
	})
	return all
}

func (h *Host) checkPKeys() (all []Finding) {
	h.ports(func(p *sysfs.Port) {
		if !p.InfiniBand() || !h.active(p) {
			return
		}
		full, limited := 0, 0
		for _, n := range h.list(p.Dir + "/pkeys") {
			key, err := strconv.ParseUint(h.text(p.Dir+"/pkeys/"+n), 0, 16)
			switch {
			case err != nil || key&0x7fff == 0:
			case key&0x8000 != 0:
				full++
			default:
				limited++
			}
		}
		switch {
		case full+limited == 0:
			all = append(all, found("pkeys.none", p.String(), ""))
		case full == 0:
			all = append(all, found("pkeys.limited", p.String(), ""))
		}
	})
	return all
}

// checkIPoIB looks for an IPoIB interface with an address.
func (h *Host) checkIPoIB() []Finding {
	var first *sysfs.Port
	h.ports(func(p *sysfs.Port) {
		if p.InfiniBand() && first == nil {
			first = p
		}
	})
	if first == nil || !h.active(first) {
		return nil
	}
	const infiniband = "32" // ARPHRD_INFINIBAND
	for _, f := range h.Interfaces {
		if h.text("sys/class/net/"+f.Name+"/type") == infiniband && len(f.Addresses) > 0 {
			return nil
		}
	}
	return []Finding{found("ipoib.none", first.String(), "")}
}

// checkNetwork finds two RDMA interfaces in one subnet, each of which answers ARP for both.
func (h *Host) checkNetwork() []Finding {
	if h.text("proc/sys/net/ipv4/conf/all/arp_ignore") != "0" {
		return nil
	}
	owner := map[netip.Prefix]string{}
	var all []Finding
	h.ports(func(p *sysfs.Port) {
		for _, f := range h.interfaces(p) {
			for _, a := range f.Addresses {
				subnet := a.Masked()
				other, seen := owner[subnet]
				owner[subnet] = f.Name
				if seen && other != f.Name && a.Addr().Is4() {
					all = append(all, found("network.subnet", p.String(), fmt.Sprintf("%s and %s in %v", other, f.Name,
						subnet)))
				}
			}
		}
	})
	return all
}
