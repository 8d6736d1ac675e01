package rdma

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// readiness waits for a descriptor of C's on Go's netpoller: no thread is blocked. It uses a duplicate, so that Go and C each close
// their own. One goroutine waits at a time.
type readiness struct {
	file *os.File
	raw  syscall.RawConn
	turn chan struct{} // holds a token while somebody waits
	try  func() bool   // of who waits
	read func(fd uintptr) bool
	once sync.Once
}

// newReadiness makes the descriptor not block, for C too, and duplicates it.
func newReadiness(fd int32, name string) (*readiness, error) {
	own, err := duplicate(int(fd))
	if err != nil {
		return nil, err
	}
	r := &readiness{file: os.NewFile(uintptr(own), name), turn: make(chan struct{}, 1)}
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

// wait calls try until it says true, each time the descriptor may have become readable. stop is asked at first and after every poke; when
// it says true, wait gives up and says false. The caller holds turn.
func (r *readiness) wait(try, stop func() bool) (bool, error) {
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

// poke makes who waits ask stop again.
func (r *readiness) poke() { r.file.SetReadDeadline(time.Unix(1, 0)) }

// close ends every wait, with an error. Closing again does nothing.
func (r *readiness) close() { r.once.Do(func() { r.file.Close() }) }
