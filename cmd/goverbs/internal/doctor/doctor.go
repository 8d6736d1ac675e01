// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
)

// Finding is a cause found on a host.
type Finding struct {
	Cause string `json:"cause"`
	Level Level  `json:"level"`
	Where string `json:"where"`
	What  string `json:"what"`
	Fix   string `json:"fix"`
	Link  string `json:"link"`
}

// pageLink is the page that explains causes; topics are its anchors.
const pageLink = "https://github.com/goverbs/goverbs/blob/main/docs/doctor.md#"

// found returns a finding. Facts are inserted into the fix.
func found(id, where, detail string, facts ...any) Finding {
	c := causeOf(id)
	text := c.about
	if detail != "" {
		text += ": " + detail
	}
	topic, _, _ := strings.Cut(id, ".")
	return Finding{id, c.level, where, text, fmt.Sprintf(c.fix, facts...), pageLink + topic}
}

// check looks for one group of causes.
type check struct {
	name   string
	run    func(h *Host) []Finding
	always bool // also on a host without kernel devices
}

// checks lists all checks of a host.
var checks = []check{
	{"devices", (*Host).checkDevices, true}, {"modules", (*Host).checkModules, false},
	{"nodes", (*Host).checkNodes, false}, {"libraries", (*Host).checkLibraries, true},
	{"limits", (*Host).checkLimits, false}, {"cgroup", (*Host).checkCgroup, true},
	{"env", (*Host).checkEnvironment, true}, {"namespace", (*Host).checkNamespace, false},
	{"link", (*Host).checkLink, false}, {"gids", (*Host).checkGIDs, false}, {"roce", (*Host).checkRoCE, false},
	{"mtu", (*Host).checkMTU, false}, {"pkeys", (*Host).checkPKeys, false}, {"ipoib", (*Host).checkIPoIB, false},
	{"network", (*Host).checkNetwork, false}, {"counters", (*Host).checkCounters, false},
	{"pcie", (*Host).checkPCIe, false}, {"numa", (*Host).checkNUMA, false}, {"power", (*Host).checkPower, false},
	{"clock", (*Host).checkClock, false}, {"hugepages", (*Host).checkHugePages, false},
	{"gpu", (*Host).checkGPU, false}, {"kernel", (*Host).checkKernel, false},
}

// Report lists the findings of an examination.
type Report struct {
	Devices  []string  `json:"devices"`
	Library  string    `json:"library"` // that opens kernel devices: "rdma-core 44.0" or "native"
	Checks   []string  `json:"checks"`
	Skipped  []string  `json:"skipped,omitempty"` // checks that need a kernel device, if there is none
	Findings []Finding `json:"findings"`
	Pair     *Pair     `json:"pair,omitempty"`
}

// Examine runs all checks that apply to the host.
func Examine(h *Host) *Report {
	r := &Report{Devices: []string{}, Library: h.Library, Findings: []Finding{}}
	for _, d := range h.all() {
		r.Devices = append(r.Devices, d.Name)
	}
	for _, c := range checks {
		if !c.always && len(r.Devices) == 0 {
			r.Skipped = append(r.Skipped, c.name)
			continue
		}
		r.Checks = append(r.Checks, c.name)
		r.Findings = append(r.Findings, c.run(h)...)
	}
	return r
}

// Problems returns the number of findings that are problems.
func (r *Report) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Level == Problem {
			n++
		}
	}
	return n
}

// WriteText writes a line of checks that passed, and each finding with its fix.
func (r *Report) WriteText(w io.Writer) error {
	if r.Pair != nil {
		r.Pair.write(w)
	}
	devices := strings.Join(r.Devices, " ")
	if devices == "" {
		devices = "no kernel devices"
	}
	fmt.Fprintf(w, "devices  %s\n", devices)
	if r.Library != "" {
		fmt.Fprintf(w, "library  %s\n", r.Library)
	}
	passed := slices.DeleteFunc(slices.Clone(r.Checks), func(name string) bool {
		return slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.HasPrefix(f.Cause, name+".") })
	})
	if err := page.Paragraph(w, "ok", strings.Join(passed, ", "), 9); err != nil {
		return err
	}
	if len(r.Skipped) > 0 {
		if err := page.Paragraph(w, "skipped", "no device: "+strings.Join(r.Skipped, ", "), 9); err != nil {
			return err
		}
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "\n%s  %s, %s\n", f.Level, f.Cause, f.Where)
		for _, part := range [][2]string{{"what", f.What}, {"fix", f.Fix}, {"more", f.Link}} {
			if err := page.Paragraph(w, "  "+part[0], part[1], 9); err != nil {
				return err
			}
		}
	}
	return nil
}
