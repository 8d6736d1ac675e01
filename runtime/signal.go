package runtime

import (
	"sync"
	"sync/atomic"
)

// Signal stands for a file descriptor where a software backend has none, since its system has no such files. Its number is below -1, and stands where
// C has the descriptor. It does not count: who is woken looks. All its methods may be called by any number of goroutines.
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

// NewSignal makes a signal with a number of its own.
func NewSignal() *Signal {
	s := &Signal{next: make(chan struct{})}
	signals.Lock()
	defer signals.Unlock()
	signals.last--
	s.number = signals.last
	signals.all[s.number] = s
	return s
}

// SignalOf is the signal of a number, or nil: it is a descriptor, or a signal's that was closed.
func SignalOf(number int32) *Signal {
	signals.Lock()
	defer signals.Unlock()
	return signals.all[number]
}

// Number is what stands where C has a descriptor.
func (s *Signal) Number() int32 { return s.number }

// Raise wakes all who wait.
func (s *Signal) Raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.next)
	s.next = make(chan struct{})
}

// Next is closed by the next Raise: who asks for it, looks, and then waits for it misses nothing.
func (s *Signal) Next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// SetNonblock is what O_NONBLOCK is to a descriptor: what reads does not wait.
func (s *Signal) SetNonblock() { s.nonblocks.Store(true) }

// Nonblocks says whether SetNonblock was called.
func (s *Signal) Nonblocks() bool { return s.nonblocks.Load() }

// Close forgets the number. Who has the signal keeps it.
func (s *Signal) Close() {
	signals.Lock()
	defer signals.Unlock()
	delete(signals.all, s.number)
}
