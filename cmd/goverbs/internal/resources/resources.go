// SPDX-License-Identifier: BSD-2-Clause

// Package resources reads which objects the programs of a host have on RDMA devices, and what ports count: from the
// kernel's netlink, and from files below a root that tests replace.
package resources

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/generated/uapi"
)

// Kinds are what the kernel calls kinds of objects.
var Kinds = []string{"qp", "mr", "cq", "pd", "cm_id", "srq", "ctx"}

// Object is an object of a device.
type Object struct {
	Kind   string `json:"kind"`
	Device string `json:"device"`
	Port   uint32 `json:"port,omitempty"`
	Number uint32 `json:"number"`           // of its kind on its device: the number of a queue pair
	PID    uint32 `json:"pid,omitempty"`    // of a program, or 0
	Thread uint32 `json:"thread,omitempty"` // that created it, which the kernel and rdma(8) call its PID
	Owner  string `json:"owner"`            // name of the program, [name] of a module, or Elsewhere
	Type   string `json:"type,omitempty"`
	State  string `json:"state,omitempty"`
	Peer   uint32 `json:"peer_qpn,omitempty"`
	RQPSN  uint32 `json:"rq_psn,omitempty"`
	SQPSN  uint32 `json:"sq_psn,omitempty"`
	QPN    uint32 `json:"qpn,omitempty"`   // of a CM identifier
	Bytes  uint64 `json:"bytes,omitempty"` // of a memory region
	Room   uint32 `json:"cqe,omitempty"`   // for completions
	Users  uint64 `json:"users,omitempty"` // objects that use this one
	PD     uint32 `json:"pd,omitempty"`
	Ctx    uint32 `json:"ctx,omitempty"` // the open device that it was created on
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
}

// Elsewhere is the owner of what the kernel names no program of: of one in another PID namespace, as containers have,
// or of one whose thread has ended.
const Elsewhere = "(elsewhere)"

// Port is a port with what it counts.
type Port struct {
	Port     int               `json:"port"`
	State    string            `json:"state"`      // ACTIVE
	Physical string            `json:"phys_state"` // LinkUp
	Link     string            `json:"link_layer"`
	Rate     uint64            `json:"rate"`        // bits in a second, 0 if it is not known
	Counters map[string]uint64 `json:"counters"`    // of the port; port_rcv_data and port_xmit_data in units of 4 bytes
	Hardware map[string]uint64 `json:"hw_counters"` // of the driver
}

// Device is a device of the kernel.
type Device struct {
	Name     string            `json:"device"`
	Driver   string            `json:"driver,omitempty"`
	Firmware string            `json:"firmware,omitempty"`
	Board    string            `json:"board,omitempty"`
	GUID     string            `json:"node_guid,omitempty"`
	Ports    []Port            `json:"ports"`
	Objects  map[string]uint64 `json:"objects"`          // of all programs, by kind
	Hidden   map[string]uint64 `json:"hidden,omitempty"` // those of them that the kernel did not list
	index    uint32
	listed   map[string]uint64 // how many objects, of each kind that the kernel lists
}

// Snapshot is what there was at one time.
type Snapshot struct {
	Time     time.Time
	Devices  []Device
	Objects  []Object
	Bound    []Bound
	Software []Software
	Programs []Program
	Notes    []string // why something is missing
}

// Host is what a snapshot is read from.
type Host struct {
	FS  fs.FS // with sys and proc
	Ask Ask   // nil where there is no netlink

	Publishing Publishing // nil where no directory is named
}

// Ask sends a request to the kernel's RDMA netlink, about all devices, one, one of its ports, or with port 0 a kind of
// its objects, and gives what the messages of its answer hold.
type Ask func(command uapi.RDMANLDevCommand, of ...uint32) ([][]byte, error)

// Read takes a snapshot.
func (h *Host) Read() *Snapshot {
	s := &Snapshot{Time: time.Now(), Software: software(h.FS)}
	for _, d := range sysfs.Devices(h.FS) {
		text := func(name string) string { return printable(sysfs.Text(h.FS, d.Dir+name)) }
		one := Device{Name: d.Name, Driver: d.Driver, Firmware: text("/fw_ver"), Board: text("/board_id"),
			GUID: text("/node_guid"), Ports: []Port{}, Objects: map[string]uint64{}}
		for _, p := range d.Ports {
			one.Ports = append(one.Ports, port(h.FS, p))
		}
		s.Devices = append(s.Devices, one)
	}
	h.objects(s)
	s.owners(h.FS)
	s.whose()
	s.unseen()
	s.programs(h.FS, h.Publishing)
	return s
}

// unseen counts objects that are there and were not listed, and says why.
func (s *Snapshot) unseen() {
	var nameless []string
	elsewhere := false
	for _, o := range s.Objects {
		elsewhere = elsewhere || o.Owner == Elsewhere
		if pid := fmt.Sprint(o.PID); o.PID != 0 && o.Owner == "" && !slices.Contains(nameless, pid) {
			nameless = append(nameless, pid)
		}
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		for kind, listed := range d.listed {
			if d.Objects[kind] > listed {
				if d.Hidden == nil {
					d.Hidden = map[string]uint64{}
				}
				d.Hidden[kind] = d.Objects[kind] - listed
			}
		}
		elsewhere = elsewhere || len(d.Hidden) > 0
	}
	if elsewhere {
		s.note("some objects belong to programs that cannot be seen from here, those of other PID namespaces, or " +
			"were created by threads that have ended; in the host's namespace this sees programs in containers, too")
	}
	if len(nameless) > 0 {
		s.note("processes without a name here (%s) have ended since, or /proc hides them from this user: run this as "+
			"root", strings.Join(nameless, ", "))
	}
}

// device finds a device, or adds it: files may not have it.
func (s *Snapshot) device(name string) *Device {
	for i := range s.Devices {
		if s.Devices[i].Name == name {
			return &s.Devices[i]
		}
	}
	s.Devices = append(s.Devices, Device{Name: name, Ports: []Port{}, Objects: map[string]uint64{}})
	return &s.Devices[len(s.Devices)-1]
}

func (s *Snapshot) note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}
