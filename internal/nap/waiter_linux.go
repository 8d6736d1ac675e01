// SPDX-License-Identifier: BSD-2-Clause

package nap

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// Waiter is the eventfd on which a thread waits. The descriptor of an object, such as a completion channel, cannot be
// used: other threads read it, too, and a cancelled thread could consume their event.
type Waiter struct {
	Interrupted runtime.Errno // error that ended the wait early, or 0

	prepared bool
	fd       int
	woken    atomic.Bool // the descriptor has a token to read
	leave    func()
}

// idle contains unused descriptors for later waits.
var idle struct {
	mu  sync.Mutex // guards fds
	fds []int
}

const mostIdle = 64

// Prepare allocates a descriptor to wait on. It fails if too many files are open. Wake may be called until leave
// returns.
func (w *Waiter) Prepare(leave func()) error {
	w.leave = leave
	if w.prepared {
		return nil
	}
	idle.mu.Lock()
	defer idle.mu.Unlock()
	if n := len(idle.fds); n > 0 {
		w.fd = idle.fds[n-1]
		idle.fds = idle.fds[:n-1]
	} else if fd, err := NewDescriptor(); err == nil {
		w.fd = fd
	} else {
		return err
	}
	w.prepared = true
	return nil
}

// lowest is the lowest number of a waiter's descriptor. Lower numbers are left to programs that expect small
// descriptors.
const lowest = 32

// NewDescriptor creates an eventfd.
func NewDescriptor() (int, error) {
	low, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(low)
	return unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, lowest)
}

// FD returns the descriptor that the thread reads or polls.
func (w *Waiter) FD() int32 { return int32(w.fd) }

func (w *Waiter) file() int32 { return w.FD() }

// Wake ends the current wait, or the next one.
func (w *Waiter) Wake() {
	if !w.woken.Swap(true) {
		_, _ = unix.Write(w.fd, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// Slept records the result of reading the descriptor.
func (w *Waiter) Slept(errno runtime.Errno) {
	if w.Interrupted = errno; errno == 0 {
		w.woken.Store(false)
	}
}

// Polled records that a poll found the token.
func (w *Waiter) Polled() { _ = w.drain() }

func (w *Waiter) drain() error {
	var b [8]byte
	if _, err := unix.Read(w.fd, b[:]); err != nil {
		return err
	}
	w.woken.Store(false)
	return nil
}

// Release makes the waiter's descriptor available for reuse.
func (w *Waiter) Release() {
	if !w.prepared {
		return
	}
	w.prepared = false
	w.leave()
	if w.woken.Load() && w.drain() != nil {
		unix.Close(w.fd)
		return
	}
	idle.mu.Lock()
	defer idle.mu.Unlock()
	if len(idle.fds) == mostIdle {
		unix.Close(w.fd)
		return
	}
	idle.fds = append(idle.fds, w.fd)
}

// Cancel releases the waiter of a cancelled thread, which may or may not have read the token.
func (w *Waiter) Cancel() {
	w.leave()
	unix.Close(w.fd)
}
