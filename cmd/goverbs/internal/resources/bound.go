// SPDX-License-Identifier: BSD-2-Clause

package resources

// Bound is a set of counters of the hardware that queue pairs are bound to: by hand, or each program's by themselves
// (rdma statistic qp). Few drivers have them.
type Bound struct {
	Device   string            `json:"device"`
	Port     uint32            `json:"port"`
	ID       uint32            `json:"id"`
	Mode     string            `json:"mode,omitempty"` // auto, manual
	QPs      []uint32          `json:"qps"`            // their numbers
	PID      uint32            `json:"pid,omitempty"`  // of the program whose they are, or 0
	Owner    string            `json:"owner"`          // its name, or Several
	Hardware map[string]uint64 `json:"hw_counters"`
}

// Several is the owner of counters that queue pairs of several programs are bound to.
const Several = "(several)"

// whose finds out whose queue pairs counters count.
func (s *Snapshot) whose() {
	owners := map[thing]*Object{}
	for i := range s.Objects {
		if o := &s.Objects[i]; o.Kind == "qp" {
			owners[thing{o.Device, o.Number}] = o
		}
	}
	for i := range s.Bound {
		b := &s.Bound[i]
		for n, number := range b.QPs {
			pid, owner := uint32(0), Elsewhere
			if o := owners[thing{b.Device, number}]; o != nil {
				pid, owner = o.PID, o.Owner
			}
			if n == 0 {
				b.PID, b.Owner = pid, owner
			} else if b.PID != pid || b.Owner != owner {
				b.PID, b.Owner = 0, Several
			}
		}
	}
}
