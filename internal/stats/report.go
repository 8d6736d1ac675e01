// SPDX-License-Identifier: BSD-2-Clause

// Package stats publishes the counters of a program to other programs on its host. It serves them at a Unix socket in
// the directory that the environment variable GOVERBS_STATS names: each connection receives one JSON document. Queues
// do no additional counting; a connection reads their positions. Without the variable, nothing is published.
package stats

import "time"

// Variable is the environment variable that names the directory. Programs with more rights than their user ignore it.
const Variable = "GOVERBS_STATS"

// Format is the version of the format.
const Format = 1

// Report holds the counters of a program.
type Report struct {
	Format   int       `json:"goverbs_stats"`
	Instance string    `json:"instance"` // distinguishes programs that used the same PID
	Began    time.Time `json:"began"`
	Devices  []Device  `json:"devices"`
	Cache    *Cache    `json:"registration_cache,omitempty"` // all caches of the program together
}

// Device holds the objects and counters of a program on a device.
type Device struct {
	Name     string            `json:"device"`
	Software bool              `json:"software,omitempty"` // in the memory of the program
	Objects  map[string]uint64 `json:"objects"`            // open objects, by kind
	MRBytes  uint64            `json:"mr_bytes"`           // of all memory regions
	Queues   map[string]Queue  `json:"queues"`             // by Send, Receive, SharedReceive; destroyed queues are included
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
	Posted      uint64 `json:"posted"`              // requests, since the program started
	Done        uint64 `json:"done"`                // requests that completed, or that RESET discarded
	Outstanding uint64 `json:"outstanding"`         // the other requests, of existing queues
	Slots       uint64 `json:"slots"`               // of existing queues
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
