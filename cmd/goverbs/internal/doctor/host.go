// SPDX-License-Identifier: BSD-2-Clause

// Package doctor looks for what keeps RDMA from working, or from working well: on a host, and between two. A check
// reads files of the host under a root that tests replace, and says what it found by the name of a cause, which has a
// remedy.
package doctor

import (
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Host is what checks look at.
type Host struct {
	// FS has /sys, /proc, /dev, /etc and the directories of libraries, without the first slash.
	FS fs.FS
	// Later is the same after Interval: counters may have risen.
	Later    fs.FS
	Interval time.Duration
	// Interfaces are those of this network namespace.
	Interfaces []Interface
	// Open tries to open a device node as a program does.
	Open func(path string) error
	Env  func(name string) string
	// Software says if a name is one of a software device.
	Software func(name string) bool

	devices []*device
	listed  bool
}

// Interface is a network interface with its addresses.
type Interface struct {
	Name      string
	MTU       int
	Up        bool // an administrator has switched it on
	Addresses []netip.Prefix
}

// device is a device as sysfs has it.
type device struct {
	name, dir string
	driver    string // of the kernel: mlx5_core; rdma_rxe for Soft-RoCE
	provider  string // of rdma-core: mlx5
	ports     []*port
}

// port is a port of a device.
type port struct {
	of          *device
	number      int
	dir         string
	state, phys string // ACTIVE, LinkUp
	ethernet    bool
	infiniband  bool
	gids        []gid
	netdevs     []string // of its GIDs, and of its PCI function
}

func (p *port) String() string { return p.of.name + " port " + strconv.Itoa(p.number) }

// gid is an entry of a port's table that is in use.
type gid struct {
	index   int
	address netip.Addr
	v2      bool
	netdev  string
}

// text is a file without the white space around it, or empty.
func (h *Host) text(name string) string { return read(h.FS, name) }

func read(f fs.FS, name string) string {
	b, err := fs.ReadFile(f, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number is a number in a file.
func (h *Host) number(name string) (uint64, bool) {
	n, err := strconv.ParseUint(h.text(name), 10, 64)
	return n, err == nil
}

func (h *Host) has(name string) bool {
	_, err := fs.Stat(h.FS, name)
	return err == nil
}

// list names what is in a directory, in order.
func (h *Host) list(dir string) (names []string) {
	all, _ := fs.ReadDir(h.FS, dir)
	for _, one := range all {
		names = append(names, one.Name())
	}
	return names
}

// target is the last part of where a link leads.
func (h *Host) target(name string) string {
	to, err := fs.ReadLink(h.FS, name)
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// signs are what shows that a module is there if it is built in.
var signs = map[string]string{"ib_uverbs": "sys/class/infiniband_verbs/abi_version",
	"rdma_ucm": "sys/class/misc/rdma_cm"}

// module says if a module of the kernel is loaded, or built in.
func (h *Host) module(name string) bool {
	sign, ok := signs[name]
	return h.has("sys/module/"+name) || ok && h.has(sign)
}

// face finds an interface of this namespace.
func (h *Host) face(name string) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Name == name {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// providers are names of rdma-core for drivers that have another one.
var providers = map[string]string{"mlx5_core": "mlx5", "mlx4_core": "mlx4", "rdma_rxe": "rxe", "bnxt_en": "bnxt_re",
	"ice": "irdma", "i40e": "irdma", "hns3": "hns"}

const (
	devicesDir = "sys/class/infiniband"
	vendorsDir = "sys/bus/pci/devices"
)

// all lists the devices, once.
func (h *Host) all() []*device {
	if h.listed {
		return h.devices
	}
	h.listed = true
	for _, name := range h.list(devicesDir) {
		d := &device{name: name, dir: devicesDir + "/" + name}
		d.driver = h.target(d.dir + "/device/driver")
		if d.driver == "" && h.has(d.dir+"/parent") {
			d.driver = "rdma_rxe"
		}
		d.provider = d.driver
		if p, ok := providers[d.driver]; ok {
			d.provider = p
		}
		for _, n := range h.list(d.dir + "/ports") {
			if number, err := strconv.Atoi(n); err == nil {
				d.ports = append(d.ports, h.port(d, number))
			}
		}
		h.devices = append(h.devices, d)
	}
	return h.devices
}

func (h *Host) port(d *device, number int) *port {
	p := &port{of: d, number: number, dir: d.dir + "/ports/" + strconv.Itoa(number)}
	_, p.state, _ = strings.Cut(h.text(p.dir+"/state"), ": ")
	_, p.phys, _ = strings.Cut(h.text(p.dir+"/phys_state"), ": ")
	layer := h.text(p.dir + "/link_layer")
	p.ethernet, p.infiniband = layer == "Ethernet", layer == "InfiniBand"
	for _, n := range h.list(p.dir + "/gids") {
		index, err := strconv.Atoi(n)
		g, err2 := ibv.ParseGID(h.text(p.dir + "/gids/" + n))
		if err != nil || err2 != nil || g == (ibv.GID{}) {
			continue
		}
		one := gid{index: index, address: netip.AddrFrom16(*g.Raw()).Unmap(),
			v2:     strings.Contains(h.text(p.dir+"/gid_attrs/types/"+n), "v2"),
			netdev: h.text(p.dir + "/gid_attrs/ndevs/" + n)}
		p.gids = append(p.gids, one)
		p.on(one.netdev)
	}
	slices.SortFunc(p.gids, func(a, b gid) int { return a.index - b.index })
	if p.ethernet {
		p.on(h.text(d.dir + "/parent"))
		nets := h.list(d.dir + "/device/net")
		if len(d.ports) == 0 && len(nets) == 1 {
			p.on(nets[0])
		}
	}
	return p
}

// on notes an interface of a port.
func (p *port) on(netdev string) {
	if netdev != "" && !slices.Contains(p.netdevs, netdev) {
		p.netdevs = append(p.netdevs, netdev)
	}
}

// ports calls do for each port of each device.
func (h *Host) ports(do func(p *port)) {
	for _, d := range h.all() {
		for _, p := range d.ports {
			do(p)
		}
	}
}
