// SPDX-License-Identifier: BSD-2-Clause

// Package query reports all attributes of a device: verbs attributes under their C names, ports with GIDs, sysfs
// attributes, and object counts.
package query

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/inventory"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Report has the attributes of a device.
type Report struct {
	Device     string            `json:"device"`
	Software   bool              `json:"software"` // software device of this process
	Library    string            `json:"library"`  // that opens the device: "rdma-core 44.0", "native" or "software"
	Index      int               `json:"index"`    // kernel index, or -1
	NodeType   ibv.NodeType      `json:"node_type"`
	Transport  ibv.TransportType `json:"transport"`
	Attributes Fields            `json:"attributes"`
	Extended   Fields            `json:"extended,omitempty"` // from ibv_query_device_ex, if supported
	Ports      []Port            `json:"ports"`
	Kernel     Fields            `json:"kernel,omitempty"`    // from sysfs
	Resources  Fields            `json:"resources,omitempty"` // object counts of all programs
	Error      string            `json:"error,omitempty"`     // why opening it failed; the other attributes are then the kernel's
}

// Port is a port with its GIDs.
type Port struct {
	Number     uint8          `json:"port"`
	Attributes Fields         `json:"attributes"`
	Keys       []string       `json:"pkeys"` // in use
	NetDevice  string         `json:"netdev,omitempty"`
	GIDs       inventory.GIDs `json:"gids"`
	Counters   Fields         `json:"hw_counters,omitempty"`
}

// Of queries a device.
func Of(name string) (r *Report, err error) {
	d, err := rdma.Open(name)
	if err != nil {
		if kernelDevices := inventory.Find(name); kernelDevices != nil {
			return fromKernel(kernelDevices, err), nil
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	i := d.Info()
	r = &Report{Device: i.Name, Software: i.IsSoftware(), Library: rdma.BackendName(i.Backend), Index: i.Index,
		NodeType: i.NodeType, Transport: i.Transport}
	attr, err := d.Query()
	if err != nil {
		return nil, err
	}
	if ex, err := d.QueryEx(); err == nil {
		attr, r.Extended = &ex.OrigAttr, extended(ex)
	}
	r.Attributes = append(attributes(attr), number("num_comp_vectors", d.CompVectors()))
	gids, err := inventory.GIDsOn(d)
	if err != nil {
		return nil, err
	}
	for n := uint8(1); n <= attr.PhysPortCnt && n != 0; n++ {
		p, err := port(d, n, gids)
		if err != nil {
			return nil, err
		}
		r.Ports = append(r.Ports, *p)
	}
	if !r.Software {
		r.Kernel, r.Resources = kernel(i.Name), resources(i.Name)
	}
	return r, nil
}

// fromKernel queries a kernel device that cannot be opened.
func fromKernel(d *sysfs.Device, reason error) *Report {
	r := &Report{Device: d.Name, Library: inventory.Library(), Index: -1, Transport: ibv.TRANSPORT_UNKNOWN,
		NodeType: ibv.NODE_UNKNOWN, Attributes: Fields{{"node_guid", d.GUID, d.GUID.String()}}, Kernel: kernel(d.Name),
		Resources: resources(d.Name), Error: reason.Error()}
	gids := inventory.GIDsFromKernel(d)
	for _, p := range d.Ports {
		one := Port{Number: uint8(p.Number), Keys: []string{}, GIDs: inventory.GIDs{}, Attributes: Fields{
			{"state", p.State, p.State}, {"phys_state", p.Phys, p.Phys}, {"link_layer", p.Link, p.Link}}}
		for _, g := range gids {
			if g.Port == uint32(p.Number) {
				one.GIDs = append(one.GIDs, g)
			}
		}
		if len(p.Netdevs) > 0 {
			one.NetDevice = p.Netdevs[0]
		}
		r.Ports = append(r.Ports, one)
	}
	return r
}

// port queries a port.
func port(d *rdma.Device, n uint8, gids inventory.GIDs) (*Port, error) {
	attr, err := d.Port(n)
	if err != nil {
		return nil, err
	}
	p := &Port{Number: n, Attributes: portAttributes(attr), Keys: []string{}, GIDs: inventory.GIDs{}}
	if speed, err := d.PortSpeed(n); err == nil {
		p.Attributes = append(p.Attributes, Field{"speed", speed, fmt.Sprintf("%d Mbit/s", speed)})
	}
	for i := range int(attr.PKeyTblLen) {
		key, err := d.PKey(n, i)
		if err != nil {
			break // an adapter may have fewer than it reports
		}
		if key != 0 {
			p.Keys = append(p.Keys, fmt.Sprintf("%#04x", key.Host()))
		}
	}
	for _, g := range gids {
		if g.Port == uint32(n) {
			p.GIDs = append(p.GIDs, g)
			p.NetDevice = cmp.Or(p.NetDevice, interfaceName(g.Interface))
		}
	}
	if counters, err := d.HWCounters(n); err == nil {
		for name, v := range counters {
			p.Counters = append(p.Counters, number(name, v))
		}
		slices.SortFunc(p.Counters, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	}
	return p, nil
}

// WriteText writes one value per line, in sections.
func (r *Report) WriteText(w io.Writer) error {
	of := "kernel device (" + r.Library + ")"
	if r.Software {
		of = "software device (this process)"
	}
	fmt.Fprintf(w, "%s: %s\n", r.Device, of)
	if r.Error != "" {
		if err := page.Paragraph(w, "  open failed:", r.Error, 15); err != nil {
			return err
		}
	}
	head := Fields{text("node_type", r.NodeType, "IBV_NODE_"), text("transport", r.Transport, "IBV_TRANSPORT_")}
	if r.Index >= 0 && !r.Software {
		head = append(head, number("index", r.Index))
	}
	for _, part := range []Fields{head, r.Attributes, r.Extended, r.Kernel} {
		part.write(w, "  ")
	}
	if len(r.Resources) > 0 {
		fmt.Fprintln(w, "  objects (all programs)")
		r.Resources.write(w, "    ")
	}
	for _, p := range r.Ports {
		fmt.Fprintf(w, "\nport %d\n", p.Number)
		p.Attributes.write(w, "  ")
		rest := Fields{{"pkeys", nil, strings.Join(p.Keys, " ")}}
		if p.NetDevice != "" {
			rest = append(rest, Field{"netdev", nil, p.NetDevice})
		}
		rest.write(w, "  ")
		if len(p.Counters) > 0 {
			fmt.Fprintln(w, "  hw_counters")
			p.Counters.write(w, "    ")
		}
		if len(p.GIDs) > 0 {
			fmt.Fprintln(w)
			if err := p.GIDs.WriteText(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// short returns a name without its prefix.
func short(name fmt.Stringer, prefix string) string { return strings.TrimPrefix(name.String(), prefix) }

var _ page.Text = (*Report)(nil)
