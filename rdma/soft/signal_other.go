//go:build !linux

package soft

import (
	"time"

	"github.com/goverbs/goverbs/runtime"
)

// signal has no file here: who waits for an event has to call.
type signal struct {
	fd int32
	c  chan struct{}
}

func (s *signal) open() runtime.Errno {
	s.fd, s.c = -1, make(chan struct{})
	return 0
}

func (s *signal) close() {}

// raise wakes who sleeps.
func (s *signal) raise() {
	close(s.c)
	s.c = make(chan struct{})
}

func (s *signal) lower()       {}
func (s *signal) blocks() bool { return true }

// sleep waits for an event, without the fabric's lock. Where the clock is virtual it looks at it now and then.
func (s *signal) sleep(f *Fabric) {
	c := s.c
	var tick <-chan time.Time
	if f.clock.virtual {
		tick = time.After(time.Millisecond)
	}
	f.unlock()
	select {
	case <-c:
	case <-tick:
	}
	f.mu.Lock()
}
