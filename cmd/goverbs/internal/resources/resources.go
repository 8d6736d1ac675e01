// SPDX-License-Identifier: BSD-2-Clause

// Package resources reads RDMA objects of programs and port counters: from the kernel's RDMA netlink, and from files
// below a root that tests replace. [Host.Read] takes a [Snapshot].
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

// Kinds lists the kernel's names of object kinds.
var Kinds = []string{"qp", "mr", "cq", "pd", "cm_id", "srq", "ctx"}

// Object is an RDMA object.
type Object struct {
	Kind   string `json:"kind"`
	Device string `json:"device"`
	Port   uint32 `json:"port,omitempty"`
	Number uint32 `json:"number"`           // per kind and device, such as a QP number
	PID    uint32 `json:"pid,omitempty"`    // of the program, or 0
	Thread uint32 `json:"thread,omitempty"` // that created it; rdma(8) prints it as PID
	Owner  string `json:"owner"`            // name of the program, [name] of a module, or Elsewhere
	Type   string `json:"type,omitempty"`
	State  string `json:"state,omitempty"`
	Peer   uint32 `json:"peer_qpn,omitempty"`
	RQPSN  uint32 `json:"rq_psn,omitempty"`
	SQPSN  uint32 `json:"sq_psn,omitempty"`
	QPN    uint32 `json:"qpn,omitempty"`   // of a CM ID
	Bytes  uint64 `json:"bytes,omitempty"` // of a memory region
	Room   uint32 `json:"cqe,omitempty"`   // capacity of a completion queue
	Users  uint64 `json:"users,omitempty"` // number of objects that use this one
	PD     uint32 `json:"pd,omitempty"`
	Ctx    uint32 `json:"ctx,omitempty"` // its context (open device)
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
}

// Elsewhere is the owner if the kernel reports no program: it is in another PID namespace, such as a container's, or
// its thread has ended.
const Elsewhere = "(elsewhere)"

// Port is a port with its counters.
type Port struct {
	Port     int               `json:"port"`
	State    string            `json:"state"`      // ACTIVE
	Physical string            `json:"phys_state"` // LinkUp
	Link     string            `json:"link_layer"`
	Rate     uint64            `json:"rate"`        // bits per second; 0: unknown
	Counters map[string]uint64 `json:"counters"`    // of the port; port_rcv_data and port_xmit_data in units of 4 bytes
	Hardware map[string]uint64 `json:"hw_counters"` // of the driver
}

// Device is a kernel device.
type Device struct {
	Name     string            `json:"device"`
	Driver   string            `json:"driver,omitempty"`
	Firmware string            `json:"firmware,omitempty"`
	Board    string            `json:"board,omitempty"`
	GUID     string            `json:"node_guid,omitempty"`
	Ports    []Port            `json:"ports"`
	Objects  map[string]uint64 `json:"objects"`          // of all programs, by kind
	Hidden   map[string]uint64 `json:"hidden,omitempty"` // not listed by the kernel
	index    uint32
	listed   map[string]uint64 // number of listed objects by kind
}

// Snapshot is the state at one time.
type Snapshot struct {
	Time     time.Time
	Devices  []Device
	Objects  []Object
	Bound    []Bound
	Software []Software
	Programs []Program
	Notes    []string // reasons for missing data
}

// Host is the source of snapshots.
type Host struct {
	FS  fs.FS // contains sys and proc
	Ask Ask   // nil without netlink

	Publishing Publishing // nil without a directory
}

// Ask sends an RDMA netlink request about all devices, a device, a port, or with port 0 a kind of object, and returns
// the attributes of each message of the answer.
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
	s.findOwners()
	s.countHidden()
	s.programs(h.FS, h.Publishing)
	return s
}

// countHidden counts objects that were not listed and adds notes with the reasons.
func (s *Snapshot) countHidden() {
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
		s.note("some objects belong to programs in other PID namespaces or to threads that have ended; run in the " +
			"host's namespace to see programs in containers")
	}
	if len(nameless) > 0 {
		s.note("no name for some processes (%s): they have ended or /proc hides them; run as root",
			strings.Join(nameless, ", "))
	}
}

// device returns a device, adding it if there are no files of it.
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
