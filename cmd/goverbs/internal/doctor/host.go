// SPDX-License-Identifier: BSD-2-Clause

// Package doctor looks for what keeps RDMA from working, or from working well: on a host, and between two. A check
// reads files of the host under a root that tests replace, and says what it found by the name of a cause, which has a
// remedy.
package doctor

import (
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// Host is what checks look at.
type Host struct {
	// FS has /sys, /proc, /dev, /etc and the directories of libraries, without the first slash.
	FS fs.FS
	// Later is the same after Interval: counters may have risen.
	Later    fs.FS
	Interval time.Duration
	// Interfaces are those of this network namespace.
	Interfaces []Interface
	// Open tries to open a device node as a program does.
	Open func(path string) error
	Env  func(name string) string
	// Software says if a name is one of a software device.
	Software func(name string) bool
	// Chosen is the device that somebody wants to use, or empty: with one in software, none of the kernel is needed.
	Chosen string

	devices []*sysfs.Device
	listed  bool
}

// Interface is a network interface with its addresses.
type Interface struct {
	Name      string
	MTU       int
	Up        bool // an administrator has switched it on
	Addresses []netip.Prefix
}

// text is a file without the white space around it, or empty.
func (h *Host) text(name string) string { return sysfs.Text(h.FS, name) }

// number is a number in a file.
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

// signs are what shows that a module is there if it is built in.
var signs = map[string]string{"ib_uverbs": "sys/class/infiniband_verbs/abi_version",
	"rdma_ucm": "sys/class/misc/rdma_cm"}

// module says if a module of the kernel is loaded, or built in.
func (h *Host) module(name string) bool {
	sign, ok := signs[name]
	return h.has("sys/module/"+name) || ok && h.has(sign)
}

// face finds an interface of this namespace.
func (h *Host) face(name string) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Name == name {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// vendorsDir has adapters, whether or not they have a driver.
const vendorsDir = "sys/bus/pci/devices"

// all lists the devices, once.
func (h *Host) all() []*sysfs.Device {
	if !h.listed {
		h.listed, h.devices = true, sysfs.Devices(h.FS)
	}
	return h.devices
}

// Knows says if there is a device of a name, of the kernel or in software.
func (h *Host) Knows(name string) bool {
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
