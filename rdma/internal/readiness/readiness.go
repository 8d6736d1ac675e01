// Package readiness waits for descriptors of C's on Go's netpoller, and for what a software device has in their place: no thread is blocked.
package readiness

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/runtime"
)

// FD is a duplicate of a descriptor of C's, so that Go and C each close their own. One goroutine waits at a time: who holds Turn.
type FD struct {
	Turn chan struct{} // holds a token while somebody waits

	file *os.File
	raw  syscall.RawConn
	try  func() bool // of who waits
	read func(fd uintptr) bool
	once sync.Once

	signal *runtime.Signal // in place of a file; or nil
	poked  chan struct{}   // holds a token when stop is to be asked
	closed chan struct{}
}

// New makes the descriptor not block, for C too, and duplicates it.
func New(fd int32, name string) (*FD, error) {
	if s := runtime.SignalOf(fd); s != nil {
		s.SetNonblock()
		return &FD{signal: s, Turn: make(chan struct{}, 1), poked: make(chan struct{}, 1), closed: make(chan struct{})}, nil
	}
	own, err := duplicate(int(fd))
	if err != nil {
		return nil, err
	}
	r := &FD{file: os.NewFile(uintptr(own), name), Turn: make(chan struct{}, 1)}
	if err = r.file.SetReadDeadline(time.Time{}); err == nil { // fails where the netpoller does not take it
		r.raw, err = r.file.SyscallConn()
	}
	if err != nil {
		r.file.Close()
		return nil, err
	}
	r.read = func(uintptr) bool { return r.try() }
	return r, nil
}

// Wait calls try until it says true, each time the descriptor may have become readable. stop is asked at first and after every Poke; when
// it says true, Wait gives up and says false. The caller holds Turn.
func (r *FD) Wait(try, stop func() bool) (bool, error) {
	if r.signal != nil {
		return r.waitForSignal(try, stop)
	}
	r.try = try
	for !stop() {
		err := r.raw.Read(r.read)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
		// Reset before stop is asked: a poke from here on is seen by the next read, and one before it by stop.
		if err := r.file.SetReadDeadline(time.Time{}); err != nil {
			return false, err
		}
	}
	return false, nil
}

// waitForSignal is Wait without a file.
func (r *FD) waitForSignal(try, stop func() bool) (bool, error) {
	for !stop() {
		select {
		case <-r.closed:
			return false, os.ErrClosed
		default:
		}
		next := r.signal.Next() // before the look: what comes from here on is seen
		if try() {
			return true, nil
		}
		select {
		case <-next:
		case <-r.poked:
		case <-r.closed:
		}
	}
	return false, nil
}

// Poke makes who waits ask stop again.
func (r *FD) Poke() {
	if r.signal == nil {
		r.file.SetReadDeadline(time.Unix(1, 0))
		return
	}
	select {
	case r.poked <- struct{}{}:
	default:
	}
}

// Close ends every Wait, with an error. Closing again does nothing.
func (r *FD) Close() {
	r.once.Do(func() {
		if r.signal != nil {
			close(r.closed)
			return
		}
		r.file.Close()
	})
}
