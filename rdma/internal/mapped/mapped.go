// SPDX-License-Identifier: BSD-2-Clause

// Package mapped tracks memory that package rdma has mapped outside Go's heap. Before such memory is unmapped, its
// users are notified.
package mapped

import (
	"cmp"
	"errors"
	"slices"
	"sync"
)

// Memory is mapped memory, from Add to Leave.
type Memory struct {
	start, end uintptr
	// +checklocks:mu
	leaving bool // guarded by mu
	// +checklocks:mu
	users map[*Use]struct{} // guarded by mu
}

// Use is the use of part of a Memory, from Find to End.
type Use struct {
	of   *Memory
	stop func() error
}

var (
	mu sync.Mutex
	// +checklocks:mu
	all []*Memory // guarded by mu; sorted by address, without overlap
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

// find returns the index at which a mapping that begins at start is or would be inserted. The caller holds mu.
//
// +checklocks:mu
func find(start uintptr) (int, bool) {
	return slices.BinarySearchFunc(all, start, func(m *Memory, at uintptr) int { return cmp.Compare(m.start, at) })
}

// Find returns a Use of the range if it lies in one mapping, and nil otherwise. stop is called before the memory is
// unmapped, never concurrently. If it returns an error, the memory stays mapped.
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

// End ends the use. stop is not called afterwards, but a call may be in progress.
func (u *Use) End() {
	mu.Lock()
	defer mu.Unlock()
	delete(u.of.users, u)
}

// Leave is called before the memory is unmapped. It calls the stop functions of all uses. If one returns an error,
// Leave returns it and the memory stays mapped. A second Leave does nothing.
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
