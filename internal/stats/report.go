// SPDX-License-Identifier: BSD-2-Clause

// Package stats publishes what a program counts for other programs of its host: at a Unix socket in the directory that
// the environment variable GOVERBS_STATS names, which answers each connection with one JSON document and closes it.
// Nothing is counted for it where queues work: a connection has the positions of the queues read. Without the variable
// there is nothing.
package stats

import "time"

// Variable is the environment variable that names the directory. Programs with more rights than their user ignore it.
const Variable = "GOVERBS_STATS"

// Format is the version of the format.
const Format = 1

// Report holds the counters of a program.
type Report struct {
	Format   int       `json:"goverbs_stats"`
	Instance string    `json:"instance"` // of the program: another one with its PID has another
	Began    time.Time `json:"began"`
	Devices  []Device  `json:"devices"`
	Cache    *Cache    `json:"registration_cache,omitempty"` // all caches of the program together
}

// Device holds the objects and counters of a program on a device.
type Device struct {
	Name     string            `json:"device"`
	Software bool              `json:"software,omitempty"` // it is in the program's own memory
	Objects  map[string]uint64 `json:"objects"`            // that are open, by kind
	MRBytes  uint64            `json:"mr_bytes"`           // of all memory regions
	Queues   map[string]Queue  `json:"queues"`             // by Send, Receive, SharedReceive: of all that there were
	Hardware map[string]uint64 `json:"hw_counters,omitempty"`
}

// Kinds of queues.
const (
	Send          = "send"
	Receive       = "receive"
	SharedReceive = "shared_receive"
)

// Queue is the sum of queues of one kind.
type Queue struct {
	Posted      uint64 `json:"posted"`              // requests, since the program began
	Done        uint64 `json:"done"`                // those of them that have completed, or that RESET forgot
	Outstanding uint64 `json:"outstanding"`         // those that have not, in queues that are there now
	Slots       uint64 `json:"slots"`               // that these queues have
	Queues      uint64 `json:"queues"`              // how many these are
	Uncounted   uint64 `json:"uncounted,omitempty"` // and how many are there whose requests nobody counts
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

// Cache holds the counters of registration caches; package rdma/registration defines them.
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
