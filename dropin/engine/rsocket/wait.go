// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/nap"
)

// waiters are the waiters of a socket, with the events that each waits for.
type waiters struct {
	mu  sync.Mutex
	all map[*nap.Waiter]int16
}

func (s *waiters) add(w *nap.Waiter, events int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*nap.Waiter]int16{}
	}
	s.all[w] |= events
}

func (s *waiters) remove(w *nap.Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
}

// wake wakes the callers that wait for one of these events.
func (s *waiters) wake(events int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, wanted := range s.all {
		if (wanted|unix.POLLERR|unix.POLLHUP)&events != 0 {
			w.Wake()
		}
	}
}
