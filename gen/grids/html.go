// SPDX-License-Identifier: BSD-2-Clause

package grids

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/goverbs/goverbs/gen/rules"
)

//go:embed tables.css
var style string

// page builds the text of a page. Package html/template would add a megabyte to the command.
type page struct{ strings.Builder }

// put appends a trusted format with arguments, which it escapes.
func (p *page) put(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = html.EscapeString(s)
		}
	}
	fmt.Fprintf(p, format, args...)
}

// HTML writes all tables as one self-contained page.
func HTML(w io.Writer, grids []*rules.Grid) error {
	p := &page{}
	p.put("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width\">\n<title>Tables of the verbs")
	if len(grids) > 0 {
		p.put(", rdma-core %s", grids[0].Release)
	}
	p.put("</title>\n<style>\n")
	p.WriteString(style)
	p.put("</style>\n<h1>Tables of the verbs</h1>\n" +
		"<p>Every cell is answered; the number leads to the reason and its source.\n<b>X</b> yes, <b>.</b> no, " +
		"<b>c</b> needs a capability, <b>-</b> with another function, <b>?</b> unspecified.</p>\n<ul>")
	for _, g := range grids {
		p.put("\n<li><a href=\"#%s\">%s</a>", g.Name, g.Question)
	}
	p.put("\n</ul>")
	for _, g := range grids {
		p.grid(viewGrid(g, true))
	}
	p.put("\n</html>\n")
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *page) grid(g *gridView) {
	p.put("\n<h2 id=\"%s\">%s</h2>\n<p><code>%s</code>", g.Name, g.Question, g.Name)
	if len(g.Pages) > 0 {
		p.put(": ")
	} else {
		p.put(", ")
	}
	p.put("%s</p>", g.Source)
	for _, m := range g.Matrices {
		p.put("\n")
		if m.Title != "" {
			p.put("<h3>%s</h3>", m.Title)
		}
		p.put("\n<div class=\"scroll\"><table>\n<thead><tr><th>%s", m.Corner)
		for _, c := range m.Columns {
			p.put("<th>%s", c)
		}
		p.put("</thead>\n<tbody>")
		for _, row := range m.Rows {
			p.put("\n<tr><th>%s", row.Name)
			for _, c := range row.Cells {
				p.put(`<td class="%s" title="%s">%s`, c.Class, c.Tip, c.Mark)
				if c.Note != 0 {
					p.put(`<sup><a href="#%s-%d">%d</a></sup>`, g.Name, c.Note, c.Note)
				}
			}
		}
		p.put("\n</tbody>\n</table></div>")
	}
	if v := g.Values; v != nil {
		p.put("\n<div class=\"scroll\"><table>\n<thead><tr>")
		for _, c := range v.Columns {
			p.put("<th>%s", c)
		}
		p.put("</thead>\n<tbody>")
		for _, row := range v.Rows {
			p.put("\n<tr>")
			for _, c := range row {
				p.put(`<td class="v">%s`, c)
			}
		}
		p.put("\n</tbody>\n</table></div>")
	}
	p.put("\n<ol>")
	for i, note := range g.Notes {
		p.put("\n<li id=\"%s-%d\">%s", g.Name, i+1, note)
	}
	p.put("\n</ol>")
}
