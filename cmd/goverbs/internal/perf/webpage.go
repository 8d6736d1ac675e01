// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
)

//go:embed webpage.html
var webpage string

// page is what the template shows. It has numbers and texts alone; the template escapes them.
type webPage struct {
	*Report
	Facts    []fact
	Tiles    []tile
	Plots    []*plot
	Head     []string
	Body     [][]string
	Rises    []fact
	Measured bool
}

// fact is a name and what it is.
type fact struct{ Name, Value string }

// tile is a number that people look for first.
type tile struct{ Name, Value, Unit string }

// SaveWebPage writes a page with plots to a file. It needs nothing else to be shown: no network, no scripts.
func (r *Report) SaveWebPage(name string) error {
	t, err := template.New("page").Parse(webpage)
	if err != nil {
		return err
	}
	p := webPage{Report: r, Plots: r.plots(), Measured: len(r.Rows) > 0, Tiles: r.tiles(), Facts: r.facts()}
	p.Head, p.Body = r.table()
	for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
		p.Rises = append(p.Rises, fact{name, fmt.Sprintf("%+d", r.Counters[name])})
	}
	return save(name, func(w io.Writer) error { return t.Execute(w, p) })
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

// tiles are of the only size, or of what is best of all.
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
			{"99.9 %", short(best.P999), "µs"}, {"CPU each", short(best.CPU), "µs"}}
	} else {
		all = []tile{{"bandwidth", short(best.Gbits), "Gbit/s"}, {"messages", short(best.Mps * 1e6), "a second"},
			{"CPU each", short(best.CPU), "µs"}}
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
