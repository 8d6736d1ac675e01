// SPDX-License-Identifier: BSD-2-Clause

// Package top shows the RDMA objects of each program, their growth, and port counters per second.
package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
)

// Report is the state at one time.
type Report struct {
	Time      time.Time            `json:"time"`
	Interval  float64              `json:"interval_seconds,omitempty"` // period of the rates
	Devices   []Device             `json:"devices"`
	Processes []Process            `json:"processes"`
	Objects   []resources.Object   `json:"objects,omitempty"`
	Software  []resources.Software `json:"software"`
	Programs  []Program            `json:"programs,omitempty"`    // that publish statistics
	Bound     []resources.Bound    `json:"qp_counters,omitempty"` // counters bound to queue pairs
	Notes     []string             `json:"notes,omitempty"`

	counters bool // print all counters as text, too
}

// Device is a kernel device.
type Device struct {
	resources.Device
	Ports []Port `json:"ports"`
}

// Port is a port with its counter rates since the previous report.
type Port struct {
	resources.Port
	Rates map[string]float64 `json:"rates,omitempty"`
}

// Process is a program on a device, or a kernel module.
type Process struct {
	PID      uint32            `json:"pid"` // or 0
	Name     string            `json:"name"`
	Device   string            `json:"device"`
	Objects  map[string]uint64 `json:"objects"`            // by kind
	MRBytes  uint64            `json:"mr_bytes,omitempty"` // of all its memory regions
	Grown    map[string]int64  `json:"grown,omitempty"`    // growth since the start, by kind and mr_bytes
	total    uint64
	grownAll int64
}

func (p *Process) key() string { return fmt.Sprint(p.PID, " ", p.Device, " ", p.Name) }

// Sort and growth keys other than kinds.
const (
	mrBytes = "mr_bytes"
	objects = "objects"
	grown   = "grown"
)

// SortKeys lists the sort keys. Numbers sort in descending order.
var SortKeys = append([]string{objects, grown, mrBytes, "pid", "name"}, resources.Kinds...)

// Options select what to show.
type Options struct {
	Device   string
	PIDs     []uint32
	Name     string // part of a program's name
	Sort     string // one of SortKeys
	Growing  bool   // only programs that have grown
	Listed   bool   // list every object
	Counters bool   // show every counter
}

func (o *Options) selected(device string, pid uint32, name string) bool {
	return (o.Device == "" || o.Device == device) && (len(o.PIDs) == 0 || slices.Contains(o.PIDs, pid)) &&
		strings.Contains(name, o.Name)
}

// Baseline has the object counts at the start.
type Baseline map[string]Process

// BaselineOf returns the object counts of a snapshot.
func BaselineOf(s *resources.Snapshot) Baseline {
	b := Baseline{}
	for key, p := range sumObjects(s.Objects, s.Programs) {
		b[key] = *p
	}
	return b
}

// New returns the report of a snapshot. before is the previous snapshot, or nil; without a baseline there is no growth.
func New(now, before *resources.Snapshot, base Baseline, o *Options) (*Report, error) {
	r := &Report{Time: now.Time, Devices: []Device{}, Processes: []Process{}, Software: []resources.Software{},
		Notes: now.Notes, counters: o.Counters}
	if before != nil {
		r.Interval = now.Time.Sub(before.Time).Seconds()
	}
	var names []string
	for _, d := range now.Devices {
		if names = append(names, d.Name); o.Device != "" && o.Device != d.Name {
			continue
		}
		one := Device{Device: d, Ports: []Port{}}
		for _, p := range d.Ports {
			one.Ports = append(one.Ports, Port{Port: p, Rates: rates(p, d.Name, before, r.Interval)})
		}
		r.Devices = append(r.Devices, one)
	}
	switch {
	case len(r.Devices) == 0 && slices.ContainsFunc(now.Programs, func(p resources.Program) bool {
		return o.Device != "" && hasOpened(p, o.Device)
	}):
	case len(r.Devices) == 0 && o.Device != "" && len(names) > 0:
		return nil, fmt.Errorf("unknown kernel device %s; use %s", o.Device, strings.Join(names, ", "))
	case len(r.Devices) == 0 && o.Device != "":
		return nil, fmt.Errorf("unknown kernel device %s: the kernel has no RDMA devices; %s", o.Device, noDevicesHint)
	case len(r.Devices) == 0:
		r.Notes = append(r.Notes, "the kernel has no RDMA devices; "+noDevicesHint)
	}
	selected := slices.DeleteFunc(slices.Clone(now.Programs), func(p resources.Program) bool {
		return !o.selected(o.Device, p.PID, p.Owner)
	})
	r.counts(selected, before, o)
	for _, b := range now.Bound {
		if o.selected(b.Device, b.PID, b.Owner) {
			r.Bound = append(r.Bound, b)
		}
	}
	r.programs(now.Objects, selected, base, o)
	for _, s := range now.Software {
		if o.Device == "" && o.selected("", s.PID, s.Owner) {
			r.Software = append(r.Software, s)
		}
	}
	return r, nil
}

// noDevicesHint is the hint if the kernel has no device.
const noDevicesHint = "diagnose adapters with goverbs doctor, or add Soft-RoCE (rdma link add rxe0 type rxe netdev " +
	"eth0); objects of software devices (soft0) are in the memory of their programs, and only sockets are shown"

// programs returns the selected objects by program and device.
func (r *Report) programs(all []resources.Object, counting []resources.Program, base Baseline, o *Options) {
	selected := slices.DeleteFunc(slices.Clone(all), func(one resources.Object) bool {
		return !o.selected(one.Device, one.PID, one.Owner)
	})
	if o.Listed {
		r.Objects = selected
	}
	for key, p := range sumObjects(selected, counting) {
		if o.Device != "" && p.Device != o.Device {
			continue
		}
		if base != nil {
			p.recordGrowth(base[key])
		}
		if !o.Growing || p.grownAll > 0 || p.Grown[mrBytes] > 0 {
			r.Processes = append(r.Processes, *p)
		}
	}
	slices.SortFunc(r.Processes, func(a, b Process) int {
		return cmp.Or(o.compare(&a, &b), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Device, b.Device))
	})
	slices.SortFunc(r.Objects, func(a, b resources.Object) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(slices.Index(resources.Kinds, a.Kind),
			slices.Index(resources.Kinds, b.Kind)), cmp.Compare(a.Number, b.Number))
	})
}

// sumObjects sums objects by program and device: those of kernel devices, and those of software devices whose programs
// publish statistics.
func sumObjects(all []resources.Object, counting []resources.Program) map[string]*Process {
	sums := map[string]*Process{}
	for _, c := range counting {
		for _, d := range c.Devices {
			if !d.Software {
				continue
			}
			p := &Process{PID: c.PID, Name: c.Owner, Device: d.Name, Objects: d.Objects, MRBytes: d.MRBytes}
			for _, n := range d.Objects {
				p.total += n
			}
			sums[p.key()] = p
		}
	}
	for _, one := range all {
		p := &Process{PID: one.PID, Name: one.Owner, Device: one.Device, Objects: map[string]uint64{}}
		if known := sums[p.key()]; known != nil {
			p = known
		}
		sums[p.key()] = p
		p.Objects[one.Kind]++
		p.total++
		if one.Kind == "mr" {
			p.MRBytes += one.Bytes
		}
	}
	return sums
}

// recordGrowth records changes since the baseline. A decrease is shown but is not growth.
func (p *Process) recordGrowth(was Process) {
	p.Grown = map[string]int64{}
	for _, kind := range resources.Kinds {
		if n := int64(p.Objects[kind]) - int64(was.Objects[kind]); n != 0 {
			p.Grown[kind] = n
			p.grownAll += max(n, 0)
		}
	}
	if n := int64(p.MRBytes) - int64(was.MRBytes); n != 0 {
		p.Grown[mrBytes] = n
	}
}

func (o *Options) compare(a, b *Process) int {
	switch o.Sort {
	case "pid":
		return cmp.Compare(a.PID, b.PID)
	case "name":
		return cmp.Compare(a.Name, b.Name)
	case mrBytes:
		return cmp.Compare(b.MRBytes, a.MRBytes)
	case grown:
		return cmp.Or(cmp.Compare(b.grownAll, a.grownAll), cmp.Compare(b.Grown[mrBytes], a.Grown[mrBytes]))
	case objects, "":
		return cmp.Compare(b.total, a.total)
	}
	return cmp.Compare(b.Objects[o.Sort], a.Objects[o.Sort])
}

// rates returns a port's counter changes per second. A counter that decreased was reset.
func rates(p resources.Port, device string, before *resources.Snapshot, seconds float64) map[string]float64 {
	if before == nil || seconds <= 0 {
		return nil
	}
	all := map[string]float64{}
	for _, d := range before.Devices {
		for _, was := range d.Ports {
			if d.Name != device || was.Port != p.Port {
				continue
			}
			rate := func(now, then map[string]uint64) {
				for name, n := range now {
					if from, ok := then[name]; ok && n > from {
						all[name] = float64(n-from) / seconds
					}
				}
			}
			rate(p.Counters, was.Counters)
			rate(p.Hardware, was.Hardware)
		}
	}
	return all
}

// each calls do with the counters of a port by name, the port's own counters first.
func (p *Port) each(do func(name string, value uint64)) {
	for _, all := range []map[string]uint64{p.Counters, p.Hardware} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			do(name, all[name])
		}
	}
}
