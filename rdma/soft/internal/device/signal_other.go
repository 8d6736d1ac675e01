//go:build !linux || goverbs_nofd

package device

import (
	"time"

	"github.com/goverbs/goverbs/runtime"
)

// signal has no file here: Go's goroutines wait for it, and nobody else can.
type signal struct {
	fd int32 // its number
	s  *runtime.Signal
}

func (s *signal) open() runtime.Errno {
	s.s = runtime.NewSignal()
	s.fd = s.s.Number()
	return 0
}

// descriptor is the number that stands for a file.
func (s *signal) descriptor() int32 { return s.fd }

func (s *signal) close() { s.s.Close() }

func (s *signal) raise() { s.s.Raise() }

func (s *signal) lower() {} // it does not count

func (s *signal) blocks() bool { return !s.s.Nonblocks() }

// sleep waits for an event, without the fabric's lock. Where the clock is virtual it looks at it now and then.
func (s *signal) sleep(f *Fabric) {
	next := s.s.Next()
	var tick <-chan time.Time
	if f.clock.virtual {
		tick = time.After(time.Millisecond)
	}
	f.unlock()
	select {
	case <-next:
	case <-tick:
	}
	f.mu.Lock()
}
