// SPDX-License-Identifier: BSD-2-Clause

package perf

// plot writes a plot as SVG.
func (m *markup) plot(p *plot) {
	m.put("<section class=\"card\">\n<h2>%s</h2>\n", p.Title)
	if len(p.Curves) > 1 {
		m.put("<div class=\"legend\">")
		for _, c := range p.Curves {
			m.put("<span class=\"%s\"><i></i>%s</span>", c.Class, c.Name)
		}
		m.put("</div>\n")
	}
	m.put("<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", plotWidth, plotHeight, p.Title)
	m.grid(p)
	for _, b := range p.Bars {
		m.put(`<rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5"><title>%s</title></rect>`+"\n",
			b.X, b.Y, b.Width, b.Height, b.Text)
	}
	for _, c := range p.Curves {
		m.curve(c)
	}
	m.put("</svg>\n")
	if p.Note != "" {
		m.put("<div class=\"soft note\">%s</div>\n", p.Note)
	}
	m.put("</section>\n")
}

// grid draws grid lines at round values, with labels.
func (m *markup) grid(p *plot) {
	const right, bottom = plotWidth - plotRight, plotHeight - plotBottom
	for _, t := range p.Y {
		m.put(`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotLeft, right, t.At, t.At)
		m.put(`<text x="%d" y="%.1f" dy="4" text-anchor="end">%s</text>`+"\n", plotLeft-8, t.At, t.Text)
	}
	for _, t := range p.X {
		m.put(`<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, t.At, t.At, plotTop, bottom)
		m.put(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", t.At, bottom+18, t.Text)
	}
	m.put(`<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+right)/2, plotHeight-8, p.XName)
	m.put(`<text transform="translate(14 %d) rotate(-90)" text-anchor="end">%s</text>`+"\n", plotTop, p.YName)
}

// curve draws a line with tooltips.
func (m *markup) curve(c curve) {
	m.put(`<g class="%s"><path class="curve" d="%s"/>`+"\n", c.Class, c.path())
	for _, p := range c.Points {
		if c.dots() {
			m.put(`<circle class="dot" cx="%.1f" cy="%.1f" r="3"/>`, p.X, p.Y)
		}
		m.put(`<circle class="hit" cx="%.1f" cy="%.1f" r="9"><title>%s</title></circle>`+"\n", p.X, p.Y, p.Text)
	}
	m.put("</g>\n")
}
