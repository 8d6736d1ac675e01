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
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// ordinals number all devices of the process: no two have the same GUID.
var ordinals atomic.Uint32

// AddDevice adds a device to the fabric. Without a name it is called soft with its number, counted from 0.
func (f *Fabric) AddDevice(o DeviceOptions) error {
	f.mu.Lock()
	defer f.Unlock()
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
	if other := f.owner(o.Address.As16()); other != nil {
		return fmt.Errorf("soft: device %s: %s has the address %v", o.Name, text(other.record.Name[:]), o.Address)
	}
	d, err := newDevice(f, o, ordinals.Add(1))
	if err != nil {
		return err
	}
	if err := f.connect(d, o.Address); err != nil {
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

// owner is the device that has a GID, or nil.
func (f *Fabric) owner(gid [16]byte) *device {
	p := f.gids[gid]
	if i := slices.IndexFunc(f.devices, func(d *device) bool { return &d.Port == p }); i >= 0 {
		return f.devices[i]
	}
	return nil
}

// RemoveDevice removes a device, and reports whether one of that name existed. Programs that have it open get an event,
// and their queue pairs break; calls on it fail with EIO, except those that destroy objects. Peers get no more messages
// from it.
func (f *Fabric) RemoveDevice(name string) bool {
	f.mu.Lock()
	defer f.Unlock()
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
		if q := object.qp; q != nil && q.port == &d.Port && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
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
	defer f.Unlock()
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
	defer f.Unlock()
	d, gid := f.device(name), address.As16()
	switch {
	case d == nil:
		return fmt.Errorf("soft: no device %q", name)
	case f.owner(gid) != nil:
		return fmt.Errorf("soft: device %s: %s has the address %v", name, text(f.owner(gid).record.Name[:]), address)
	}
	return f.addGID(d, address)
}

func (f *Fabric) addGID(d *device, address netip.Addr) error {
	if err := f.connect(d, address); err != nil {
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
	f.reach(gid, &d.Port)
	d.tell(ibv.EVENT_GID_CHANGE)
	return nil
}

// connect opens the socket of an address, if the device speaks to other fabrics. Its MTU becomes that of the path.
func (f *Fabric) connect(d *device, address netip.Addr) error {
	if !d.wired {
		return nil
	}
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
	defer f.Unlock()
	gid, d := address.As16(), f.device(to)
	from := f.owner(gid)
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
	if err := f.addGID(d, address); err != nil {
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
			if ip := netip.AddrFrom16(gid).Unmap(); gid != [16]byte{} && f.gids[gid] == &d.Port && !ip.IsLinkLocalUnicast() {
				all[ip] = text(d.record.Name[:])
			}
		}
		for _, l := range d.links {
			all[l.Addr().Unmap()] = text(d.record.Name[:])
		}
	}
	return all
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
	defer f.Unlock()
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

func newDevice(f *Fabric, o DeviceOptions, ordinal uint32) (*device, error) {
	p, err := all.space.Alloc(int(unsafe.Sizeof(ibv.Device{})))
	if err != nil {
		return nil, err
	}
	d := &device{record: (*ibv.Device)(p), persistent: o.Persistent, inodes: map[string]*XRCDomain{}, limits: defaultLimits,
		Port: Port{on: &f.Engine, pkeys: slices.Clone(o.PKeys), mtu: o.MTU, down: o.Down, mostGroups: mostGroups}}
	d.mads = func(m *message.MAD) { f.manager.Receive(d, m) }
	d.released = func() {
		if slices.Contains(f.gone, d) {
			f.past.Add(&d.counts)
		}
		f.gone = slices.DeleteFunc(f.gone, func(other *device) bool { return other == d })
		f.direct.Detach(d.link)
	}
	d.record.NodeType, d.record.TransportType = ibv.NODE_CA, ibv.TRANSPORT_IB
	copy(d.record.Name[:len(d.record.Name)-1], o.Name)
	copy(d.record.DevName[:len(d.record.DevName)-1], o.Name)
	if len(d.pkeys) == 0 {
		d.pkeys = []uint16{0xffff}
	}
	if d.mtu == 0 {
		d.mtu = ibv.MTU_4096
	}
	d.guid = 0x02_00_00_ff_fe_00_00_00 | uint64(ordinal&0xffffff)
	if o.Wire { // peers know a device by it, and other processes have devices, too
		var random [5]byte
		rand.Read(random[:])
		d.guid |= uint64(binary.BigEndian.Uint16(random[:])) << 40
		d.guid = d.guid&^0xffffff | uint64(random[2])<<16 | uint64(random[3])<<8 | uint64(random[4])
	}
	local := [16]byte{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint64(local[8:], d.guid)
	gids := [][16]byte{local, o.Address.As16()}
	if d.wired = o.Wire; d.wired {
		d.keys.Hide()
		d.joined = map[[16]byte]*roce.Link{}
		gids = gids[1:] // others reach it by its address alone
	}
	mac := d.mac()
	d.link = uint64(binary.BigEndian.Uint16(mac[:]))<<32 | uint64(binary.BigEndian.Uint32(mac[2:]))
	for _, gid := range gids {
		d.gids = append(d.gids, gid)
		f.reach(gid, &d.Port)
	}
	f.direct.Attach(d.link, d)
	enter(d.record, d)
	return d, nil
}

// deviceList is ibv_get_device_list.
func (f *Fabric) deviceList(count ibv.Ptr[int32]) (uint64, runtime.Errno) {
	f.mu.Lock()
	defer f.Unlock()
	p, err := all.space.Alloc((len(f.devices) + 1) * int(unsafe.Sizeof(uintptr(0))))
	if err != nil {
		return 0, syscall.ENOMEM
	}
	devices := unsafe.Slice((*ibv.Ptr[ibv.Device])(p), len(f.devices)+1)
	for i, d := range f.devices {
		devices[i] = ibv.PtrTo(d.record)
		d.lists++
	}
	if count != 0 {
		*count.Deref() = int32(len(f.devices))
	}
	enter(&devices[0], &deviceList{&f.Engine, slices.Clone(f.devices)})
	return uint64(uintptr(p)), 0
}

// importDevice is ibv_import_device. The context takes the descriptor, and closes it; after an error it stays the
// caller's.
func (f *Fabric) importDevice(file int32) (ibv.Ptr[ibv.Context], runtime.Errno) {
	name, errno := fd.Name(file)
	if errno != 0 || name == "" {
		return 0, syscall.EINVAL
	}
	f.mu.Lock()
	defer f.Unlock()
	var of *context
	for _, d := range slices.Concat(f.devices, f.gone) {
		for _, c := range d.contexts {
			switch {
			case c.closed:
			case c.file.Descriptor() == file: // it would be closed twice: a duplicate is needed
				return 0, syscall.EINVAL
			case c.opened.name == name:
				of = c
			}
		}
	}
	if of == nil {
		return 0, fd.WhyNoCommands(file)
	}
	c, errno := of.device.openBy(fd.TakeCommands(file), of.opened)
	if errno != 0 {
		return 0, errno
	}
	return c.address(), 0
}
