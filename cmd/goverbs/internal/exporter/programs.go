// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
)

// series is a metric and its labels, separated by zero bytes.
type series struct {
	metric *Metric
	labels string
}

// values are the values of a program.
type values map[series]float64

func (v values) add(m *Metric, value float64, labels ...string) {
	v[series{m, strings.Join(labels, "\x00")}] += value
}

// valuesOf returns the values that a program publishes, labeled with name and PID.
func valuesOf(p *resources.Program, name, pid string) values {
	v := values{}
	for i := range p.Devices {
		d := &p.Devices[i]
		for kind, q := range d.Queues {
			v.add(posted, float64(q.Posted), d.Name, name, pid, kind)
			v.add(completed, float64(q.Done), d.Name, name, pid, kind)
			v.add(outstanding, float64(q.Outstanding), d.Name, name, pid, kind)
			v.add(slots, float64(q.Slots), d.Name, name, pid, kind)
			v.add(queues, float64(q.Queues-min(q.Uncounted, q.Queues)), d.Name, name, pid, kind, "yes")
			v.add(queues, float64(q.Uncounted), d.Name, name, pid, kind, "no")
		}
		if !d.Software {
			continue // the kernel has more detail
		}
		for kind, n := range d.Objects {
			v.add(softwareObjects, float64(n), d.Name, name, pid, kind)
		}
		v.add(softwareBytes, float64(d.MRBytes), d.Name, name, pid)
		for counter, n := range d.Hardware {
			v.add(softwareEvents, float64(n), d.Name, name, pid, counter)
		}
	}
	if c := p.Cache; c != nil {
		v.add(leases, float64(c.Hits), name, pid, "hit")
		v.add(leases, float64(c.Misses), name, pid, "miss")
		v.add(dropped, float64(c.Evicted), name, pid, "limit")
		v.add(dropped, float64(c.Unmapped), name, pid, "unmapped")
		v.add(cached, float64(c.Regions), name, pid)
		v.add(cachedBytes, float64(c.Bytes), name, pid)
	}
	return v
}

// ledger keeps the counts of programs that have ended, so that the sum over programs of one name never decreases.
type ledger struct {
	mu    sync.Mutex // guards the fields below
	names map[string]bool
	last  map[string]values // by program
	past  values            // of ended programs
}

// source is a program, or hardware counters, with values for a name and a PID.
type source struct {
	key, owner string
	pid        uint32
	values     func(name, pid string) values
}

// sources returns the sources of a snapshot.
func sources(s *resources.Snapshot) (all []source) {
	for i := range s.Programs {
		p := &s.Programs[i]
		all = append(all, source{fmt.Sprint(p.PID, " ", p.Instance), p.Owner, p.PID,
			func(name, pid string) values { return valuesOf(p, name, pid) }})
	}
	for _, b := range s.Bound {
		all = append(all, source{fmt.Sprint(b.Device, " counter ", b.Port, " ", b.ID, " ", b.PID), b.Owner, b.PID,
			func(name, pid string) values {
				v := values{}
				for counter, n := range b.Hardware {
					v.add(processHardware, float64(n), b.Device, name, pid, strconv.Itoa(int(b.Port)), counter)
				}
				return v
			}})
	}
	return all
}

// sums adds up the values by name or PID. At most limit of them are distinguished, the earliest ones.
func (l *ledger) sums(all []source, by string, limit int) values {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, names := map[string]values{}, map[string]bool{}
	label := func(s source) (name, pid string) {
		if name = s.owner; by == "pid" && s.pid != 0 {
			pid = strconv.FormatUint(uint64(s.pid), 10)
		}
		return name, pid
	}
	for _, s := range all { // names that are already distinguished stay distinguished
		if name, pid := label(s); l.names[name+"\x00"+pid] {
			names[name+"\x00"+pid] = true
		}
	}
	for _, s := range all {
		name, pid := label(s)
		if key := name + "\x00" + pid; !names[key] && len(names) < limit {
			names[key] = true
		} else if !names[key] {
			name, pid = others, ""
		}
		now[s.key] = s.values(name, pid)
	}
	if l.past == nil {
		l.past = values{}
	}
	for program, was := range l.last {
		for s, value := range was {
			if is, ok := now[program][s]; s.metric.kind == Counter && (!ok || is < value) {
				l.past[s] += value
			}
		}
	}
	sums := values{}
	for _, v := range now {
		for s, value := range v {
			sums[s] += value
		}
	}
	for s, value := range l.past {
		if _, ok := sums[s]; ok {
			sums[s] += value
		} else {
			delete(l.past, s)
		}
	}
	l.names, l.last = names, now
	return sums
}

// published writes the metrics of programs that publish statistics.
func (s *Scrape) published(all values) {
	for one, value := range all {
		s.Add(one.metric, value, strings.Split(one.labels, "\x00")...)
	}
}
