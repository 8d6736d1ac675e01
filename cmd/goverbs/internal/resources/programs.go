// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"cmp"
	"io/fs"
	"slices"

	"github.com/goverbs/goverbs/internal/stats"
)

// Program has the statistics that a goverbs program publishes if started with GOVERBS_STATS.
type Program struct {
	PID   uint32 `json:"pid,omitempty"` // from the kernel, or 0
	Owner string `json:"owner"`
	*stats.Report
}

// Publishing returns the statistics of programs, and the errors of programs without them.
type Publishing func() ([]stats.Answer, []error)

// Publish sets the directory in which programs publish statistics. If it is empty, there are none.
func (h *Host) Publish(dir string) {
	if dir != "" {
		h.Publishing = func() ([]stats.Answer, []error) { return stats.Ask(dir) }
	}
}

// programs reads the published statistics.
func (s *Snapshot) programs(f fs.FS, publishing Publishing) {
	if publishing == nil {
		return
	}
	all, problems := publishing()
	for _, a := range all {
		p := Program{PID: a.PID, Owner: Elsewhere, Report: a.Report}
		if a.PID != 0 {
			p.Owner = command(f, a.PID)
		}
		s.Programs = append(s.Programs, p)
	}
	slices.SortFunc(s.Programs, func(a, b Program) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Instance, b.Instance))
	})
	for i := range s.Programs {
		slices.SortFunc(s.Programs[i].Devices, func(a, b stats.Device) int { return cmp.Compare(a.Name, b.Name) })
	}
	const most = 5
	for i, problem := range problems {
		if i == most {
			s.note("no statistics from %d more programs", len(problems)-most)
			break
		}
		s.note("no statistics from a program: %s", printable(problem.Error()))
	}
}
