// SPDX-License-Identifier: BSD-2-Clause

// Package inventory lists the native and software devices of a host with their ports and GIDs.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Device is an entry of the list of devices.
type Device struct {
	Name      string            `json:"name"`
	GUID      ibv.GUID          `json:"node_guid"`
	Transport ibv.TransportType `json:"transport"`
	Software  bool              `json:"software"` // software device of this process
	Ports     []Port            `json:"ports"`
	Error     string            `json:"error,omitempty"` // why opening it failed
}

// Port is a port of a device.
type Port struct {
	Number uint8         `json:"port"`
	State  ibv.PortState `json:"state"`
	Link   ibv.LinkLayer `json:"link_layer"`
	MTU    int           `json:"active_mtu,omitempty"` // bytes; 0: unknown
}

// Devices lists all devices.
type Devices struct {
	Devices []Device `json:"devices"`
	// Library opens kernel devices: "rdma-core 44.0" or "native".
	Library string `json:"library"`
	// Native is the reason for the lack of kernel devices, or "".
	Native string `json:"native_error,omitempty"`
}

// List opens each device and returns its attributes.
func List() (*Devices, error) {
	infos, err := rdma.Devices()
	if err != nil && len(infos) == 0 {
		return nil, err
	}
	d := &Devices{Devices: []Device{}, Library: Library()}
	kernelDevices, err := Kernel()
	for _, one := range kernelDevices {
		d.Devices = append(d.Devices, fromKernel(one, err))
	}
	if err != nil && len(kernelDevices) == 0 {
		d.Native = err.Error()
	}
	for _, i := range infos {
		e := Device{Name: i.Name, GUID: i.GUID, Transport: i.Transport, Software: i.IsSoftware(),
			Ports: []Port{}}
		if err := e.open(i); err != nil {
			if kernelDevice := Find(i.Name); kernelDevice != nil && !e.Software {
				e = fromKernel(kernelDevice, err)
			}
			e.Error = err.Error()
		}
		d.Devices = append(d.Devices, e)
	}
	return d, nil
}

func (e *Device) open(i rdma.DeviceInfo) (err error) {
	d, err := i.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	attr, err := d.Query()
	if err != nil {
		return err
	}
	for n := uint8(1); n <= attr.PhysPortCnt && n != 0; n++ {
		p, err := d.Port(n)
		if err != nil {
			return err
		}
		e.Ports = append(e.Ports, Port{Number: n, State: p.State, Link: p.LinkLayer,
			MTU: rdma.MTUBytes(p.ActiveMTU)})
	}
	return nil
}

// WriteText writes a row for each port.
func (d *Devices) WriteText(w io.Writer) error {
	var rows [][]string
	for _, e := range d.Devices {
		kind := "kernel"
		if e.Software {
			kind = "software"
		}
		for _, p := range e.Ports {
			mtu := "-"
			if p.MTU != 0 {
				mtu = strconv.Itoa(p.MTU)
			}
			rows = append(rows, []string{e.Name, strconv.Itoa(int(p.Number)), kind, short(p.State, "PORT_"),
				short(p.Link, "LINK_LAYER_"), mtu, e.GUID.String()})
		}
		if e.Error != "" && len(e.Ports) == 0 {
			rows = append(rows, []string{e.Name, "-", kind, "OPEN FAILED", "-", "-", e.GUID.String()})
		}
	}
	err := page.Table(w, []string{"DEVICE", "PORT", "OF", "STATE", "LINK", "MTU", "NODE GUID"}, rows)
	for _, e := range d.Devices {
		if e.Error != "" {
			fmt.Fprintf(w, "\n%s: %s\n", e.Name, e.Error)
		}
	}
	switch {
	case d.Native != "":
		fmt.Fprintf(w, "\nno kernel devices: %s\n", d.Native)
	case slices.ContainsFunc(d.Devices, func(e Device) bool { return !e.Software }):
		fmt.Fprintf(w, "\nkernel devices by %s\n", d.Library)
	}
	return err
}

// GID is a GID of a device.
type GID struct {
	Device    string      `json:"device"`
	Port      uint32      `json:"port"`
	Index     uint32      `json:"index"`
	GID       ibv.GID     `json:"gid"`
	Type      ibv.GIDType `json:"type"`
	Address   string      `json:"address,omitempty"`   // IP address
	Interface uint32      `json:"interface,omitempty"` // its index
	Use       bool        `json:"use"`                 // recommended GID of its device
	Why       string      `json:"why,omitempty"`
}

type GIDs []GID

// GIDsOf lists the GIDs of a device, or of all if name is empty, by port and index.
func GIDsOf(name string) (GIDs, error) {
	if name != "" {
		d, err := rdma.Open(name)
		if err != nil {
			if kernelDevice := Find(name); kernelDevice != nil {
				return GIDsFromKernel(kernelDevice), nil
			}
			return nil, err
		}
		return closeGIDs(d)
	}
	infos, err := rdma.Devices()
	if err != nil && len(infos) == 0 {
		return nil, err
	}
	all := GIDs{}
	kernelDevices, _ := Kernel()
	for _, one := range kernelDevices {
		all = append(all, GIDsFromKernel(one)...)
	}
	for _, i := range infos {
		d, err := i.Open()
		if there := Find(i.Name); err != nil && there != nil && !i.IsSoftware() {
			all = append(all, GIDsFromKernel(there)...)
			continue
		}
		if err != nil {
			return nil, err
		}
		some, err := closeGIDs(d)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// closeGIDs lists the GIDs of a device and closes it.
func closeGIDs(d *rdma.Device) (all GIDs, err error) {
	defer func() { err = errors.Join(err, d.Close()) }()
	return GIDsOn(d)
}

// GIDsOn lists the GIDs of an open device by port and index.
func GIDsOn(d *rdma.Device) (all GIDs, err error) {
	entries, err := d.GIDs()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b ibv.GIDEntry) int {
		return cmp.Or(cmp.Compare(a.PortNum, b.PortNum), cmp.Compare(a.GIDIndex, b.GIDIndex))
	})
	best, err := d.FindGID(rdma.GIDQuery{})
	for _, e := range entries {
		g := GID{Device: d.Name(), Port: e.PortNum, Index: e.GIDIndex, GID: e.GID, Type: e.GIDType,
			Interface: e.NDevIfindex}
		if a := rdma.GIDAddress(e.GID); e.NDevIfindex != 0 || a.Is4() {
			g.Address = a.String()
		}
		if err == nil && e.PortNum == best.PortNum && e.GIDIndex == best.GIDIndex {
			g.Use, g.Why = true, reason(e)
		}
		all = append(all, g)
	}
	return all, nil
}

// reason returns the reason why [rdma.Device.FindGID] selects a GID.
func reason(e ibv.GIDEntry) string {
	s := "the only type"
	if e.GIDType == ibv.GID_TYPE_ROCE_V2 {
		s = "RoCE v2 (routable)"
	}
	switch a := rdma.GIDAddress(e.GID); {
	case a.Is4():
		s += ", IPv4 address"
	case a.IsLinkLocalUnicast() && e.GIDType == ibv.GID_TYPE_ROCE_V2:
		s += ", link-local address: reaches peers on the same link only"
	case a != (netip.Addr{}) && e.GIDType == ibv.GID_TYPE_ROCE_V2:
		s += ", global IPv6 address"
	}
	return s
}

// short returns a name without its prefix.
func short(name fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(name.String(), "IBV_"+prefix)
}

// WriteText writes a row for each GID.
func (all GIDs) WriteText(w io.Writer) error {
	var rows [][]string
	for _, g := range all {
		use := ""
		if g.Use {
			use = "recommended: " + g.Why
		}
		rows = append(rows, []string{g.Device, strconv.Itoa(int(g.Port)), strconv.Itoa(int(g.Index)), g.GID.String(),
			short(g.Type, "GID_TYPE_"), cmp.Or(g.Address, "-"), use})
	}
	return page.Table(w, []string{"DEVICE", "PORT", "INDEX", "GID", "TYPE", "ADDRESS", ""}, rows)
}
