// SPDX-License-Identifier: BSD-2-Clause

// Package wakeup replaces event descriptors of software backends on systems that have no such descriptors.
package wakeup

import (
	"sync"
	"sync/atomic"
)

// Signal replaces an event descriptor. Its number is less than -1 and is stored where C stores the descriptor. A Signal
// does not count: a woken goroutine must check for an event. Its methods are safe for concurrent use.
type Signal struct {
	number    int32
	nonblocks atomic.Bool

	mu   sync.Mutex
	next chan struct{} // closed by Raise
}

var signals = struct {
	sync.Mutex
	last int32
	all  map[int32]*Signal
}{last: -1, all: map[int32]*Signal{}}

// New creates a signal with a unique number.
func New() *Signal {
	s := &Signal{next: make(chan struct{})}
	signals.Lock()
	defer signals.Unlock()
	signals.last--
	s.number = signals.last
	signals.all[s.number] = s
	return s
}

// Of returns the signal with a number, or nil for a descriptor or a closed signal.
func Of(number int32) *Signal {
	signals.Lock()
	defer signals.Unlock()
	return signals.all[number]
}

// Number returns the number that is stored where C stores a descriptor.
func (s *Signal) Number() int32 { return s.number }

// Raise wakes all waiting goroutines.
func (s *Signal) Raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.next)
	s.next = make(chan struct{})
}

// Next returns a channel that the next Raise closes. To miss no event, get the channel, check for an event, and then
// wait.
func (s *Signal) Next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// SetNonblock corresponds to O_NONBLOCK of a descriptor: later reads do not wait.
func (s *Signal) SetNonblock() { s.nonblocks.Store(true) }

// Nonblocks reports whether SetNonblock was called.
func (s *Signal) Nonblocks() bool { return s.nonblocks.Load() }

// Close removes the number. Goroutines that have the Signal may continue to use it.
func (s *Signal) Close() {
	signals.Lock()
	defer signals.Unlock()
	delete(signals.all, s.number)
}
