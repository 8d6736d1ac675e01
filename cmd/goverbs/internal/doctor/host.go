// SPDX-License-Identifier: BSD-2-Clause

// Package doctor diagnoses RDMA problems on a host and between two hosts. Each check reads files of a [Host], whose
// root tests replace, and returns findings. A [Finding] names a cause; causes.txt lists all causes with their fixes.
package doctor

import (
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/rdma/native"
)

// Host is the system under examination.
type Host struct {
	// FS contains /sys, /proc, /dev, /etc and the library directories. Names have no leading slash.
	FS fs.FS
	// Later is FS after Interval, with newer counters.
	Later    fs.FS
	Interval time.Duration
	// Interfaces lists the interfaces of this network namespace.
	Interfaces []Interface
	// Open tries to open a device node for reading and writing.
	Open func(path string) error
	Env  func(name string) string
	// Software reports whether name is a software device.
	Software func(name string) bool
	// Library opens kernel devices in this process: "rdma-core 44.0" or "native".
	Library string
	// NeedsLibrary reports whether package native lacks the driver of a kernel device.
	NeedsLibrary func(device string) bool
	// Chosen is the device that the user selected, or empty. A software device needs no kernel device.
	Chosen string

	devices []*sysfs.Device
	listed  bool
}

// Interface is a network interface with its addresses.
type Interface struct {
	Name      string
	MTU       int
	Up        bool // administratively up
	Addresses []netip.Prefix
}

// text returns the contents of a file without surrounding white space, or "".
func (h *Host) text(name string) string { return sysfs.Text(h.FS, name) }

// number returns the number in a file.
func (h *Host) number(name string) (uint64, bool) {
	n, err := strconv.ParseUint(h.text(name), 10, 64)
	return n, err == nil
}

func (h *Host) has(name string) bool {
	_, err := fs.Stat(h.FS, name)
	return err == nil
}

func (h *Host) list(dir string) []string { return sysfs.List(h.FS, dir) }

func (h *Host) target(name string) string { return sysfs.Target(h.FS, name) }

// builtinFiles are files that exist if a module is built in.
var builtinFiles = map[string]string{"ib_uverbs": "sys/class/infiniband_verbs/abi_version",
	"rdma_ucm": "sys/class/misc/rdma_cm"}

// module reports whether a kernel module is loaded or built in.
func (h *Host) module(name string) bool {
	sign, ok := builtinFiles[name]
	return h.has("sys/module/"+name) || ok && h.has(sign)
}

// interfaceNamed returns an interface of this namespace.
func (h *Host) interfaceNamed(name string) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Name == name {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// vendorsDir lists PCI devices, with or without a driver.
const vendorsDir = "sys/bus/pci/devices"

// all returns the devices.
func (h *Host) all() []*sysfs.Device {
	if !h.listed {
		h.listed, h.devices = true, sysfs.Devices(h.FS)
	}
	return h.devices
}

// HasDevice reports whether a kernel or software device has the name.
func (h *Host) HasDevice(name string) bool {
	name = strings.TrimPrefix(name, native.Prefix)
	return h.Software(name) || slices.ContainsFunc(h.all(), func(d *sysfs.Device) bool { return d.Name == name })
}

// ports calls do for each port of each device.
func (h *Host) ports(do func(p *sysfs.Port)) {
	for _, d := range h.all() {
		for _, p := range d.Ports {
			do(p)
		}
	}
}
