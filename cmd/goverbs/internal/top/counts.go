// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/internal/stats"
)

// Program has the statistics of a program that publishes them.
type Program struct {
	resources.Program
	// Requests posted per second since the previous report, by device and kind of queue: "soft0 send".
	Rates map[string]float64 `json:"posts_per_second,omitempty"`
}

// kinds maps kinds of queues to their labels.
var kinds = []string{stats.Send, stats.Receive, stats.SharedReceive}

// hasOpened reports whether a program has opened a device.
func hasOpened(p resources.Program, device string) bool {
	return slices.ContainsFunc(p.Devices, func(d stats.Device) bool { return d.Name == device })
}

// counts adds the statistics of programs.
func (r *Report) counts(all []resources.Program, before *resources.Snapshot, o *Options) {
	then := map[string]resources.Program{}
	if before != nil {
		for _, p := range before.Programs {
			then[fmt.Sprint(p.PID, " ", p.Instance)] = p
		}
	}
	for _, p := range all {
		if o.Device != "" && !hasOpened(p, o.Device) {
			continue
		}
		one := Program{Program: p}
		if was, ok := then[fmt.Sprint(p.PID, " ", p.Instance)]; ok && r.Interval > 0 {
			one.Rates = postRates(p, was, r.Interval)
		}
		r.Programs = append(r.Programs, one)
	}
}

// postRates returns the requests that a program posted per second.
func postRates(now, was resources.Program, seconds float64) map[string]float64 {
	rates, then := map[string]float64{}, map[string]uint64{}
	for _, d := range was.Devices {
		for kind, q := range d.Queues {
			then[d.Name+" "+kind] = q.Posted
		}
	}
	for _, d := range now.Devices {
		for kind, q := range d.Queues {
			if key := d.Name + " " + kind; q.Posted > then[key] {
				rates[key] = float64(q.Posted-then[key]) / seconds
			}
		}
	}
	return rates
}

// writeCounts writes a row for each kind of queue of a program and device.
func (r *Report) writeCounts(w io.Writer) error {
	var rows [][]string
	for _, p := range r.Programs {
		for _, d := range p.Devices {
			for _, kind := range kinds {
				q, ok := d.Queues[kind]
				if !ok {
					continue
				}
				text := strconv.FormatUint(q.Queues, 10)
				if q.Uncounted > 0 {
					text += fmt.Sprintf(" (%d uncounted)", q.Uncounted)
				}
				rows = append(rows, []string{number(uint64(p.PID)), cmp.Or(p.Owner, "-"), d.Name, kind, text,
					number(q.Posted), number(q.Done), number(q.Outstanding), number(q.Slots),
					perSecond(p.Rates[d.Name+" "+kind])})
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return page.Table(w, []string{"PID", "NAME", "DEVICE", "REQUESTS", "QUEUES", "POSTED", "DONE", "OUTSTANDING",
		"SLOTS", "PER SECOND"}, rows)
}

// writeBound writes a row for each counter bound to queue pairs.
func (r *Report) writeBound(w io.Writer) error {
	var rows [][]string
	for _, b := range r.Bound {
		for _, name := range slices.Sorted(maps.Keys(b.Hardware)) {
			if value := b.Hardware[name]; value > 0 || r.counters {
				rows = append(rows, []string{number(uint64(b.PID)), cmp.Or(b.Owner, "-"), b.Device,
					strconv.Itoa(int(b.Port)), strconv.Itoa(int(b.ID)), cmp.Or(b.Mode, "-"), strconv.Itoa(len(b.QPs)),
					name, strconv.FormatUint(value, 10)})
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return page.Table(w, []string{"PID", "NAME", "DEVICE", "PORT", "ID", "MODE", "QP", "COUNTER OF QPS", "VALUE"}, rows)
}
