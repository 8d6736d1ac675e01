// SPDX-License-Identifier: BSD-2-Clause

// Package resource is what the queues and keys of a software device are, without the objects that programs know them
// by: the memory that a key lets in, windows, receives that were posted, and lists of tags. It knows no device and no
// queue pair.
// Whoever uses it holds the fabric's lock, except where a comment says otherwise.
package resource

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Domain is what protects memory: keys count for queues of the same one. Only its address matters.
type Domain struct{ _ byte }

// Memory is what a key lets in: a region, or a window into one.
type Memory struct {
	Key    uint32
	Domain *Domain // that protects
	Start  uint64
	Length uint64
	Base   uint64 // where Start is in the process; 0 for a null region, of zeros that nothing changes, or Everywhere
	Access ibv.AccessFlags
	Window *Window // nil for a region
	User   *User   // of a bound window of type 2
}

// Everywhere is the base, and the start, of a region on demand that has all memory of the process, also what is mapped
// later: what a message needs of it and is not there is found as memory is that has gone since. At 0 nobody has any.
const Everywhere = 1

// Keys are those of a device. A key is drawn until its place in the table is free, so that one look finds what it lets
// in. The upper 24 bits of no two keys are the same: owners of windows change the lower 8. None has upper bits of 0, so
// that key 0 never means anything.
type Keys struct {
	entries []*Memory // by the low bits of the upper 24; a power of two, and half of them are free
	used    int
	last    uint32 // key that was drawn
	hidden  bool   // keys are random, because strangers may try some
}

// Hide lets nobody guess keys, whatever other ones are known: those that are drawn from now on are random. The others
// tell that their places are not free, which leaves at least half of all keys.
func (k *Keys) Hide() { k.hidden = true }

// draw draws a key. Those that are not random come back late, so that the key of what is gone means nothing.
func (k *Keys) draw() uint32 {
	if !k.hidden {
		k.last += 1<<8 + 7
		return k.last
	}
	var b [4]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// Add gives memory a key.
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

// at is the place of a key. The table is not empty.
func (k *Keys) at(key uint32) **Memory { return &k.entries[key>>8&uint32(len(k.entries)-1)] }

// grow makes the table twice as large. What had different places has different ones again.
func (k *Keys) grow() {
	old := k.entries
	k.entries = make([]*Memory, max(2*len(old), 16))
	for _, m := range old {
		if m != nil {
			*k.at(m.Key) = m
		}
	}
}

// Remove takes memory out of the table.
func (k *Keys) Remove(m *Memory) {
	*k.at(m.Key) = nil
	k.used--
}

// Get returns what a key lets in, or nil.
func (k *Keys) Get(key uint32) *Memory {
	if n := uint32(len(k.entries)); n > 0 {
		if m := k.entries[key>>8&(n-1)]; m != nil && m.Key == key {
			return m
		}
	}
	return nil
}

// Local returns where an entry of the owner's own is: of a region of the domain.
func (k *Keys) Local(d *Domain, s ibv.SGE, access ibv.AccessFlags) (mem.Segment, bool) {
	m := k.Get(s.LKey)
	if m == nil || m.Domain != d || m.Window != nil {
		return mem.Segment{}, false
	}
	return m.Locate(s.Addr, uint64(s.Length), access)
}

// Locate returns where a range is that a key is used for, if the memory has all of it and allows it.
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

// IsFor reports whether a user may use the key: a bound window of type 2 is for one user alone.
func (m *Memory) IsFor(u *User) bool { return m.User == nil || m.User == u }
