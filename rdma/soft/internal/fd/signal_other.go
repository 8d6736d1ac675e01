// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || goverbs_nofd

package fd

import (
	"time"

	"github.com/goverbs/goverbs/rdma/internal/wakeup"
	"github.com/goverbs/goverbs/runtime"
)

// Signal has no file on this system, so only goroutines of this process can wait for it.
type Signal struct {
	fd int32 // stands for a descriptor
	s  *wakeup.Signal
}

func (s *Signal) Open() runtime.Errno {
	s.s = wakeup.New()
	s.fd = s.s.Number()
	return 0
}

// Descriptor returns the number that stands for a descriptor.
func (s *Signal) Descriptor() int32 { return s.fd }

func (s *Signal) Close() { s.s.Close() }

func (s *Signal) Raise() { s.s.Raise() }

func (s *Signal) Lower() {}

func (s *Signal) Blocks() bool { return !s.s.Nonblocks() }

// Sleep waits for an event without the caller's lock. With looks, it returns after at most a millisecond. Signals do
// not interrupt it.
func (s *Signal) Sleep(unlock, lock func(), looks bool) runtime.Errno {
	next := s.s.Next()
	var tick <-chan time.Time
	if looks {
		tick = time.After(time.Millisecond)
	}
	unlock()
	select {
	case <-next:
	case <-tick:
	}
	lock()
	return 0
}
