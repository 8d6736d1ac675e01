// SPDX-License-Identifier: BSD-2-Clause

// Package sysfs reads what Linux says of RDMA devices in files, which needs no library. The files are below a root that
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

// Device is a device of the kernel.
type Device struct {
	Name, Dir string
	GUID      ibv.GUID
	Driver    string // of the kernel: mlx5_core; rdma_rxe for Soft-RoCE
	Provider  string // of rdma-core: mlx5
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
	Netdevs     []string // of its GIDs, or of its function
}

func (p *Port) String() string { return p.Of.Name + " port " + strconv.Itoa(p.Number) }

// Ethernet and InfiniBand say what the link is; EFA's is neither.
func (p *Port) Ethernet() bool   { return p.Link == "Ethernet" }
func (p *Port) InfiniBand() bool { return p.Link == "InfiniBand" }

// GID is an entry of a port's table that is in use.
type GID struct {
	Index   int
	GID     ibv.GID
	Address netip.Addr
	V2      bool // of RoCE v2
	Netdev  string
}

// Text is a file without the white space around it, or empty.
func Text(f fs.FS, name string) string {
	b, err := fs.ReadFile(f, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// List names what is in a directory, in order.
func List(f fs.FS, dir string) (names []string) {
	all, _ := fs.ReadDir(f, dir)
	for _, one := range all {
		names = append(names, one.Name())
	}
	return names
}

// Target is the last part of where a link leads, or empty.
func Target(f fs.FS, name string) string {
	to, err := fs.ReadLink(f, name)
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// providers are names of rdma-core for drivers that have another one.
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

// on notes an interface of a port.
func (p *Port) on(netdev string) {
	if netdev != "" && !slices.Contains(p.Netdevs, netdev) {
		p.Netdevs = append(p.Netdevs, netdev)
	}
}
