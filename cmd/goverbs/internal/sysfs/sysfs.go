// SPDX-License-Identifier: BSD-2-Clause

// Package sysfs reads attributes of RDMA devices from Linux's sysfs, without libraries. Files are below a root that
// tests replace.
package sysfs

import (
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Dir has a directory for each device.
const Dir = "sys/class/infiniband"

// Device is a kernel device.
type Device struct {
	Name, Dir string
	GUID      ibv.GUID
	Driver    string // kernel driver: mlx5_core; rdma_rxe for Soft-RoCE
	Provider  string // rdma-core provider: mlx5
	Ports     []*Port
}

// Port is a port of a device.
type Port struct {
	Of          *Device
	Number      int
	Dir         string
	State, Phys string // ACTIVE, LinkUp
	Link        string // Ethernet, InfiniBand
	GIDs        []GID
	Netdevs     []string // interfaces of its GIDs, or of its PCI function
}

func (p *Port) String() string { return p.Of.Name + " port " + strconv.Itoa(p.Number) }

// Ethernet and InfiniBand report the link layer; EFA has neither.
func (p *Port) Ethernet() bool   { return p.Link == "Ethernet" }
func (p *Port) InfiniBand() bool { return p.Link == "InfiniBand" }

// GID is a used entry of a port's GID table.
type GID struct {
	Index   int
	GID     ibv.GID
	Address netip.Addr
	V2      bool // RoCE v2
	Netdev  string
}

// Text returns the contents of a file without surrounding white space, or "".
func Text(f fs.FS, name string) string {
	b, err := fs.ReadFile(f, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// List returns the sorted names in a directory.
func List(f fs.FS, dir string) (names []string) {
	all, _ := fs.ReadDir(f, dir)
	for _, one := range all {
		names = append(names, one.Name())
	}
	return names
}

// Target returns the last element of a link's target, or "".
func Target(f fs.FS, name string) string {
	to, err := fs.ReadLink(f, name)
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// providers maps drivers to rdma-core names where they differ.
var providers = map[string]string{"mlx5_core": "mlx5", "mlx4_core": "mlx4", "rdma_rxe": "rxe", "bnxt_en": "bnxt_re",
	"ice": "irdma", "i40e": "irdma", "hns3": "hns"}

// Devices lists the devices with their ports.
func Devices(f fs.FS) (all []*Device) {
	for _, name := range List(f, Dir) {
		d := &Device{Name: name, Dir: Dir + "/" + name}
		d.GUID, _ = ibv.ParseGUID(Text(f, d.Dir+"/node_guid"))
		d.Driver = Target(f, d.Dir+"/device/driver")
		if d.Driver == "" && Text(f, d.Dir+"/parent") != "" {
			d.Driver = "rdma_rxe"
		}
		d.Provider = d.Driver
		if p, ok := providers[d.Driver]; ok {
			d.Provider = p
		}
		for _, n := range List(f, d.Dir+"/ports") {
			if number, err := strconv.Atoi(n); err == nil {
				d.Ports = append(d.Ports, port(f, d, number))
			}
		}
		slices.SortFunc(d.Ports, func(a, b *Port) int { return a.Number - b.Number })
		all = append(all, d)
	}
	return all
}

func port(f fs.FS, d *Device, number int) *Port {
	p := &Port{Of: d, Number: number, Dir: d.Dir + "/ports/" + strconv.Itoa(number)}
	_, p.State, _ = strings.Cut(Text(f, p.Dir+"/state"), ": ")
	_, p.Phys, _ = strings.Cut(Text(f, p.Dir+"/phys_state"), ": ")
	p.Link = Text(f, p.Dir+"/link_layer")
	for _, n := range List(f, p.Dir+"/gids") {
		index, err := strconv.Atoi(n)
		g, err2 := ibv.ParseGID(Text(f, p.Dir+"/gids/"+n))
		if err != nil || err2 != nil || g == (ibv.GID{}) {
			continue
		}
		one := GID{Index: index, GID: g, Address: netip.AddrFrom16(*g.Raw()).Unmap(),
			V2:     strings.Contains(Text(f, p.Dir+"/gid_attrs/types/"+n), "v2"),
			Netdev: Text(f, p.Dir+"/gid_attrs/ndevs/"+n)}
		p.GIDs = append(p.GIDs, one)
		p.on(one.Netdev)
	}
	slices.SortFunc(p.GIDs, func(a, b GID) int { return a.Index - b.Index })
	if p.Ethernet() {
		p.on(Text(f, d.Dir+"/parent"))
	}
	return p
}

// on records an interface of a port.
func (p *Port) on(netdev string) {
	if netdev != "" && !slices.Contains(p.Netdevs, netdev) {
		p.Netdevs = append(p.Netdevs, netdev)
	}
}
