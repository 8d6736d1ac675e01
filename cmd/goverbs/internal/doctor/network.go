// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// checkNamespace finds ports whose interfaces are not in this namespace.
func (h *Host) checkNamespace() (all []Finding) {
	h.ports(func(p *port) {
		for _, name := range p.netdevs {
			if h.face(name) == nil {
				all = append(all, found("namespace.netdev", p.String(), name+" is not here", name, name))
			}
		}
	})
	return all
}

// faces are the interfaces of a port that this namespace has.
func (h *Host) faces(p *port) (all []*Interface) {
	for _, name := range p.netdevs {
		if f := h.face(name); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// up says if a port can carry anything; checkLink says why not.
func (h *Host) up(p *port) bool { return p.state == "ACTIVE" }

func (h *Host) checkLink() (all []Finding) {
	h.ports(func(p *port) {
		if f := h.link(p); f != nil {
			all = append(all, *f)
		}
	})
	return all
}

// link finds the deepest reason why a port does not work.
func (h *Host) link(p *port) *Finding {
	one := func(f Finding) *Finding { return &f }
	for _, f := range h.faces(p) {
		if !f.Up {
			return one(found("link.down", p.String(), f.Name+" is down", f.Name))
		}
		if h.text("sys/class/net/"+f.Name+"/carrier") == "0" {
			return one(found("link.carrier", p.String(), f.Name+" has no carrier", f.Name))
		}
	}
	switch {
	case p.infiniband && p.state == "INIT":
		return one(found("link.sm", p.String(), "its state is INIT"))
	case p.infiniband && p.phys != "" && p.phys != "LinkUp":
		return one(found("link.carrier", p.String(), "its physical state is "+p.phys, p.of.name))
	case !h.up(p) && len(h.faces(p)) == len(p.netdevs): // else checkNamespace says why
		return one(found("link.port", p.String(), "its state is "+p.state))
	}
	if rate := h.text(p.dir + "/rate"); p.infiniband && strings.Contains(rate, "(1X ") {
		return one(found("link.width", p.String(), rate))
	}
	return nil
}

// routed says if an address leads beyond its link.
func routed(a netip.Addr) bool { return !a.IsLinkLocalUnicast() && !a.IsLoopback() && a.IsValid() }

func (h *Host) checkGIDs() (all []Finding) {
	h.ports(func(p *port) {
		if !p.ethernet || !h.up(p) || len(h.faces(p)) < len(p.netdevs) {
			return // other checks say why
		}
		name := "NETDEV"
		if len(p.netdevs) > 0 {
			name = p.netdevs[0]
		}
		if len(p.gids) == 0 {
			all = append(all, found("gids.none", p.String(), "", name))
			return
		}
		global := 0
		for _, g := range p.gids {
			if !routed(g.address) {
				continue
			}
			global++
			if f := h.face(g.netdev); f != nil && !f.holds(g.address) {
				where := fmt.Sprintf("%v GID %d", p, g.index)
				all = append(all, found("gids.stale", where, g.address.String(), g.address, g.netdev))
			}
		}
		for _, f := range h.faces(p) {
			for _, a := range f.Addresses {
				has := func(g gid) bool { return g.address == a.Addr() }
				if routed(a.Addr()) && !slices.ContainsFunc(p.gids, has) {
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
	h.ports(func(p *port) {
		if !p.ethernet || len(p.gids) == 0 {
			return
		}
		if !slices.ContainsFunc(p.gids, func(g gid) bool { return g.v2 }) {
			all = append(all, found("roce.v1", p.String(), ""))
			return
		}
		n := strconv.Itoa(p.number)
		mode := h.text("sys/kernel/config/rdma_cm/" + p.of.name + "/ports/" + n + "/default_roce_mode")
		if strings.Contains(mode, "v1") {
			all = append(all, found("roce.manager", p.String(), mode, p.of.name, n))
		}
	})
	return all
}

// headers is what the kernel keeps free for RoCE's headers in a packet.
const headers = 96

func (h *Host) checkMTU() (all []Finding) {
	h.ports(func(p *port) {
		if !p.ethernet {
			return
		}
		for _, f := range h.faces(p) {
			if f.MTU == 0 {
				continue
			}
			for _, size := range []int{4096, 2048, 1024} {
				if f.MTU >= size && f.MTU < size+headers {
					what := fmt.Sprintf("%s has an MTU of %d, so packets carry %d bytes", f.Name, f.MTU, size/2)
					all = append(all, found("mtu.room", p.String(), what, f.Name, strconv.Itoa(size+headers)))
					return
				}
			}
			if f.MTU < 1024+headers {
				what := fmt.Sprintf("%s has an MTU of %d", f.Name, f.MTU)
				all = append(all, found("mtu.small", p.String(), what, f.Name))
				return
			}
		}
	})
	return all
}

func (h *Host) checkPKeys() (all []Finding) {
	h.ports(func(p *port) {
		if !p.infiniband || !h.up(p) {
			return
		}
		full, limited := 0, 0
		for _, n := range h.list(p.dir + "/pkeys") {
			key, err := strconv.ParseUint(h.text(p.dir+"/pkeys/"+n), 0, 16)
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

// checkIPoIB asks for an interface of InfiniBand with an address.
func (h *Host) checkIPoIB() []Finding {
	var first *port
	h.ports(func(p *port) {
		if p.infiniband && first == nil {
			first = p
		}
	})
	if first == nil || !h.up(first) {
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

// checkNetwork finds two interfaces of RDMA devices in one subnet, each of which answers ARP for both.
func (h *Host) checkNetwork() []Finding {
	if h.text("proc/sys/net/ipv4/conf/all/arp_ignore") != "0" {
		return nil
	}
	owner := map[netip.Prefix]string{}
	var all []Finding
	h.ports(func(p *port) {
		for _, f := range h.faces(p) {
			for _, a := range f.Addresses {
				subnet := a.Masked()
				other, taken := owner[subnet]
				owner[subnet] = f.Name
				if taken && other != f.Name && a.Addr().Is4() {
					all = append(all, found("network.subnet", p.String(), fmt.Sprintf("%s and %s in %v", other, f.Name,
						subnet)))
				}
			}
		}
	})
	return all
}
