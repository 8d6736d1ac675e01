// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
)

// Prefix begins the names of devices that are bound to an address of this machine: "soft@192.0.2.1",
// "soft@2001:db8::1", "soft@fe80::1%eth0".
const Prefix = "soft@"

// wired holds the fabric of the devices opened by Named.
var wired struct {
	mu sync.Mutex
	// +checklocks:mu
	fabric *Fabric
}

// Named returns the fabric of a device whose name begins with Prefix, and the canonical name: for "soft@2001:DB8::1" it
// is "soft@2001:db8::1". The first call for a name opens the device, with DeviceOptions.Wire. All such devices of the
// process share one fabric, which is not [Default]. They keep their addresses until the process ends, or until
// Fabric.RemoveDevice.
//
// The environment variable GOVERBS_SOFT_CAPTURE names a file to which the packets of all these devices are captured, as
// by Fabric.Capture; %p in it is replaced with the process ID. Programs with more privileges than their user ignore it.
//
// An error describes what is wrong with the name, that no interface has the address, which process uses UDP port 4791
// of it, or that the capture file cannot be written.
func Named(name string) (f *Fabric, device string, err error) {
	address, err := parseName(name)
	if err != nil {
		return nil, "", err
	}
	device = Prefix + address.String()
	options := DeviceOptions{Name: device, Address: address, Wire: true}
	wired.mu.Lock()
	defer wired.mu.Unlock()
	switch f := wired.fabric; {
	case f == nil:
		if f, err = namedFabric(options); err != nil {
			return nil, "", err
		}
		wired.fabric = f
	case f.fabric.HasDevice(device):
	default:
		if err := f.AddDevice(options); err != nil {
			return nil, "", err
		}
	}
	return wired.fabric, device, nil
}

// Wired returns the fabric of the devices that Named has opened, or nil if there is none.
func Wired() *Fabric {
	wired.mu.Lock()
	defer wired.mu.Unlock()
	return wired.fabric
}

// parseName returns the address in a device's name.
func parseName(name string) (address netip.Addr, err error) {
	text, ok := strings.CutPrefix(name, Prefix)
	bad := func(why string) error { return fmt.Errorf("soft: device name %q: %s: %w", name, why, syscall.EINVAL) }
	switch {
	case !ok:
		return address, bad("names must begin with " + Prefix)
	case text == "":
		return address, bad("an address of this machine must follow, as in soft@192.0.2.1 or soft@2001:db8::1")
	case strings.Contains(text, ","):
		return address, bad("a device has one address; use one device for each address")
	case strings.HasPrefix(text, "["):
		return address, bad("write an IPv6 address without brackets, as in soft@2001:db8::1")
	}
	if address, err = netip.ParseAddr(text); err != nil {
		if _, err := netip.ParseAddrPort(text); err == nil {
			return address, bad("omit the port; it is always 4791")
		}
		return address, bad("an IP address of this machine must follow, not the name of a host or an interface")
	}
	return address.Unmap(), nil
}
