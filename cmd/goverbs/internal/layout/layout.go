// SPDX-License-Identifier: BSD-2-Clause

// Package layout shows the memory layout of C structures, as the Go packages define them for this platform.
package layout

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/generated/witness"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

// Structure is a struct or union.
type Structure struct {
	C       string   `json:"c"`
	Kind    string   `json:"kind"` // "struct", "union"
	Go      string   `json:"go"`   // "ibv.SendWR"
	Size    int64    `json:"size"`
	Align   int64    `json:"align"`
	Members []Member `json:"members,omitempty"`
}

// Member is a member, or padding without a name.
type Member struct {
	Name   string `json:"name"` // "wr.rdma.rkey"
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
}

// Structures are the selected structures, or all without their members.
type Structures []Structure

// Of returns structures by C or Go name, or without names all of them without members.
func Of(names []string) (Structures, error) {
	measured, err := verbsabi.Measure(witness.All()...)
	if err != nil {
		return nil, err
	}
	var all Structures
	for _, r := range measured.Records {
		all = append(all, Structure{C: r.C, Kind: r.Kind, Go: r.Go, Size: r.Size, Align: r.Align, Members: members(r)})
	}
	if len(names) == 0 {
		for i := range all {
			all[i].Members = nil
		}
		return all, nil
	}
	var chosen Structures
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Structure) bool { return s.is(name) })
		if i < 0 {
			return nil, missing(all, name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// is reports whether the structure has a name: ibv_send_wr, ibv.SendWR, SendWR.
func (s *Structure) is(name string) bool {
	_, short, _ := strings.Cut(s.Go, ".")
	return name == s.C || strings.EqualFold(name, s.Go) || strings.EqualFold(name, short)
}

// missing returns an error with similar names.
func missing(all Structures, name string) error {
	var like []string
	for _, s := range all {
		if strings.Contains(strings.ToLower(s.C+" "+s.Go), strings.ToLower(name)) {
			like = append(like, s.C)
		}
	}
	if len(like) == 0 {
		return fmt.Errorf("unknown structure %q; list all with goverbs layout", name)
	}
	return fmt.Errorf("unknown structure %q; similar names: %s", name, strings.Join(like[:min(len(like), 12)], ", "))
}

// members returns the members of a structure in memory order, with padding.
func members(r verbsabi.GoRecord) (all []Member) {
	fields := slices.Clone(r.Fields)
	slices.SortStableFunc(fields, func(a, b verbsabi.GoField) int { return cmp.Compare(a.Offset, b.Offset) })
	end := int64(0)
	pad := func(to int64) {
		if to > end && len(fields) > 0 {
			all = append(all, Member{Offset: end, Size: to - end})
		}
	}
	for _, f := range fields {
		pad(f.Offset)
		all = append(all, Member{f.Path, f.Offset, f.Size})
		end = max(end, f.Offset+f.Size)
	}
	pad(r.Size)
	return all
}

// WriteText writes a table of members for each structure, or a table of all structures.
func (all Structures) WriteText(w io.Writer) error {
	if len(all) > 0 && all[0].Members == nil {
		var rows [][]string
		for _, s := range all {
			rows = append(rows, []string{s.Kind + " " + s.C, s.Go, strconv.FormatInt(s.Size, 10),
				strconv.FormatInt(s.Align, 10)})
		}
		return page.Table(w, []string{"C", "GO", "SIZE", "ALIGN"}, rows)
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s: %s, %d bytes, aligned to %d\n", s.Kind, s.C, s.Go, s.Size, s.Align)
		var rows [][]string
		for _, m := range s.Members {
			rows = append(rows, []string{strconv.FormatInt(m.Offset, 10), strconv.FormatInt(m.Size, 10),
				cmp.Or(m.Name, "(padding)")})
		}
		if err := page.Table(w, []string{"OFFSET", "SIZE", "MEMBER"}, rows); err != nil {
			return err
		}
	}
	return nil
}
