// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
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
	if err := d.connect(o.Address); err != nil {
		d.gone = true
		for _, gid := range d.gids {
			f.reach(gid, nil)
		}
		d.release()
		return err
	}
	d.index = f.made
	f.made++
	f.devices = append(f.devices, d)
	return nil
}

// finder returns the libibverbs function of that name that finds devices, or nil. It needs no lock.
func (f *Fabric) finder(name string) runtime.Func {
	switch name {
	case "ibv_get_device_list":
		return abi.Guarded(abi.Func1(f.deviceList))
	case "ibv_import_device":
		return abi.Func1(f.importDevice)
	}
	return nil
}

// HasDevice reports whether there is a device of the name.
func (f *Fabric) HasDevice(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.device(name) != nil
}

// device is one by its name, or nil.
func (f *Fabric) device(name string) *device {
	i := slices.IndexFunc(f.devices, func(d *device) bool { return text(d.record.Name[:]) == name })
	if i < 0 {
		return nil
	}
	return f.devices[i]
}

// RemoveDevice removes a device, and reports whether one of that name existed. Programs that have it open get an event,
// and their queue pairs break; calls on it fail with EIO, except those that destroy objects. Peers get no more messages
// from it.
func (f *Fabric) RemoveDevice(name string) bool {
	f.mu.Lock()
	defer f.unlock()
	d := f.device(name)
	if d == nil {
		return false
	}
	d.gone, d.down = true, true
	d.lists++ // it is not released before the end of this
	f.devices = slices.DeleteFunc(f.devices, func(other *device) bool { return other == d })
	for _, gid := range d.gids {
		f.reach(gid, nil)
	}
	d.tell(ibv.EVENT_DEVICE_FATAL)
	f.manager.Removed(d)
	f.manager.Cut(d)
	f.manager.Rest()
	for _, object := range f.numbers.All() {
		if q := object.qp; q != nil && q.device == d && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.setState(ibv.QPS_ERR)
		}
	}
	f.gone = append(f.gone, d)
	d.disconnect()
	d.lists--
	d.release()
	return true
}

// SetLink takes the link of a device down or up again, and reports whether there is a device of the name. While it is
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
			d.count(counters.LinkDowns)
			f.manager.Cut(d)
		}
	}
	return true
}

// AddAddress adds an address, and so a GID, to a device.
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
	return d.addGID(address)
}

func (d *device) addGID(address netip.Addr) error {
	if err := d.connect(address); err != nil {
		return err
	}
	gid := address.As16()
	i := slices.Index(d.gids, [16]byte{})
	switch {
	case i >= 0:
		d.gids[i] = gid
	case len(d.gids) == gidEntries:
		return fmt.Errorf("soft: device %s has room for %d GIDs, and no more", text(d.record.Name[:]), gidEntries)
	default:
		d.gids = append(d.gids, gid)
	}
	d.fabric.reach(gid, d)
	d.tell(ibv.EVENT_GID_CHANGE)
	return nil
}

// connect opens the socket of an address, if the device speaks to other fabrics. Its MTU becomes that of the path.
func (d *device) connect(address netip.Addr) error {
	if !d.wired {
		return nil
	}
	f := d.fabric
	f.reachOut()
	// At the first address, queue pair numbers identify the process that owns them. Other addresses belong to this
	// process alone.
	l, err := f.outer.Attach(address, d.link, d, udp.Options{Share: len(d.links) == 0})
	if err != nil {
		return fmt.Errorf("soft: device %s: %w", text(d.record.Name[:]), err)
	}
	d.links = append(d.links, l)
	n, err := l.MTU()
	if err == nil && n == 0 {
		err = fmt.Errorf("its path takes no packets of 256 bytes: %w", syscall.EMSGSIZE)
	}
	if err != nil {
		d.disconnect()
		return fmt.Errorf("soft: device %s: %w", text(d.record.Name[:]), err)
	}
	d.mtu = min(d.mtu, mtuOf(n))
	return nil
}

// mtuOf is the code of an MTU of so many bytes.
func mtuOf(n int) ibv.MTU { return ibv.MTU(bits.Len(uint(n)) - 8) }

// disconnect closes the device's sockets. Readers of them end later.
func (d *device) disconnect() (links []*roce.Link) {
	links, d.links = d.links, nil
	for group, l := range d.joined {
		delete(d.joined, group)
		links = append(links, l)
	}
	for _, l := range links {
		d.fabric.outer.Detach(l)
	}
	return links
}

// reachOut puts the wire to other fabrics over the one within this fabric. The caller holds Fabric.mu, or the fabric is
// not shared yet.
func (f *Fabric) reachOut() {
	if f.outer != nil {
		return
	}
	f.numbers.Scatter()
	f.outer = roce.Over(f.sound, f, &f.captures)
	f.moves++
	f.polled.Store(f.outer)
	f.sound = f.outer
	f.faulty.Under(f.sound)
	f.wire, f.plain = f.sound, false
	if !f.faulty.Idle() {
		f.wire = f.faulty
	}
}

// MoveAddress moves an address of one device to another, like the failover of a network bond. Connection manager IDs
// that are bound to it get RDMA_CM_EVENT_ADDR_CHANGE. Existing connections stay on their devices.
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
	case from.wired || d.wired:
		return fmt.Errorf("soft: %v: an address with a wire cannot move", address)
	}
	if err := d.addGID(address); err != nil {
		return err
	}
	from.gids[slices.Index(from.gids, gid)] = [16]byte{}
	from.tell(ibv.EVENT_GID_CHANGE)
	f.manager.Moved(gid, from)
	return nil
}

// Addresses are the addresses of all devices, each with the name of its device. Link-local ones are those with a wire.
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
		for _, l := range d.links {
			all[l.Addr().Unmap()] = text(d.record.Name[:])
		}
	}
	return all
}

// tell queues an event of the port for every context of the device.
func (d *device) tell(event ibv.EventType) {
	for _, c := range d.contexts {
		c.portEvent(event)
	}
}

// Close releases the fabric's memory. It fails with EBUSY while a program has a device or an event channel open. The
// fabric must not be used afterwards.
func (f *Fabric) Close() error {
	var links []*roce.Link
	defer func() { // without the lock, which their readers take
		for _, l := range links {
			l.Wait()
		}
	}()
	f.Sent()
	f.mu.Lock()
	defer f.unlock()
	f.manager.Rest()
	for _, d := range slices.Concat(f.devices, f.gone) {
		if len(d.contexts) > 0 {
			return fmt.Errorf("soft: device %s is open: %w", text(d.record.Name[:]), syscall.EBUSY)
		}
	}
	if n := f.manager.OpenChannels(); n > 0 {
		return fmt.Errorf("soft: %d event channels are open: %w", n, syscall.EBUSY)
	}
	for _, d := range f.devices {
		d.gone = true
		f.past.Add(&d.counts)
		links = append(links, d.disconnect()...)
		d.release()
	}
	f.devices = nil
	return nil
}

// HWCounters returns the counters of a device; see soft.Fabric.
func (f *Fabric) HWCounters(name string) map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.device(name)
	if d == nil {
		return nil
	}
	return d.counters()
}

// HWCounters returns the counters of a context's device, or nil if the context has no device. Package rdma calls it:
// for a device that another library has opened, it has the context but not the fabric.
func (h *host) HWCounters(c *ibv.Context) map[string]uint64 {
	of := locked[context](addressOf(c))
	if of == nil {
		return nil
	}
	defer of.fabric().unlock()
	if of.device.gone {
		return nil
	}
	return of.device.counters()
}

// counters returns the device's counters by name.
func (d *device) counters() map[string]uint64 {
	all := map[string]uint64{}
	d.counts.Named(all)
	for _, l := range d.links {
		l.Counters(all)
	}
	for l := range maps.Values(d.joined) {
		l.Counters(all)
	}
	return all
}

// Counters are the event counts of a fabric; see soft.Counters.
type Counters struct {
	Lost       uint64
	Duplicates uint64
	NotReady   uint64
	NoReceive  uint64
	Retries    uint64
	Gaps       uint64
}

// Counters are those of the fabric: of all devices that it ever had.
func (f *Fabric) Counters() Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	total := f.past
	for _, all := range [][]*device{f.devices, f.gone} {
		for _, d := range all {
			total.Add(&d.counts)
		}
	}
	return Counters{Lost: f.lost + f.faulty.Lost(), Duplicates: total[counters.Repeats],
		NotReady: total[counters.ToldNotReady], NoReceive: total[counters.NoReceive],
		Retries: total[counters.WentBack], Gaps: total[counters.Gaps]}
}
