// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"strings"
)

// colors maps the implementations to their colors in the chart.
var colors = map[string]string{
	implC: "#5f6b7a", implDefault: "#26a69a", implChecked: "#80cbc4", implCgo: "#e0913a",
	implPurego: "#d4bc8b",
}

// panels of the chart, each with its own scale.
var panels = []struct {
	title string
	cell  cell
}{
	{"one call of post_send", plain(caseCall, 1)},
	{"build 16 work requests and post them", plain(caseBuild, 16)},
	{"patch 16 work requests and post them", plain(casePatch, 16)},
	{"poll 16 completions and read them", plain(casePoll, 16)},
}

// chart draws bars of the minima, in a panel for each of four plain cells, with a line for the minimum of C.
func chart(w io.Writer, all results) error {
	const (
		width, panelWidth  = 860, 430
		left, barRoom      = 146, 184
		top, bar, gap      = 56, 15, 6
		panelHeight        = 42 + 5*(bar+gap) + 14
		height             = top + 2*panelHeight + 4
		font               = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
		ink, faint, ground = "#24292f", "#6e7781", "#ffffff"
	)
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="%s" font-size="12">`+"\n",
		width, height, width, height, font)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="%s"/>`+"\n", width, height, ground)
	fmt.Fprintf(&b,
		`<text x="20" y="27" font-size="15" font-weight="600" fill="%s">`+
			`Go against C: nanoseconds, less is better</text>`+"\n",
		ink)
	fmt.Fprintf(&b,
		`<text x="20" y="44" fill="%s">`+
			`minimum of interleaved samples, on a stub that returns immediately; `+
			`× is the ratio to C, the dashed line</text>`+"\n",
		faint)
	for i, p := range panels {
		x, y := i%2*panelWidth, top+i/2*panelHeight
		most := 0.0
		for _, impl := range implementations {
			most = max(most, all[p.cell][impl.name].min)
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="600" fill="%s">%s</text>`+"\n", x+20, y+24, ink, p.title)
		for k, impl := range implementations {
			ns, row := all[p.cell][impl.name].min, y+36+k*(bar+gap)
			long := max(1, ns/most*barRoom)
			label := fmt.Sprintf("%.1f", ns)
			if impl.name != implC {
				label += fmt.Sprintf("  %.2f×", all.ratio(p.cell, impl.name))
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>`, x+left-8, row+bar-3, ink,
				impl.name)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, x+left, row, long, bar,
				colors[impl.name])
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="%s" xml:space="preserve">%s</text>`+"\n",
				float64(x+left)+long+6, row+bar-3, faint, label)
		}
		line := float64(x+left) + all[p.cell][implC].min/most*barRoom
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-dasharray="3 3"/>`+"\n", line,
			line, y+33, y+36+6*(bar+gap), faint)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
