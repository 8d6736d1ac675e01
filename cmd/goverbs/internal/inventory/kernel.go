// SPDX-License-Identifier: BSD-2-Clause

package inventory

import (
	"net"
	"os"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Library names what opens kernel devices in this process: "rdma-core 44.0" or "native".
func Library() string {
	backend, err := rdma.KernelBackend()
	if err != nil {
		return ""
	}
	return rdma.BackendName(backend)
}

// Kernel returns kernel devices if the library that opens them lists none, and the reason.
func Kernel() ([]*sysfs.Device, error) {
	backend, err := rdma.KernelBackend()
	if err == nil {
		_, err = rdma.DevicesOf(backend)
	}
	if err == nil {
		return nil, nil
	}
	return sysfs.Devices(os.DirFS("/")), err
}

// states maps sysfs names of port states.
var states = map[string]ibv.PortState{"DOWN": ibv.PORT_DOWN, "INIT": ibv.PORT_INIT, "ARMED": ibv.PORT_ARMED,
	"ACTIVE": ibv.PORT_ACTIVE, "ACTIVE_DEFER": ibv.PORT_ACTIVE_DEFER}

// fromKernel returns a device from sysfs, which lacks the MTU.
func fromKernel(d *sysfs.Device, reason error) Device {
	e := Device{Name: d.Name, GUID: d.GUID, Transport: ibv.TRANSPORT_UNKNOWN, Ports: []Port{}, Error: reason.Error()}
	for _, p := range d.Ports {
		one := Port{Number: uint8(p.Number), State: states[p.State]}
		switch {
		case p.Ethernet():
			one.Link = ibv.LINK_LAYER_ETHERNET
		case p.InfiniBand():
			one.Link = ibv.LINK_LAYER_INFINIBAND
		}
		e.Ports = append(e.Ports, one)
	}
	return e
}

// rank orders GIDs: higher is better.
func rank(g sysfs.GID) int {
	switch {
	case g.V2 && g.Address.Is4():
		return 3
	case g.V2 && !g.Address.IsLinkLocalUnicast():
		return 2
	case g.V2:
		return 1
	}
	return 0
}

// GIDsFromKernel lists the GIDs of a device from sysfs.
func GIDsFromKernel(d *sysfs.Device) (all GIDs) {
	best, most := -1, -1
	for _, p := range d.Ports {
		for _, g := range p.GIDs {
			one := GID{Device: d.Name, Port: uint32(p.Number), Index: uint32(g.Index), GID: g.GID,
				Type: ibv.GID_TYPE_IB}
			switch {
			case g.V2:
				one.Type = ibv.GID_TYPE_ROCE_V2
			case p.Ethernet():
				one.Type = ibv.GID_TYPE_ROCE_V1
			}
			if face, err := net.InterfaceByName(g.Netdev); err == nil {
				one.Interface = uint32(face.Index)
			}
			if g.Netdev != "" || g.Address.Is4() {
				one.Address = g.Address.String()
			}
			if r := rank(g); r > most && p.State == "ACTIVE" {
				best, most = len(all), r
			}
			all = append(all, one)
		}
	}
	if best >= 0 {
		g := &all[best]
		g.Use, g.Why = true, reason(ibv.GIDEntry{GID: g.GID, GIDType: g.Type})
	}
	return all
}

// Find returns a kernel device if it may be one that cannot be opened: no library lists it, or package native lists it
// without having its driver.
func Find(name string) *sysfs.Device {
	all, err := Kernel()
	if err == nil && Library() == "native" {
		all = sysfs.Devices(os.DirFS("/"))
	}
	for _, d := range all {
		if d.Name == name {
			return d
		}
	}
	return nil
}
