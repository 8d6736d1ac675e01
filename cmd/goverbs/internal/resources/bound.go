// SPDX-License-Identifier: BSD-2-Clause

package resources

// Bound is a set of hardware counters that queue pairs are bound to, manually or automatically per program (rdma
// statistic qp). Few drivers support them.
type Bound struct {
	Device   string            `json:"device"`
	Port     uint32            `json:"port"`
	ID       uint32            `json:"id"`
	Mode     string            `json:"mode,omitempty"` // auto, manual
	QPs      []uint32          `json:"qps"`            // QP numbers
	PID      uint32            `json:"pid,omitempty"`  // of their program, or 0
	Owner    string            `json:"owner"`          // program name, or Several
	Hardware map[string]uint64 `json:"hw_counters"`
}

// Several is the owner if the queue pairs belong to several programs.
const Several = "(several)"

// findOwners finds the owner of the queue pairs of a counter.
func (s *Snapshot) findOwners() {
	owners := map[objectKey]*Object{}
	for i := range s.Objects {
		if o := &s.Objects[i]; o.Kind == "qp" {
			owners[objectKey{o.Device, o.Number}] = o
		}
	}
	for i := range s.Bound {
		b := &s.Bound[i]
		for n, number := range b.QPs {
			pid, owner := uint32(0), Elsewhere
			if o := owners[objectKey{b.Device, number}]; o != nil {
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
