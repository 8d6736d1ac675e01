// SPDX-License-Identifier: BSD-2-Clause

// Package resource implements the parts of a software device that its queue pairs use: the lock, clock and work list of
// a fabric, events, the memory that a key grants access to, windows, posted receives, completions, and tag lists. It
// does not depend on devices or queue pairs. Callers hold the fabric's lock, unless a comment states otherwise.
package resource

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Domain is a protection domain: keys are valid for queues of the same domain. Only its address matters.
type Domain struct{ _ byte }

// Memory is the memory that a key grants access to: a region, or a window into one.
type Memory struct {
	Key    uint32
	Domain *Domain // protection domain
	Start  uint64
	Length uint64
	Base   uint64 // address of Start in the process; 0 for a null region, which reads as zeros; or Everywhere
	Access ibv.AccessFlags
	Window *Window // nil for a region
	User   *User   // of a bound window of type 2
}

// Everywhere is the base, and the start, of an on-demand region that covers all memory of the process, including later
// mappings. Access to an unmapped part fails like access to memory that was unmapped after registration. No memory is
// at address 0.
const Everywhere = 1

// Keys is the key table of a device. Keys are drawn until one has a free place in the table, so a lookup is one load.
// The upper 24 bits of a key are unique and not 0, because owners of windows change the lower 8; key 0 is always
// invalid.
type Keys struct {
	entries []*Memory // by the low bits of the upper 24; a power of two, at least half of it free
	used    int
	last    uint32 // last key drawn
	hidden  bool   // keys are random, because other hosts may try some
}

// Hide makes new keys random, and so unpredictable from other keys. Existing keys reveal only that their places are
// taken, which leaves at least half of all keys.
func (k *Keys) Hide() { k.hidden = true }

// draw draws a key. Keys that are not random are reused late, so that the key of deregistered memory is invalid.
func (k *Keys) draw() uint32 {
	if !k.hidden {
		k.last += 1<<8 + 7
		return k.last
	}
	var b [4]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// Add assigns a key to memory.
func (k *Keys) Add(m *Memory) {
	if 2*k.used >= len(k.entries) {
		k.grow()
	}
	for m.Key = k.draw(); m.Key>>8 == 0 || *k.at(m.Key) != nil; {
		m.Key = k.draw()
	}
	*k.at(m.Key) = m
	k.used++
}

// at returns the place of a key in a table that is not empty.
func (k *Keys) at(key uint32) **Memory { return &k.entries[key>>8&uint32(len(k.entries)-1)] }

// grow makes the table twice as large. Entries in different places stay in different places.
func (k *Keys) grow() {
	old := k.entries
	k.entries = make([]*Memory, max(2*len(old), 16))
	for _, m := range old {
		if m != nil {
			*k.at(m.Key) = m
		}
	}
}

// Remove removes memory from the table.
func (k *Keys) Remove(m *Memory) {
	*k.at(m.Key) = nil
	k.used--
}

// Get returns the memory of a key, or nil.
func (k *Keys) Get(key uint32) *Memory {
	if i := uint64(key>>8) & uint64(len(k.entries)-1); i < uint64(len(k.entries)) {
		if m := k.entries[i]; m != nil && m.Key == key {
			return m
		}
	}
	return nil
}

// Local returns the memory of a scatter/gather entry in a region of the domain.
func (k *Keys) Local(d *Domain, s ibv.SGE, access ibv.AccessFlags) (mem.Segment, bool) {
	m := k.Get(s.LKey)
	if m == nil || m.Domain != d || m.Window != nil {
		return mem.Segment{}, false
	}
	return m.Locate(s.Addr, uint64(s.Length), access)
}

// Locate returns the memory of a range, if m contains it and allows the access.
func (m *Memory) Locate(address, length uint64, access ibv.AccessFlags) (mem.Segment, bool) {
	offset := address - m.Start
	if offset > m.Length || length > m.Length-offset || m.Access&access != access {
		return mem.Segment{}, false
	}
	if m.Base == 0 {
		return mem.Segment{Length: length}, true
	}
	return mem.Segment{Base: m.Base + offset, Length: length}, true
}

// IsFor reports whether a user may use the key. A bound window of type 2 has only one user.
func (m *Memory) IsFor(u *User) bool { return m.User == nil || m.User == u }
