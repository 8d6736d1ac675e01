// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
)

// WriteText writes the report as tables, followed by the notes.
func (r *Report) WriteText(w io.Writer) error {
	if err := r.writeDevices(w); err != nil {
		return err
	}
	if len(r.Processes) > 0 {
		head := []string{"PID", "NAME", "DEVICE"}
		for _, kind := range resources.Kinds {
			head = append(head, strings.ToUpper(kind))
		}
		var rows [][]string
		for i := range r.Processes {
			rows = append(rows, r.Processes[i].row())
		}
		fmt.Fprintln(w)
		if err := page.Table(w, append(head, "MR BYTES", "Δ"), rows); err != nil {
			return err
		}
	}
	if err := r.writeObjects(w); err != nil {
		return err
	}
	if err := r.writeCounts(w); err != nil {
		return err
	}
	if err := r.writeBound(w); err != nil {
		return err
	}
	if len(r.Software) > 0 {
		var rows [][]string
		for _, s := range r.Software {
			rows = append(rows, []string{number(uint64(s.PID)), cmp.Or(s.Owner, "-"), "soft@" + s.Address,
				strconv.FormatUint(s.Waiting, 10), strconv.FormatUint(s.Drops, 10)})
		}
		fmt.Fprintln(w)
		err := page.Table(w, []string{"PID", "NAME", "IN SOFTWARE", "WAITING BYTES", "DROPS"}, rows)
		if err != nil {
			return err
		}
	}
	for i, note := range r.Notes {
		if i == 0 && len(r.Devices)+len(r.Processes)+len(r.Programs)+len(r.Software) > 0 {
			fmt.Fprintln(w)
		}
		if err := page.Paragraph(w, "note", note, 6); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) writeDevices(w io.Writer) error {
	if len(r.Devices) == 0 {
		return nil
	}
	head := []string{"DEVICE", "PORT", "STATE", "LINK", "Gbit/s"}
	for _, kind := range resources.Kinds {
		head = append(head, strings.ToUpper(kind))
	}
	var rows, counters [][]string
	for _, d := range r.Devices {
		var counts []string
		for _, kind := range resources.Kinds {
			text := number(d.Objects[kind])
			if n := d.Hidden[kind]; n > 0 {
				text += fmt.Sprintf(" (%d hidden)", n)
			}
			counts = append(counts, text)
		}
		for i := range d.Ports {
			p := &d.Ports[i]
			rows = append(rows, append([]string{d.Name, strconv.Itoa(p.Number()), cmp.Or(p.State, "-"),
				cmp.Or(p.Link, "-"), gigabits(p.Rate)}, counts...))
			p.each(func(name string, value uint64) {
				rate := p.Rates[name]
				if r.counters || rate > 0 || value > 0 && r.Interval == 0 {
					counters = append(counters, []string{d.Name, strconv.Itoa(p.Number()), name,
						strconv.FormatUint(value, 10), perSecond(rate)})
				}
			})
		}
		if len(d.Ports) == 0 {
			rows = append(rows, append([]string{d.Name, "-", "-", "-", "-"}, counts...))
		}
	}
	if err := page.Table(w, head, rows); err != nil || len(counters) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return page.Table(w, []string{"DEVICE", "PORT", "COUNTER", "VALUE", "PER SECOND"}, counters)
}

func (r *Report) writeObjects(w io.Writer) error {
	if len(r.Objects) == 0 {
		return nil
	}
	var rows [][]string
	for _, o := range r.Objects {
		more := []string{o.Type, o.State}
		for _, f := range []struct {
			name  string
			value uint64
		}{{"peer", uint64(o.Peer)}, {"rq_psn", uint64(o.RQPSN)}, {"sq_psn", uint64(o.SQPSN)}, {"qpn", uint64(o.QPN)},
			{"bytes", o.Bytes}, {"cqe", uint64(o.Room)}, {"users", o.Users}, {"pd", uint64(o.PD)}} {
			if f.value != 0 {
				more = append(more, fmt.Sprintf("%s=%d", f.name, f.value))
			}
		}
		if o.Local != "" {
			more = append(more, o.Local, "→", o.Remote)
		}
		rows = append(rows, []string{o.Kind, o.Device, strconv.FormatUint(uint64(o.Number), 10), number(uint64(o.PID)),
			cmp.Or(o.Owner, "-"), cmp.Or(strings.Join(strings.Fields(strings.Join(more, " ")), " "), "-")})
	}
	fmt.Fprintln(w)
	return page.Table(w, []string{"OBJECT", "DEVICE", "NUMBER", "PID", "NAME", "WHAT"}, rows)
}

// Number returns the port number.
func (p *Port) Number() int { return p.Port.Port }

func (p *Process) row() []string {
	row := []string{number(uint64(p.PID)), cmp.Or(p.Name, "-"), p.Device}
	for _, kind := range resources.Kinds {
		row = append(row, number(p.Objects[kind]))
	}
	var more []string
	for _, kind := range append(append([]string{}, resources.Kinds...), mrBytes) {
		if n := p.Grown[kind]; n != 0 {
			more = append(more, fmt.Sprintf("%s %+d", kind, n))
		}
	}
	return append(row, number(p.MRBytes), cmp.Or(strings.Join(more, ", "), "-"))
}

// number returns n in decimal, or "-" if n is zero.
func number(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func gigabits(rate uint64) string {
	if rate == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(rate)/1e9, 'g', 6, 64)
}

func perSecond(rate float64) string {
	if rate == 0 {
		return "-"
	}
	return strconv.FormatFloat(rate, 'f', 1, 64)
}
