// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"math"
	"time"
)

// plots returns the plots of a report.
func (r *Report) plots() (all []*plot) {
	switch {
	case len(r.Rows) == 0:
	case r.Latency && len(r.Rows) == 1:
		all = append(all, r.percentiles(), r.distribution())
	case r.Latency:
		all = append(all, r.latencyBySize(), r.percentiles())
	case len(r.Rows) > 1:
		all = append(all, r.bySize("Bandwidth by size", "Gbit/s", 1e9, func(v *Row) float64 { return v.Gbits }),
			r.bySize("Messages by size", "per second", 50, func(v *Row) float64 { return v.Mps * 1e6 }))
	}
	return all
}

// bySize plots a value by size, for RDMA and TCP.
func (r *Report) bySize(title, name string, most float64, of func(*Row) float64) *plot {
	all := []values{{name: "RDMA, " + r.Connection}}
	if r.compared() {
		all = append(all, values{name: "TCP"})
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		add := func(c *values, v *Row) {
			c.all = append(c.all, value{float64(row.Size), of(v),
				fmt.Sprintf("%s, %d bytes: %.4g %s", c.name, row.Size, of(v), name)})
		}
		if add(&all[0], row); row.TCP != nil {
			add(&all[1], row.TCP)
		}
	}
	return r.sized(&plot{Title: title, YName: name}, all, most)
}

// latencyBySize plots percentiles by size, and the median over TCP.
func (r *Report) latencyBySize() *plot {
	all := []values{{name: "median"}, {name: "99 %"}, {name: "99.9 %"}}
	if r.compared() {
		all = append(all, values{name: "median over TCP"})
	}
	for _, row := range r.Rows {
		of := []float64{row.Median, row.P99, row.P999}
		if row.TCP != nil {
			of = append(of, row.TCP.Median)
		}
		for i, v := range of {
			all[i].all = append(all[i].all, value{float64(row.Size), v,
				fmt.Sprintf("%s, %d bytes: %.2f µs", all[i].name, row.Size, v)})
		}
	}
	return r.sized(&plot{Title: "Latency by size", YName: "µs"}, all, 10)
}

// sized plots curves by size.
func (r *Report) sized(p *plot, all []values, most float64) *plot {
	first, last := r.Rows[0].Size, r.Rows[len(r.Rows)-1].Size
	x := horizontalAxis(float64(first), float64(last))
	p.XName = "message size in bytes"
	every := 1
	if len(r.Rows) > 12 {
		every = 2
	}
	for i := 0; i < len(r.Rows); i += every {
		p.X = append(p.X, tick{x.at(float64(r.Rows[i].Size)), sizeText(r.Rows[i].Size)})
	}
	p.put(x, verticalAxis(all, most), all)
	return p
}

// Grid positions of a plot of percentiles.
var shares = []float64{0, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999}

// percentiles plots the latencies of some of the sizes. Each step to the right halves the remaining share, or divides
// it by ten.
func (r *Report) percentiles() *plot {
	p := &plot{Title: "Latency by percentile", XName: "percentile", YName: "µs"}
	var chosen []*Row
	for n := min(5, len(r.Rows)); n > 0; n-- {
		chosen = append(chosen, &r.Rows[(len(r.Rows)-1)*(n-1)/max(1, min(5, len(r.Rows))-1)])
	}
	most := 10
	for _, row := range chosen {
		most = max(most, len(row.times))
	}
	x := horizontalAxis(1, float64(most))
	for _, share := range shares {
		if rest := 1 / (1 - share); rest <= float64(most)*1.001 {
			p.X = append(p.X, tick{x.at(rest), fmt.Sprintf("%.10g", 100*share)})
		}
	}
	var all []values
	for i := len(chosen) - 1; i >= 0; i-- {
		row := chosen[i]
		c := values{name: sizeText(row.Size) + " bytes"}
		for last, step := -1, 0.0; len(row.times) > 0; step++ {
			rest := math.Pow(10, step/24)
			at := int(float64(len(row.times)) * (1 - 1/rest))
			if at >= len(row.times)-1 {
				at = len(row.times) - 1
			}
			if at != last {
				v := microseconds(row.times[at])
				c.all = append(c.all, value{float64(len(row.times)) / float64(len(row.times)-at), v,
					fmt.Sprintf("%s, %.6g %%: %.2f µs", c.name, 100*float64(at+1)/float64(len(row.times)), v)})
			}
			if last = at; at == len(row.times)-1 {
				break
			}
		}
		all = append(all, c)
	}
	p.put(x, verticalAxis(all, 20), all)
	return p
}

// columns is the number of bars of a histogram.
const columns = 60

// distribution plots a histogram of the latencies without the slowest hundredth.
func (r *Report) distribution() *plot {
	p := &plot{Title: "Latency distribution", XName: "µs", YName: "messages"}
	times := r.Rows[0].times
	if len(times) == 0 {
		return p
	}
	low, top := times[0], times[min(len(times)-1, len(times)*99/100)]
	if slower := len(times) - len(times)*99/100; slower > 0 && len(times) >= 100 {
		p.Note = fmt.Sprintf("the slowest %d of %d messages, up to %.4g µs, are beyond the right edge", slower,
			len(times), microseconds(times[len(times)-1]))
	}
	width := max((top-low)/columns, 1) + 1
	var counts [columns]int
	for _, d := range times {
		if d <= top {
			counts[min(columns-1, int((d-low)/width))]++
		}
	}
	heights := values{}
	for _, n := range counts {
		heights.all = append(heights.all, value{y: float64(n)})
	}
	y := verticalAxis([]values{heights}, math.Inf(1))
	x := axis{low: microseconds(low), top: microseconds(low + columns*width), from: plotLeft, to: plotWidth - plotRight}
	p.Y = y.ticks()
	for i := range 6 {
		v := x.low + (x.top-x.low)*float64(i)/5
		p.X = append(p.X, tick{x.at(v), fmt.Sprintf("%.3g", v)})
	}
	each := float64(plotWidth-plotLeft-plotRight) / columns
	for i, n := range counts {
		if n == 0 {
			continue
		}
		from := low + time.Duration(i)*width
		p.Bars = append(p.Bars, bar{X: plotLeft + float64(i)*each + 0.5, Y: y.at(float64(n)), Width: each - 1,
			Height: y.at(0) - y.at(float64(n)),
			Text:   fmt.Sprintf("%.2f to %.2f µs: %d messages", microseconds(from), microseconds(from+width), n)})
	}
	return p
}
