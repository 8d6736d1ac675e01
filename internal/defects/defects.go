// SPDX-License-Identifier: BSD-2-Clause

// Package defects lists known defects of rdma-core's libraries by release. Package rdma works around some of them,
// goverbs doctor warns about those on the host, and docs/hardware.md contains the table.
package defects

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Defect is a defect of one rdma-core library: a provider, libibverbs or librdmacm.
type Defect struct {
	Library string   // name of the provider, "libibverbs" or "librdmacm"
	Name    string   // unique in the library
	Since   string   // first release with the defect
	Fixed   []string // first fixed release, followed by those of older stable branches; empty: not fixed
	Effect  string   // effect on a program that follows the man pages
	Remedy  string   // what this module does
	Test    string   // test command, or "documented"
}

//go:embed defects.txt
var text string

// all parses the list on first use rather than at program start.
var all = sync.OnceValue(func() []Defect { return parse(text) })

func parse(text string) (all []Defect) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, " | ")
		d := Defect{Library: f[0], Name: f[1], Since: f[2], Effect: f[4], Remedy: f[5], Test: f[6]}
		if f[3] != "none" {
			d.Fixed = strings.Fields(f[3])
		}
		all = append(all, d)
	}
	return all
}

// All returns the list.
func All() []Defect { return slices.Clone(all()) }

// Of reports whether a library has a defect in any release.
func Of(library, name string) bool {
	return slices.ContainsFunc(all(), func(d Defect) bool { return d.Library == library && d.Name == name })
}

// In reports whether an rdma-core release, such as "44.0", has the defect. A distribution may have fixed it earlier.
func (d *Defect) In(release string) bool {
	r := numbers(release)
	if slices.Compare(r, numbers(d.Since)) < 0 {
		return false
	}
	return !slices.ContainsFunc(d.Fixed, func(fixed string) bool {
		f := numbers(fixed)
		return slices.Compare(r, f) >= 0 && (fixed == d.Fixed[0] || r[0] == f[0])
	})
}

// numbers returns the numbers of a release: 44 and 12 for "44.12".
func numbers(release string) []int {
	major, minor, _ := strings.Cut(release, ".")
	x, _ := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	return []int{x, y}
}
