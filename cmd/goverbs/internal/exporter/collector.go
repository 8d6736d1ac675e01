// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"cmp"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
)

// Collector reads a host at each scrape.
type Collector struct {
	Host      *resources.Host
	By        string // how to label processes: name, pid, or none for no process metrics
	Processes int    // maximum number of processes per device

	ledger ledger
}

// Collect implements Source.
func (c *Collector) Collect(s *Scrape) {
	started := time.Now()
	now := c.Host.Read()
	for i := range now.Devices {
		s.device(&now.Devices[i])
	}
	if c.By != "none" {
		s.processes(c.programs(now.Objects))
		s.published(c.ledger.sums(sources(now), c.By, c.Processes))
	}
	s.software(now.Software, c.Processes)
	s.Add(notes, float64(len(now.Notes)))
	s.Add(took, time.Since(started).Seconds())
	version := "(unknown)"
	if b, ok := debug.ReadBuildInfo(); ok {
		version = b.Main.Version
	}
	s.Add(info, 1, version, runtime.Version())
}

func (s *Scrape) device(d *resources.Device) {
	s.Add(deviceInfo, 1, d.Name, d.Driver, d.Firmware, d.Board, d.GUID)
	for kind, n := range d.Objects {
		s.Add(deviceObjects, float64(n), d.Name, kind)
	}
	for kind, n := range d.Hidden {
		s.Add(deviceHidden, float64(n), d.Name, kind)
	}
	for i := range d.Ports {
		s.port(d.Name, &d.Ports[i])
	}
}

func (s *Scrape) port(device string, p *resources.Port) {
	number := strconv.Itoa(p.Port)
	s.Add(portInfo, 1, device, number, p.State, p.Physical, p.Link)
	active := 0.0
	if p.State == "ACTIVE" {
		active = 1
	}
	s.Add(portActive, active, device, number)
	if p.Rate != 0 {
		s.Add(portRate, float64(p.Rate)/8, device, number)
	}
	for file, value := range p.Counters {
		i := slices.IndexFunc(portCounters, func(m *Metric) bool { return m.file == file })
		if i < 0 {
			s.Add(portOther, float64(value), device, number, file)
			continue
		}
		s.Add(portCounters[i], float64(value)*portCounters[i].factor, device, number)
	}
	for name, value := range p.Hardware {
		s.Add(hardware, float64(value), device, number, name)
	}
}

// program has the objects of one process, or of several, on a device.
type program struct {
	device, name, pid string
	kinds             map[string]uint64
	bytes, all        uint64
}

// others is the label of the processes beyond the limit.
const others = "(others)"

// programs sums objects by process, the largest first, and the processes beyond the limit as others.
func (c *Collector) programs(objects []resources.Object) []*program {
	type key struct{ device, name, pid string }
	sums := map[key]*program{}
	sum := func(k key, kinds map[string]uint64, bytes uint64) {
		p := sums[k]
		if p == nil {
			p = &program{k.device, k.name, k.pid, map[string]uint64{}, 0, 0}
			sums[k] = p
		}
		for kind, n := range kinds {
			p.kinds[kind] += n
			p.all += n
		}
		p.bytes += bytes
	}
	for _, o := range objects {
		k := key{o.Device, o.Owner, ""}
		if c.By == "pid" && o.PID != 0 {
			k.pid = strconv.FormatUint(uint64(o.PID), 10)
		}
		sum(k, map[string]uint64{o.Kind: 1}, o.Bytes)
	}
	largest := slices.SortedFunc(maps.Values(sums), func(a, b *program) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(b.all, a.all), cmp.Compare(a.name, b.name),
			cmp.Compare(a.pid, b.pid))
	})
	shown := map[string]int{}
	for _, p := range largest {
		if shown[p.device]++; shown[p.device] > c.Processes {
			delete(sums, key{p.device, p.name, p.pid})
			sum(key{p.device, others, ""}, p.kinds, p.bytes)
		}
	}
	return slices.Collect(maps.Values(sums))
}

func (s *Scrape) processes(all []*program) {
	for _, p := range all {
		for kind, n := range p.kinds {
			s.Add(processObjects, float64(n), p.device, p.name, p.pid, kind)
		}
		s.Add(processBytes, float64(p.bytes), p.device, p.name, p.pid)
	}
}

// software sums sockets by address and program, with the same limit.
func (s *Scrape) software(all []resources.Software, limit int) {
	type key struct{ address, name string }
	sums := map[key]resources.Software{}
	for _, one := range all {
		k := key{one.Address, one.Owner}
		if _, ok := sums[k]; !ok && len(sums) >= limit {
			k = key{"", others}
		}
		sum := sums[k]
		sum.Waiting += one.Waiting
		sum.Drops += one.Drops
		sums[k] = sum
	}
	for k, sum := range sums {
		s.Add(softwareWaiting, float64(sum.Waiting), k.address, k.name)
		s.Add(softwareDrops, float64(sum.Drops), k.address, k.name)
	}
}
