// SPDX-License-Identifier: BSD-2-Clause

// Package mapped tracks the memory that package rdma has mapped outside Go's heap. Before such memory is unmapped, its
// users are asked to stop.
package mapped

import (
	"cmp"
	"errors"
	"slices"
	"sync"
)

// Memory is a mapping, from Add to Leave.
type Memory struct {
	start, end uintptr
	// +checklocks:mu
	leaving bool // guarded by mu
	// +checklocks:mu
	users map[*Use]struct{} // guarded by mu
}

// Use is the use of a part of a mapping, from Find to End.
type Use struct {
	of   *Memory
	stop func() error
}

var (
	mu sync.Mutex
	// +checklocks:mu
	all []*Memory // guarded by mu; in the order of their addresses, which do not overlap
)

// Add adds a new mapping.
func Add(start, length uintptr) *Memory {
	m := &Memory{start: start, end: start + length, users: map[*Use]struct{}{}}
	mu.Lock()
	defer mu.Unlock()
	i, _ := find(start)
	all = slices.Insert(all, i, m)
	return m
}

// find returns where a mapping that begins at start is or would be. The caller holds mu.
//
// +checklocks:mu
func find(start uintptr) (int, bool) {
	return slices.BinarySearchFunc(all, start, func(m *Memory, at uintptr) int { return cmp.Compare(m.start, at) })
}

// Find returns a use of memory that lies in one mapping, or nil. stop is called before the memory is unmapped, never
// concurrently; its error keeps the memory mapped.
func Find(start, length uintptr, stop func() error) *Use {
	mu.Lock()
	defer mu.Unlock()
	i, exact := find(start)
	if !exact {
		i--
	}
	if i < 0 || all[i].leaving || length > all[i].end-min(start, all[i].end) {
		return nil
	}
	u := &Use{of: all[i], stop: stop}
	u.of.users[u] = struct{}{}
	return u
}

// End ends the use: stop is not called afterwards, but it may be running.
func (u *Use) End() {
	mu.Lock()
	defer mu.Unlock()
	delete(u.of.users, u)
}

// Leave is called before the memory is unmapped. It asks all users to stop and returns their errors; then the memory
// stays mapped. A second Leave does nothing.
func (m *Memory) Leave() error {
	mu.Lock()
	m.leaving = true // no new users
	users := make([]*Use, 0, len(m.users))
	for u := range m.users {
		users = append(users, u)
	}
	mu.Unlock()
	var errs []error
	for _, u := range users {
		errs = append(errs, u.stop())
	}
	err := errors.Join(errs...)
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		m.leaving = false
		return err
	}
	if i, ok := find(m.start); ok && all[i] == m {
		all = slices.Delete(all, i, i+1)
	}
	return nil
}
