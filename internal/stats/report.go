// SPDX-License-Identifier: BSD-2-Clause

// Package stats publishes a program's counters to other programs on the host. It serves them on a Unix socket in the
// directory named by the environment variable GOVERBS_STATS; each connection receives one JSON document. This adds no
// work to queues, whose counters are read when a connection arrives. Without the variable, nothing is published.
package stats

import "time"

// Variable is the environment variable that names the directory. Programs with elevated privileges ignore it.
const Variable = "GOVERBS_STATS"

// Format is the version of the report format.
const Format = 1

// Report contains a program's counters.
type Report struct {
	Format   int       `json:"goverbs_stats"`
	Instance string    `json:"instance"` // distinguishes programs that had the same PID
	Began    time.Time `json:"began"`
	Devices  []Device  `json:"devices"`
	Cache    *Cache    `json:"registration_cache,omitempty"` // total of the program's caches
}

// Device contains a program's objects and counters on a device.
type Device struct {
	Name     string            `json:"device"`
	Software bool              `json:"software,omitempty"` // software device in the program
	Objects  map[string]uint64 `json:"objects"`            // number of open objects by kind
	MRBytes  uint64            `json:"mr_bytes"`           // size of all memory regions
	Queues   map[string]Queue  `json:"queues"`             // by kind: Send, Receive, SharedReceive; includes destroyed queues
	Hardware map[string]uint64 `json:"hw_counters,omitempty"`
}

// Kinds of queues.
const (
	Send          = "send"
	Receive       = "receive"
	SharedReceive = "shared_receive"
)

// Queue is the total of all queues of a kind.
type Queue struct {
	Posted      uint64 `json:"posted"`              // requests posted since the program started
	Done        uint64 `json:"done"`                // requests completed, or discarded by RESET
	Outstanding uint64 `json:"outstanding"`         // other requests on existing queues
	Slots       uint64 `json:"slots"`               // capacity of existing queues
	Queues      uint64 `json:"queues"`              // number of existing queues
	Uncounted   uint64 `json:"uncounted,omitempty"` // existing queues whose requests are not counted
}

// Add adds the counters of another queue.
func (q *Queue) Add(o Queue) {
	q.Posted += o.Posted
	q.Done += o.Done
	q.Outstanding += o.Outstanding
	q.Slots += o.Slots
	q.Queues += o.Queues
	q.Uncounted += o.Uncounted
}

// Cache contains the counters of registration caches, as defined by package rdma/registration.
type Cache struct {
	Hits     uint64 `json:"hits"`
	Misses   uint64 `json:"misses"`
	Uncached uint64 `json:"uncached"`
	Evicted  uint64 `json:"evicted"`
	Unmapped uint64 `json:"unmapped"`
	Leases   uint64 `json:"leases"`
	Regions  uint64 `json:"regions"`
	Bytes    uint64 `json:"bytes"`
}
