// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"cmp"
	"io/fs"
	"slices"

	"github.com/goverbs/goverbs/internal/stats"
)

// Program is what a program says that it counts: one that uses this library, and was started with GOVERBS_STATS.
type Program struct {
	PID   uint32 `json:"pid,omitempty"` // that the kernel says, or 0
	Owner string `json:"owner"`
	*stats.Report
}

// Publishing gives what programs say, and why one says nothing.
type Publishing func() ([]stats.Answer, []error)

// Publish has the host's programs asked that publish in a directory; "": none.
func (h *Host) Publish(dir string) {
	if dir != "" {
		h.Publishing = func() ([]stats.Answer, []error) { return stats.Ask(dir) }
	}
}

// programs asks programs that publish.
func (s *Snapshot) programs(f fs.FS, ask Publishing) {
	if ask == nil {
		return
	}
	all, problems := ask()
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
			s.note("%d more programs do not say what they count", len(problems)-most)
			break
		}
		s.note("a program does not say what it counts: %s", printable(problem.Error()))
	}
}
