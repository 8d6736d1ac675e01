// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// plot is a chart. Positions are in its own units, width by height.
type plot struct {
	Title, Note string
	XName       string
	YName       string
	Curves      []curve
	Bars        []bar
	X, Y        []tick
}

// Layout of a plot.
const (
	plotWidth  = 760
	plotHeight = 320
	plotLeft   = 66
	plotRight  = 22
	plotTop    = 14
	plotBottom = 44
)

// tick is a grid line.
type tick struct {
	At   float64
	Text string
}

// curve is a line through points.
type curve struct {
	Name   string
	Class  string // CSS class for the color
	Points []point
}

// point is a point with its tooltip.
type point struct {
	X, Y float64
	Text string
}

// bar is a bar of a histogram.
type bar struct {
	X, Y, Width, Height float64
	Text                string
}

// path returns the SVG path of a curve.
func (c curve) path() string {
	var b strings.Builder
	for i, p := range c.Points {
		fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], p.X, p.Y)
	}
	return b.String()
}

// dots reports whether the points are few enough to draw each.
func (c curve) dots() bool { return len(c.Points) <= 40 }

// value is a point before scaling.
type value struct {
	x, y float64
	text string
}

// values are the points of a curve.
type values struct {
	name string
	all  []value
}

// axis maps values to positions.
type axis struct {
	log      bool
	low, top float64 // values
	from, to float64 // positions
}

func (a axis) at(v float64) float64 {
	low, top := a.low, a.top
	if a.log {
		low, top, v = math.Log10(low), math.Log10(top), math.Log10(max(v, a.low))
	}
	if top == low {
		return (a.from + a.to) / 2
	}
	return a.from + (v-low)/(top-low)*(a.to-a.from)
}

// verticalAxis returns the vertical axis for these curves: linear from 0, or logarithmic if values differ much.
func verticalAxis(all []values, most float64) axis {
	low, top := math.Inf(1), 0.0
	for _, c := range all {
		for _, v := range c.all {
			if v.y > 0 {
				low = min(low, v.y)
			}
			top = max(top, v.y)
		}
	}
	a := axis{low: 0, top: top * 1.05, from: plotHeight - plotBottom, to: plotTop}
	if top == 0 {
		a.top = 1
	} else if top/low > most {
		a.log, a.low, a.top = true, math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(top)))
	}
	return a
}

// ticks returns round values of an axis.
func (a axis) ticks() (all []tick) {
	if !a.log {
		step := math.Pow(10, math.Floor(math.Log10(a.top/4)))
		for _, by := range []float64{1, 2, 5, 10} {
			if a.top/(step*by) <= 6 {
				step *= by
				break
			}
		}
		for n := 0; float64(n)*step <= a.top; n++ {
			all = append(all, tick{a.at(float64(n) * step), short(float64(n) * step)})
		}
		return all
	}
	for v := a.low; v <= a.top*1.001; v *= 10 {
		all = append(all, tick{a.at(v), short(v)})
	}
	if len(all) <= 2 { // few, so that there is room between them
		for v := a.low; v < a.top*0.999; v *= 10 {
			all = append(all, tick{a.at(2 * v), short(2 * v)}, tick{a.at(5 * v), short(5 * v)})
		}
	}
	return all
}

// short formats a number with few digits.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// sizeText formats a number of bytes.
func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "k"
	}
	return strconv.Itoa(n)
}

// put scales the curves.
func (p *plot) put(x, y axis, all []values) {
	p.Y = y.ticks()
	for i, c := range all {
		one := curve{Name: c.name, Class: "c" + strconv.Itoa(i%5)}
		for _, v := range c.all {
			one.Points = append(one.Points, point{x.at(v.x), y.at(v.y), v.text})
		}
		p.Curves = append(p.Curves, one)
	}
}

// horizontalAxis returns the horizontal axis for sizes or percentiles.
func horizontalAxis(low, top float64) axis {
	return axis{log: true, low: low, top: top, from: plotLeft, to: plotWidth - plotRight}
}
