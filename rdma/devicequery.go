// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/gid"
	"github.com/goverbs/goverbs/runtime"
)

// query calls ask and keeps the device open during the call.
func (d *Device) query(verb string, ask func() error) error {
	if err := d.use(verb); err != nil {
		return err
	}
	defer d.done()
	return wrap(verb, d.name, ask())
}

// Query returns the attributes of the device.
//
// C: ibv_query_device
//
// Man: ibv_query_device(3)
func (d *Device) Query() (*ibv.DeviceAttr, error) {
	a := new(ibv.DeviceAttr)
	return a, d.query("ibv_query_device", func() error { return libibverbs.QueryDevice(d.c, a) })
}

// QueryEx returns the extended attributes of the device. Attributes that the device does not report are 0.
//
// C: ibv_query_device_ex
//
// Man: ibv_query_device_ex(3)
func (d *Device) QueryEx() (*ibv.DeviceAttrEx, error) {
	a := new(ibv.DeviceAttrEx)
	return a, d.query("ibv_query_device_ex", func() error { return libibverbs.QueryDeviceEx(d.c, nil, a) })
}

// Clock reads the clock of completion timestamps, in ticks. hca_core_clock of QueryEx is its frequency in kHz.
//
// C: ibv_query_rt_values_ex
//
// Man: ibv_query_rt_values_ex(3)
func (d *Device) Clock() (ticks uint64, err error) {
	v := &ibv.ValuesEx{CompMask: ibv.VALUES_MASK_RAW_CLOCK}
	err = d.query("ibv_query_rt_values_ex", func() error { return libibverbs.QueryRTValuesEx(d.c, v) })
	return uint64(v.RawClock.TvSec)*uint64(time.Second) + uint64(v.RawClock.TvNsec), err
}

// Port returns the state and the limits of a port. Ports are numbered from 1.
//
// C: ibv_query_port
//
// Man: ibv_query_port(3)
func (d *Device) Port(port uint8) (*ibv.PortAttr, error) {
	a := new(ibv.PortAttr)
	err := d.query("ibv_query_port", func() error { return libibverbs.QueryPort(d.c, port, a) })
	if err != nil {
		if attr, err2 := d.Query(); err2 == nil && (port < 1 || port > attr.PhysPortCnt) {
			err = invalid("ibv_query_port", d.name, "no port %d; valid ports are 1 to %d", port, attr.PhysPortCnt)
		}
	}
	return a, err
}

// ActivePort returns the first active port, or an error with the states of all ports.
func (d *Device) ActivePort() (uint8, *ibv.PortAttr, error) {
	attr, err := d.Query()
	if err != nil {
		return 0, nil, err
	}
	states := ""
	for n := uint8(1); n >= 1 && n <= attr.PhysPortCnt; n++ {
		port, err := d.Port(n)
		if err != nil {
			return 0, nil, err
		}
		if port.State == ibv.PORT_ACTIVE {
			return n, port, nil
		}
		states += fmt.Sprintf(", port %d is %v", n, port.State)
	}
	return 0, nil, invalid("", d.name, "no port is active%s: bring its network interface up", states)
}

// PortSpeed returns the speed of a port's link in Mbit/s.
//
// C: ibv_query_port_speed
//
// Man: ibv_query_port_speed(3)
func (d *Device) PortSpeed(port uint8) (mbps uint64, err error) {
	const unit = 100 // the verb's unit
	var speed uint64
	err = d.query("ibv_query_port_speed", func() error { return libibverbs.QueryPortSpeed(d.c, uint32(port), &speed) })
	return speed * unit, err
}

// HWCounters returns the driver's counters of a port: packets, retransmissions, errors. The names are those of the
// files in /sys/class/infiniband/DEVICE/ports/PORT/hw_counters and differ between drivers; docs/wire.md explains those
// of software devices. HWCounters reads one file per counter. If the driver has no counters, the error matches
// fs.ErrNotExist.
func (d *Device) HWCounters(port uint8) (all map[string]uint64, err error) {
	const verb = "HWCounters"
	if _, err := d.Port(port); err != nil {
		return nil, err
	}
	type counter interface {
		HWCounters(context *ibv.Context) map[string]uint64
	}
	if own, ok := runtime.BackendOf(uintptr(unsafe.Pointer(d.c))).(counter); ok {
		if err = d.use(verb); err != nil {
			return nil, err
		}
		defer d.done()
		if all = own.HWCounters(d.c); all == nil { // it was unplugged
			err = invalid(verb, d.name, "the device is gone")
		}
		return all, err
	}
	dir := filepath.Join("/sys/class/infiniband", d.info.Name, "ports", strconv.Itoa(int(port)), "hw_counters")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, wrap(verb, d.name, err)
	}
	all = map[string]uint64{}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, wrap(verb, d.name, err)
		}
		if f.Name() == "lifespan" { // the refresh interval in milliseconds, not a counter
			continue
		}
		if all[f.Name()], err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return nil, wrap(verb, d.name, fmt.Errorf("%s: %w", f.Name(), err))
		}
	}
	return all, nil
}

// PKey reads an entry of a port's table of partition keys.
//
// C: ibv_query_pkey
//
// Man: ibv_query_pkey(3)
func (d *Device) PKey(port uint8, index int) (ibv.BE16, error) {
	key := new(ibv.BE16)
	err := d.query("ibv_query_pkey", func() error { return libibverbs.QueryPKey(d.c, port, index, key) })
	return *key, err
}

// PKeyIndex returns the index of a partition key in a port's table.
//
// C: ibv_get_pkey_index
//
// Man: ibv_get_pkey_index(3)
func (d *Device) PKeyIndex(port uint8, key ibv.BE16) (index int, err error) {
	err = d.query("ibv_get_pkey_index", func() (err error) {
		index, err = libibverbs.GetPKeyIndex(d.c, port, key)
		return err
	})
	return index, err
}

// GIDs reads the GID tables of all ports of the device, without empty entries. The indexes change when the addresses of
// the network interface change, so do not store them: look a GID up by its properties with FindGID.
//
// C: ibv_query_gid_table
//
// Man: ibv_query_gid_table(3)
func (d *Device) GIDs() ([]ibv.GIDEntry, error) {
	attr, err := d.Query()
	if err != nil {
		return nil, err
	}
	most := 0
	for n := uint8(1); n >= 1 && n <= attr.PhysPortCnt; n++ {
		port, err := d.Port(n)
		if err != nil {
			return nil, err
		}
		most += int(port.GIDTblLen)
	}
	if most == 0 {
		return nil, nil
	}
	entries := make([]ibv.GIDEntry, most)
	err = d.query("ibv_query_gid_table", func() error {
		n, err := libibverbs.QueryGIDTable(d.c, &entries[0], uint64(most), 0)
		entries = entries[:max(n, 0)]
		return err
	})
	return entries, err
}

// GID reads an entry of a port's GID table.
//
// C: ibv_query_gid_ex, ibv_query_gid
//
// Man: ibv_query_gid_ex(3)
func (d *Device) GID(port uint8, index int) (*ibv.GIDEntry, error) {
	e := new(ibv.GIDEntry)
	return e, d.query("ibv_query_gid_ex",
		func() error { return libibverbs.QueryGIDEx(d.c, uint32(port), uint32(index), e, 0) })
}

// GIDQuery selects GIDs. A field that is not set matches every GID.
type GIDQuery struct {
	Port      uint8        // 0: any
	Address   netip.Addr   // of the network interface; peers use it
	Type      *ibv.GIDType // nil: RoCE v2 if the port has it, otherwise any type
	Interface string       // name of the network interface: "eth0"
	VLAN      *uint16      // of the interface; 0: none
	GID       *ibv.GID     // exactly this GID
}

// String describes the query: "with port 1, address 10.0.0.1".
func (q GIDQuery) String() string { return gid.Query(q).String() }

// GIDAddress returns a GID as an IP address. For RoCE v2 it is the address of the network interface. Other GIDs only
// have the form of an IP address.
func GIDAddress(g ibv.GID) netip.Addr { return gid.Address(g) }

// GIDEntryAddress is GIDAddress of an entry of the GID table. The zone of a link-local address is the network
// interface.
func GIDEntryAddress(e ibv.GIDEntry) netip.Addr { return gid.EntryAddress(&e) }

// FindGID returns the GID of the device that matches a query. If several match, it prefers those whose network
// interface is in the network namespace of the calling thread, then RoCE v2, then IPv4 over IPv6, and link-local
// addresses last. A query with an interface name or a VLAN matches only GIDs of that namespace. If no GID matches, the
// error is ENOENT and lists the GIDs of the device. The kernel creates GIDs for new addresses in the background, so
// they may appear late.
//
// Man: ibv_query_gid_table(3)
func (d *Device) FindGID(q GIDQuery) (ibv.GIDEntry, error) {
	all, err := d.GIDs()
	if err != nil {
		return ibv.GIDEntry{}, err
	}
	e, ok := gid.Choose(gid.Query(q), all)
	if !ok {
		return e, &VerbError{Verb: "ibv_query_gid_table", Object: d.name, Errno: syscall.ENOENT,
			Reason: fmt.Sprintf("no GID %v; the device has %s", q, gid.List(all))}
	}
	return e, nil
}

// ResolveMAC resolves the Ethernet address and the VLAN for the GID in the attributes of an address handle. It may
// block for seconds, until the network answers or a timeout.
//
// C: ibv_resolve_eth_l2_from_gid
func (d *Device) ResolveMAC(attr *ibv.AHAttr) (mac net.HardwareAddr, vlan uint16, err error) {
	const verb = "ibv_resolve_eth_l2_from_gid"
	if attr == nil {
		return nil, 0, noAttributes(verb, d.name)
	}
	address, id := new([6]byte), new(uint16)
	err = d.query(verb, func() error {
		return libibverbs.ResolveEthL2FromGID(d.c, attr, unsafe.SliceData(address[:]), id)
	})
	return address[:], *id, err
}
