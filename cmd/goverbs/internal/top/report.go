// SPDX-License-Identifier: BSD-2-Clause

// Package top shows which objects each program has on RDMA devices, what has grown since it began to look, and what
// ports count in a second.
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

// Report is what there is at one time.
type Report struct {
	Time      time.Time            `json:"time"`
	Interval  float64              `json:"interval_seconds,omitempty"` // what rates are of
	Devices   []Device             `json:"devices"`
	Processes []Process            `json:"processes"`
	Objects   []resources.Object   `json:"objects,omitempty"`
	Software  []resources.Software `json:"software"`
	Programs  []Program            `json:"programs,omitempty"`    // that say what they count
	Bound     []resources.Bound    `json:"qp_counters,omitempty"` // counters that queue pairs are bound to
	Notes     []string             `json:"notes,omitempty"`

	counters bool // all of them are for people, too
}

// Device is a device of the kernel.
type Device struct {
	resources.Device
	Ports []Port `json:"ports"`
}

// Port is a port with what it counted in each second since the report before.
type Port struct {
	resources.Port
	Rates map[string]float64 `json:"rates,omitempty"`
}

// Process is a program on a device, or a module of the kernel.
type Process struct {
	PID      uint32            `json:"pid"` // or 0
	Name     string            `json:"name"`
	Device   string            `json:"device"`
	Objects  map[string]uint64 `json:"objects"`            // by kind
	MRBytes  uint64            `json:"mr_bytes,omitempty"` // of all its memory regions
	Grown    map[string]int64  `json:"grown,omitempty"`    // more than at the beginning, by kind and mr_bytes
	total    uint64
	grownAll int64
}

func (p *Process) key() string { return fmt.Sprint(p.PID, " ", p.Device, " ", p.Name) }

// Names of what grows and sorts beside kinds.
const (
	mrBytes = "mr_bytes"
	objects = "objects"
	grown   = "grown"
)

// SortKeys are what processes can be sorted by; numbers with the largest first.
var SortKeys = append([]string{objects, grown, mrBytes, "pid", "name"}, resources.Kinds...)

// Options say what to look at.
type Options struct {
	Device   string
	PIDs     []uint32
	Name     string // part of a program's
	Sort     string // one of SortKeys
	Growing  bool   // only programs that have more than at the beginning
	Listed   bool   // with every object
	Counters bool   // with every counter
}

func (o *Options) wanted(device string, pid uint32, name string) bool {
	return (o.Device == "" || o.Device == device) && (len(o.PIDs) == 0 || slices.Contains(o.PIDs, pid)) &&
		strings.Contains(name, o.Name)
}

// Baseline is what programs had at the beginning.
type Baseline map[string]Process

// BaselineOf is what programs have in a snapshot.
func BaselineOf(s *resources.Snapshot) Baseline {
	b := Baseline{}
	for key, p := range sum(s.Objects, s.Programs) {
		b[key] = *p
	}
	return b
}

// New makes a report of a snapshot; before is the one before, or nil; without a baseline nothing has grown.
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
		return o.Device != "" && uses(p, o.Device)
	}):
	case len(r.Devices) == 0 && o.Device != "" && len(names) > 0:
		return nil, fmt.Errorf("the kernel has no device %s, but %s", o.Device, strings.Join(names, ", "))
	case len(r.Devices) == 0 && o.Device != "":
		return nil, fmt.Errorf("the kernel has no device %s, nor any other: %s", o.Device, none)
	case len(r.Devices) == 0:
		r.Notes = append(r.Notes, "the kernel has no RDMA devices here: "+none)
	}
	wanted := slices.DeleteFunc(slices.Clone(now.Programs), func(p resources.Program) bool {
		return !o.wanted(o.Device, p.PID, p.Owner)
	})
	r.counts(wanted, before, o)
	for _, b := range now.Bound {
		if o.wanted(b.Device, b.PID, b.Owner) {
			r.Bound = append(r.Bound, b)
		}
	}
	r.programs(now.Objects, wanted, base, o)
	for _, s := range now.Software {
		if o.Device == "" && o.wanted("", s.PID, s.Owner) {
			r.Software = append(r.Software, s)
		}
	}
	return r, nil
}

// none says what to do where the kernel has no device.
const none = "goverbs doctor says what keeps an adapter from being there; Soft-RoCE needs none (rdma link add rxe0 " +
	"type rxe netdev eth0); devices in software (soft0) are in the memory of their programs, of which only sockets " +
	"can be seen"

// programs takes the objects that are wanted, by program and device.
func (r *Report) programs(all []resources.Object, counting []resources.Program, base Baseline, o *Options) {
	wanted := slices.DeleteFunc(slices.Clone(all), func(one resources.Object) bool {
		return !o.wanted(one.Device, one.PID, one.Owner)
	})
	if o.Listed {
		r.Objects = wanted
	}
	for key, p := range sum(wanted, counting) {
		if o.Device != "" && p.Device != o.Device {
			continue
		}
		if base != nil {
			p.since(base[key])
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

// sum adds up objects by program and device: those of the kernel's devices, and of devices in software those that
// programs say.
func sum(all []resources.Object, counting []resources.Program) map[string]*Process {
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

// since notes what is more than it was. What has become less is no growth, but shows.
func (p *Process) since(was Process) {
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

// rates are what a port counted in a second. A counter that became less began anew.
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

// each calls do with the counters of a port in the order of their names, those of the port first.
func (p *Port) each(do func(name string, value uint64)) {
	for _, all := range []map[string]uint64{p.Counters, p.Hardware} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			do(name, all[name])
		}
	}
}
