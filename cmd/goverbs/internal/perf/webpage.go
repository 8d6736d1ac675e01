// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed webpage.css
var style string

// markup builds a page. Package html/template would add a megabyte to the command.
type markup struct{ strings.Builder }

// put appends a trusted format with untrusted arguments, which it escapes.
func (m *markup) put(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = html.EscapeString(s)
		}
	}
	fmt.Fprintf(m, format, args...)
}

// fact is a labeled value.
type fact struct{ Name, Value string }

// tile is a headline number.
type tile struct{ Name, Value, Unit string }

// SaveWebPage writes a self-contained page with plots, without scripts.
func (r *Report) SaveWebPage(name string) error {
	return save(name, func(w io.Writer) error {
		_, err := io.WriteString(w, r.webPage())
		return err
	})
}

func (r *Report) webPage() string {
	m := &markup{}
	m.put("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n" +
		`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">` + "\n" +
		`<meta name="viewport" content="width=device-width, initial-scale=1">` + "\n")
	m.put("<title>%s on %s</title>\n<style>\n", r.Test, r.Device)
	m.WriteString(style)
	m.put("</style>\n<main>\n<h1>%s</h1>\n<dl class=\"facts\">", r.Test)
	for _, f := range r.facts() {
		m.put("<div><dt>%s</dt><dd>%s</dd></div>\n", f.Name, f.Value)
	}
	m.put("</dl>\n")
	if len(r.Rows) == 0 {
		m.put("<p class=\"card\">The client has the results.</p>\n")
	}
	m.tiles(r.tiles())
	if r.NoTCP != "" {
		m.put("<p class=\"card soft\">%s</p>\n", r.NoTCP)
	}
	for _, p := range r.plots() {
		m.plot(p)
	}
	m.results(r)
	m.rises(r.Counters)
	m.put("<p class=\"soft\">goverbs perf; ping-pong times are half the round trip.</p>\n</main>\n</html>\n")
	return m.String()
}

func (m *markup) tiles(all []tile) {
	if len(all) == 0 {
		return
	}
	m.put("<div class=\"tiles\">\n")
	for _, t := range all {
		m.put("<div class=\"card\"><div class=\"soft\">%s</div><div class=\"tile\">%s <small>%s</small></div></div>\n",
			t.Name, t.Value, t.Unit)
	}
	m.put("</div>\n")
}

// results writes the table of results.
func (m *markup) results(r *Report) {
	if len(r.Rows) == 0 {
		return
	}
	m.put("<section class=\"card\"><h2>Results</h2><div class=\"wide\"><table>\n<tr>")
	head, rows := r.table()
	for _, cell := range head {
		m.put("<th>%s</th>", cell)
	}
	m.put("</tr>\n")
	for _, row := range rows {
		m.put("<tr>")
		for _, cell := range row {
			m.put("<td>%s</td>", cell)
		}
		m.put("</tr>\n")
	}
	m.put("</table></div></section>\n")
}

func (m *markup) rises(counters map[string]int64) {
	if len(counters) == 0 {
		return
	}
	m.put("<section class=\"card\"><h2>Device counters during the test</h2><div class=\"wide\"><table>\n")
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		m.put("<tr><td class=\"name\">%s</td><td>%+d</td></tr>\n", name, counters[name])
	}
	m.put("</table></div></section>\n")
}

func (r *Report) facts() []fact {
	role := "server"
	if r.Client {
		role = "client"
	}
	peer := "perftest " + r.PeerVersion
	if r.PeerIsOurs {
		peer = "goverbs"
	}
	return []fact{{"device", r.Device}, {"peer", r.Peer + " (" + peer + ")"}, {"this end", role},
		{"connection", r.Connection}, {"queue pairs", strconv.Itoa(r.QPs)}, {"MTU", strconv.Itoa(r.MTU)}}
}

// tiles returns the headline numbers of the only size, or the best of all sizes.
func (r *Report) tiles() (all []tile) {
	if len(r.Rows) == 0 {
		return nil
	}
	best := r.Rows[0]
	for _, row := range r.Rows {
		if row.Gbits > best.Gbits {
			best = row
		}
	}
	if r.Latency {
		all = []tile{{"median", short(best.Median), "µs"}, {"99 %", short(best.P99), "µs"},
			{"99.9 %", short(best.P999), "µs"}, {"CPU per message", short(best.CPU), "µs"}}
	} else {
		all = []tile{{"bandwidth", short(best.Gbits), "Gbit/s"}, {"messages", short(best.Mps * 1e6), "per second"},
			{"CPU per message", short(best.CPU), "µs"}}
	}
	if best.Ratio > 0 {
		all = append(all, tile{"of TCP's", "× " + short(best.Ratio), ""})
	}
	for i := range all {
		if len(r.Rows) > 1 {
			all[i].Name += ", " + sizeText(best.Size) + " B"
		}
	}
	return all
}
