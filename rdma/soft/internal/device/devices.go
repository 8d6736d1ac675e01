// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
)

// ordinals number all devices of the process: no two have the same GUID.
var ordinals atomic.Uint32

// AddDevice adds a device to the fabric. Without a name it is called soft with its number, counted from 0.
func (f *Fabric) AddDevice(o DeviceOptions) error {
	f.mu.Lock()
	defer f.unlock()
	if o.Name == "" {
		o.Name = fmt.Sprintf("soft%d", f.made)
	}
	if !o.Address.IsValid() {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 127<<24+uint32(f.made)+1)
		o.Address = netip.AddrFrom4(a)
	}
	if len(o.Name) >= ibv.SYSFS_NAME_MAX || f.device(o.Name) != nil {
		return fmt.Errorf("soft: device name %q: a name must be short and unique", o.Name)
	}
	if o.MTU > ibv.MTU_4096 {
		return fmt.Errorf("soft: device %s: an MTU of %v: valid codes are 1 to %d, or 0 for the default", o.Name, o.MTU,
			ibv.MTU_4096)
	}
	if other := f.gids[o.Address.As16()]; other != nil {
		return fmt.Errorf("soft: device %s: %s has the address %v", o.Name, text(other.record.Name[:]), o.Address)
	}
	d, err := newDevice(f, o, ordinals.Add(1))
	if err != nil {
		return err
	}
	d.index = f.made
	f.made++
	f.devices = append(f.devices, d)
	return nil
}

// device is one by its name, or nil.
func (f *Fabric) device(name string) *device {
	i := slices.IndexFunc(f.devices, func(d *device) bool { return text(d.record.Name[:]) == name })
	if i < 0 {
		return nil
	}
	return f.devices[i]
}

// RemoveDevice takes a device away, and says whether there was one of the name. Programs that have it open get an
// event, and their queue pairs break; what they ask of it fails with EIO, but for destroying. Peers hear nothing any
// more.
func (f *Fabric) RemoveDevice(name string) bool {
	f.mu.Lock()
	defer f.unlock()
	d := f.device(name)
	if d == nil {
		return false
	}
	d.gone, d.down = true, true
	f.devices = slices.DeleteFunc(f.devices, func(other *device) bool { return other == d })
	for _, gid := range d.gids {
		delete(f.gids, gid)
	}
	d.tell(ibv.EVENT_DEVICE_FATAL)
	f.manager.Removed(d)
	f.manager.Cut(d)
	for _, object := range f.numbers.objects {
		if q := object.qp; q != nil && q.device == d && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.setState(ibv.QPS_ERR)
		}
	}
	f.gone = append(f.gone, d)
	d.release()
	return true
}

// SetLink takes the link of a device down or up again, and says whether there is a device of the name. While it is
// down, nothing reaches the device or leaves it.
func (f *Fabric) SetLink(name string, up bool) bool {
	f.mu.Lock()
	defer f.unlock()
	d := f.device(name)
	if d == nil {
		return false
	}
	if d.down == up {
		d.down = !up
		event := ibv.EVENT_PORT_ERR
		if up {
			event = ibv.EVENT_PORT_ACTIVE
		}
		d.tell(event)
		if d.down {
			f.manager.Cut(d)
		}
	}
	return true
}

// AddAddress gives a device one more address, and so another GID.
func (f *Fabric) AddAddress(name string, address netip.Addr) error {
	f.mu.Lock()
	defer f.unlock()
	d, gid := f.device(name), address.As16()
	switch {
	case d == nil:
		return fmt.Errorf("soft: no device %q", name)
	case f.gids[gid] != nil:
		return fmt.Errorf("soft: device %s: %s has the address %v", name, text(f.gids[gid].record.Name[:]), address)
	}
	return d.addGID(gid)
}

func (d *device) addGID(gid [16]byte) error {
	i := slices.Index(d.gids, [16]byte{})
	switch {
	case i >= 0:
		d.gids[i] = gid
	case len(d.gids) == gidEntries:
		return fmt.Errorf("soft: device %s has room for %d GIDs, and no more", text(d.record.Name[:]), gidEntries)
	default:
		d.gids = append(d.gids, gid)
	}
	d.fabric.gids[gid] = d
	d.tell(ibv.EVENT_GID_CHANGE)
	return nil
}

// MoveAddress gives an address of one device to another, as a bond of network devices does that fails over. Connection
// manager IDs that are bound to it get RDMA_CM_EVENT_ADDR_CHANGE. What is connected stays on the devices that it is on.
func (f *Fabric) MoveAddress(address netip.Addr, to string) error {
	f.mu.Lock()
	defer f.unlock()
	gid, d := address.As16(), f.device(to)
	from := f.gids[gid]
	switch {
	case d == nil:
		return fmt.Errorf("soft: no device %q", to)
	case from == nil:
		return fmt.Errorf("soft: no device has the address %v", address)
	case from == d:
		return nil
	}
	if err := d.addGID(gid); err != nil {
		return err
	}
	from.gids[slices.Index(from.gids, gid)] = [16]byte{}
	from.tell(ibv.EVENT_GID_CHANGE)
	f.manager.Moved(gid, from)
	return nil
}

// Addresses are the addresses of all devices, each with the name of its device.
func (f *Fabric) Addresses() map[netip.Addr]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[netip.Addr]string{}
	for _, d := range f.devices {
		for _, gid := range d.gids {
			if ip := netip.AddrFrom16(gid).Unmap(); gid != [16]byte{} && f.gids[gid] == d && !ip.IsLinkLocalUnicast() {
				all[ip] = text(d.record.Name[:])
			}
		}
	}
	return all
}

// tell tells all who have the device open of an event of its port.
func (d *device) tell(event ibv.EventType) {
	for _, c := range d.contexts {
		c.portEvent(event)
	}
}

// Close gives up the fabric's memory. It fails with EBUSY while a program has a device or an event channel open. The
// fabric is not to be used after it.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.unlock()
	for _, d := range slices.Concat(f.devices, f.gone) {
		if len(d.contexts) > 0 {
			return fmt.Errorf("soft: device %s is open: %w", text(d.record.Name[:]), errnos.EBUSY)
		}
	}
	if n := f.manager.OpenChannels(); n > 0 {
		return fmt.Errorf("soft: %d event channels are open: %w", n, errnos.EBUSY)
	}
	for _, d := range f.devices {
		d.gone = true
		d.release()
	}
	f.devices = nil
	return nil
}
