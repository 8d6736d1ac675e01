// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// ordinals counts the devices of the process, so that GUIDs are unique.
var ordinals atomic.Uint32

// AddDevice adds a device to the fabric. The default name is softN, where N is the number of devices added before.
func (f *Fabric) AddDevice(o DeviceOptions) error {
	f.Mu.Lock()
	defer f.Unlock()
	if o.Name == "" {
		o.Name = fmt.Sprintf("soft%d", f.made)
	}
	if !o.Address.IsValid() {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 127<<24+uint32(f.made)+1)
		o.Address = netip.AddrFrom4(a)
	}
	if len(o.Name) >= ibv.SYSFS_NAME_MAX || f.Named(o.Name) != nil {
		return fmt.Errorf("soft: device name %q: a name must be short and unique", o.Name)
	}
	if o.MTU > ibv.MTU_4096 {
		return fmt.Errorf("soft: device %s: an MTU of %v: valid codes are 1 to %d, or 0 for the default", o.Name, o.MTU,
			ibv.MTU_4096)
	}
	if other := f.owner(o.Address.As16()); other != nil {
		return fmt.Errorf("soft: device %s: %s has the address %v", o.Name, other.Name(), o.Address)
	}
	d, err := newDevice(f, o, ordinals.Add(1))
	if err != nil {
		return err
	}
	if err := f.connect(d, o.Address); err != nil {
		d.Gone = true
		for _, gid := range d.GIDs {
			f.Assign(gid, nil)
		}
		d.Release()
		return err
	}
	d.Index = f.made
	f.made++
	f.devices = append(f.devices, d)
	return nil
}

// HasDevice reports whether the fabric has a device with the given name.
func (f *Fabric) HasDevice(name string) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Named(name) != nil
}

// Named returns the device with the given name, or nil.
func (f *Fabric) Named(name string) *verbs.Device {
	i := slices.IndexFunc(f.devices, func(d *verbs.Device) bool { return d.Name() == name })
	if i < 0 {
		return nil
	}
	return f.devices[i]
}

// owner returns the device that has the given GID, or nil.
func (f *Fabric) owner(gid [16]byte) *verbs.Device {
	p := f.GIDs[gid]
	if i := slices.IndexFunc(f.devices, func(d *verbs.Device) bool { return &d.Port == p }); i >= 0 {
		return f.devices[i]
	}
	return nil
}

// RemoveDevice removes the named device and reports whether it existed. Programs with the device open get an event, and
// their queue pairs move to the error state. Calls on the device fail with EIO, except those that destroy objects. The
// device sends no more messages.
func (f *Fabric) RemoveDevice(name string) bool {
	f.Mu.Lock()
	defer f.Unlock()
	d := f.Named(name)
	if d == nil {
		return false
	}
	d.Gone, d.Down = true, true
	d.Lists++ // keeps the device until this function returns
	f.devices = slices.DeleteFunc(f.devices, func(other *verbs.Device) bool { return other == d })
	for _, gid := range d.GIDs {
		f.Assign(gid, nil)
	}
	d.ReportEvent(ibv.EVENT_DEVICE_FATAL)
	f.manager.Removed(d)
	f.manager.Cut(d)
	f.manager.Rest()
	for _, object := range f.Numbers.All() {
		if q := object.QP; q != nil && q.Port == &d.Port && q.State != ibv.QPS_RESET && q.State != ibv.QPS_ERR {
			q.SetState(ibv.QPS_ERR)
		}
	}
	f.gone = append(f.gone, d)
	d.Disconnect()
	d.Lists--
	d.Release()
	return true
}

// SetLink sets the link of the named device up or down and reports whether the device exists. While the link is down,
// the device neither sends nor receives.
func (f *Fabric) SetLink(name string, up bool) bool {
	f.Mu.Lock()
	defer f.Unlock()
	d := f.Named(name)
	if d == nil {
		return false
	}
	if d.Down == up {
		d.Down = !up
		event := ibv.EVENT_PORT_ERR
		if up {
			event = ibv.EVENT_PORT_ACTIVE
		}
		d.ReportEvent(event)
		if d.Down {
			d.Count(counters.LinkDowns)
			f.manager.Cut(d)
		}
	}
	return true
}

// AddAddress adds an address, and so a GID, to a device.
func (f *Fabric) AddAddress(name string, address netip.Addr) error {
	f.Mu.Lock()
	defer f.Unlock()
	d, gid := f.Named(name), address.As16()
	switch {
	case d == nil:
		return fmt.Errorf("soft: no device %q", name)
	case f.owner(gid) != nil:
		return fmt.Errorf("soft: device %s: %s has the address %v", name, f.owner(gid).Name(), address)
	}
	return f.addGID(d, address)
}

func (f *Fabric) addGID(d *verbs.Device, address netip.Addr) error {
	if err := f.connect(d, address); err != nil {
		return err
	}
	gid := address.As16()
	i := slices.Index(d.GIDs, [16]byte{})
	switch {
	case i >= 0:
		d.GIDs[i] = gid
	case len(d.GIDs) == verbs.GIDEntries:
		return fmt.Errorf("soft: device %s has room for %d GIDs, and no more", d.Name(), verbs.GIDEntries)
	default:
		d.GIDs = append(d.GIDs, gid)
	}
	f.Assign(gid, &d.Port)
	d.ReportEvent(ibv.EVENT_GID_CHANGE)
	return nil
}

// connect opens the socket of an address if the device is wired, and lowers the device's MTU to that of the interface
// if necessary.
func (f *Fabric) connect(d *verbs.Device, address netip.Addr) error {
	if !d.Wired {
		return nil
	}
	f.addOuterWire()
	// Processes can share a device's first address: packets are dispatched to a process by queue pair number. Other
	// addresses are not shared.
	l, err := f.Outer.Attach(address, d.Link, &d.Port, udp.Options{Share: len(d.Links) == 0})
	if err != nil {
		return fmt.Errorf("soft: device %s: %w", d.Name(), err)
	}
	d.Links = append(d.Links, l)
	n, err := l.MTU()
	if err == nil && n == 0 {
		err = fmt.Errorf("its path takes no packets of 256 bytes: %w", syscall.EMSGSIZE)
	}
	if err != nil {
		d.Disconnect()
		return fmt.Errorf("soft: device %s: %w", d.Name(), err)
	}
	d.MTU = min(d.MTU, mtuOf(n))
	return nil
}

// mtuOf converts an MTU in bytes to its verbs code.
func mtuOf(n int) ibv.MTU { return ibv.MTU(bits.Len(uint(n)) - 8) }

// addOuterWire adds the wire that connects this fabric to others. The caller holds Core.Mu, or the fabric is not shared
// yet.
func (f *Fabric) addOuterWire() {
	if f.Outer != nil {
		return
	}
	f.Numbers.Scatter()
	f.Outer = roce.Over(f.sound, f, &f.captures)
	f.Moves++
	f.Polled.Store(f.Outer)
	f.sound = f.Outer
	f.Faulty.Under(f.sound)
	f.Wire, f.Plain = f.sound, false
	if !f.Faulty.Idle() {
		f.Wire = f.Faulty
	}
}

// MoveAddress moves an address from one device to another, as failover of a network bond does. Connection manager IDs
// bound to the address get RDMA_CM_EVENT_ADDR_CHANGE. Existing connections stay on their devices.
func (f *Fabric) MoveAddress(address netip.Addr, to string) error {
	f.Mu.Lock()
	defer f.Unlock()
	gid, d := address.As16(), f.Named(to)
	from := f.owner(gid)
	switch {
	case d == nil:
		return fmt.Errorf("soft: no device %q", to)
	case from == nil:
		return fmt.Errorf("soft: no device has the address %v", address)
	case from == d:
		return nil
	case from.Wired || d.Wired:
		return fmt.Errorf("soft: %v: an address with a wire cannot move", address)
	}
	if err := f.addGID(d, address); err != nil {
		return err
	}
	from.GIDs[slices.Index(from.GIDs, gid)] = [16]byte{}
	from.ReportEvent(ibv.EVENT_GID_CHANGE)
	f.manager.Moved(gid, from)
	return nil
}

// Addresses maps each address to the name of its device. It includes link-local addresses of wired devices only.
func (f *Fabric) Addresses() map[netip.Addr]string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	all := map[netip.Addr]string{}
	for _, d := range f.devices {
		for _, gid := range d.GIDs {
			ip := netip.AddrFrom16(gid).Unmap()
			if gid != [16]byte{} && f.GIDs[gid] == &d.Port && !ip.IsLinkLocalUnicast() {
				all[ip] = d.Name()
			}
		}
		for _, l := range d.Links {
			all[l.Addr().Unmap()] = d.Name()
		}
	}
	return all
}

// Close releases the fabric's memory. It fails with EBUSY while a program has a device or an event channel open. The
// fabric must not be used after a successful Close.
func (f *Fabric) Close() error {
	var links []*roce.Link
	defer func() { // without the lock, which the sockets' readers take
		for _, l := range links {
			l.Wait()
		}
	}()
	f.Sent()
	f.Mu.Lock()
	defer f.Unlock()
	f.manager.Rest()
	for _, d := range slices.Concat(f.devices, f.gone) {
		if len(d.Contexts) > 0 {
			return fmt.Errorf("soft: device %s is open: %w", d.Name(), syscall.EBUSY)
		}
	}
	if n := f.manager.OpenChannels(); n > 0 {
		return fmt.Errorf("soft: %d event channels are open: %w", n, syscall.EBUSY)
	}
	for _, d := range f.devices {
		d.Gone = true
		f.past.Add(&d.Counts)
		links = append(links, d.Disconnect()...)
		d.Release()
	}
	f.devices = nil
	return nil
}

// HWCounters returns the counters of a device; see soft.Fabric.
func (f *Fabric) HWCounters(name string) map[string]uint64 {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	d := f.Named(name)
	if d == nil {
		return nil
	}
	return d.Counters()
}

// Counters has the event counts of a fabric; see soft.Counters.
type Counters struct {
	Lost       uint64
	Duplicates uint64
	NotReady   uint64
	NoReceive  uint64
	Retries    uint64
	Gaps       uint64
}

// Counters returns the event counts summed over all devices, including removed ones.
func (f *Fabric) Counters() Counters {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	total := f.past
	for _, all := range [][]*verbs.Device{f.devices, f.gone} {
		for _, d := range all {
			total.Add(&d.Counts)
		}
	}
	return Counters{Lost: f.Lost + f.Faulty.Lost(), Duplicates: total[counters.Duplicates],
		NotReady: total[counters.ReceivedRNRNAKs], NoReceive: total[counters.NoReceive],
		Retries: total[counters.WentBack], Gaps: total[counters.Gaps]}
}

func newDevice(f *Fabric, o DeviceOptions, ordinal uint32) (*verbs.Device, error) {
	port := engine.Port{On: &f.Engine, PKeys: slices.Clone(o.PKeys), MTU: o.MTU, Down: o.Down}
	d, errno := verbs.NewDevice(port, o.Name)
	if errno != 0 {
		return nil, errno
	}
	d.Persistent = o.Persistent
	d.MADs = func(m *message.MAD) { f.manager.Receive(d, m) }
	d.Released = func() {
		if slices.Contains(f.gone, d) {
			f.past.Add(&d.Counts)
		}
		f.gone = slices.DeleteFunc(f.gone, func(other *verbs.Device) bool { return other == d })
		f.direct.Detach(d.Link)
	}
	if len(d.PKeys) == 0 {
		d.PKeys = []uint16{0xffff}
	}
	if d.MTU == 0 {
		d.MTU = ibv.MTU_4096
	}
	d.GUID = 0x02_00_00_ff_fe_00_00_00 | uint64(ordinal&0xffffff)
	if o.Wire { // the GUID must be unique among processes
		var random [5]byte
		rand.Read(random[:])
		d.GUID |= uint64(binary.BigEndian.Uint16(random[:])) << 40
		d.GUID = d.GUID&^0xffffff | uint64(random[2])<<16 | uint64(random[3])<<8 | uint64(random[4])
	}
	local := [16]byte{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint64(local[8:], d.GUID)
	gids := [][16]byte{local, o.Address.As16()}
	if d.Wired = o.Wire; d.Wired {
		d.Keys.Hide()
		d.Joined = map[[16]byte]*roce.Link{}
		gids = gids[1:] // other hosts reach it only by its address
	}
	mac := d.MAC()
	d.Link = uint64(binary.BigEndian.Uint16(mac[:]))<<32 | uint64(binary.BigEndian.Uint32(mac[2:]))
	for _, gid := range gids {
		d.GIDs = append(d.GIDs, gid)
		f.Assign(gid, &d.Port)
	}
	f.direct.Attach(d.Link, &d.Port)
	return d, nil
}

// deviceList is ibv_get_device_list.
func (f *Fabric) deviceList(count ibv.Ptr[int32]) (uint64, runtime.Errno) {
	f.Mu.Lock()
	defer f.Unlock()
	return verbs.NewDeviceList(&f.Engine, f.devices, count)
}

// importDevice is ibv_import_device.
func (f *Fabric) importDevice(file int32) (ibv.Ptr[ibv.Context], runtime.Errno) {
	f.Mu.Lock()
	defer f.Unlock()
	return verbs.ImportContext(slices.Concat(f.devices, f.gone), file)
}
