// SPDX-License-Identifier: BSD-2-Clause

// Package readiness waits for C's descriptors on Go's netpoller, and for the signals that replace descriptors of
// software devices. It blocks no thread unless a program requests that.
package readiness

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/rdma/internal/wakeup"
)

// FD is a duplicate of C's descriptor, which can be closed independently. Only one goroutine may wait at a time: the
// one that holds Turn.
type FD struct {
	Turn chan struct{} // holds a token while a goroutine waits

	fd   int // C's descriptor
	name string
	own  atomic.Pointer[duplicated] // nil before the first wait
	keep atomic.Bool                // waits may block their threads
	kept atomic.Pointer[kept]       // nil before the first such wait
	try  func() bool                // try function of the waiting goroutine

	yielded time.Time // guarded by Turn
	read    func(fd uintptr) bool

	signal *wakeup.Signal // replaces the descriptor, or nil
	poked  chan struct{}  // holds a token if stop must be called
	closed chan struct{}

	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	tie *tie // tie to the context of the last wait, or nil
	// +checklocks:mu
	over bool // closed

	// +checklocks:mu
	nonblock bool // the descriptor is non-blocking
}

// duplicated is the descriptor on the netpoller.
type duplicated struct {
	file *os.File
	raw  syscall.RawConn
}

// tie pokes when a context ends.
type tie struct {
	done <-chan struct{}
	stop func() bool
}

// New returns an FD for C's descriptor. The first wait makes the descriptor non-blocking, for C too, and duplicates it.
// Programs that poll never wait, so they save these system calls, which take longer than creating a channel.
func New(fd int32, name string) (*FD, error) {
	r := &FD{Turn: make(chan struct{}, 1), fd: int(fd), name: name}
	if s := wakeup.Of(fd); s != nil {
		s.SetNonblock()
		r.signal, r.poked, r.closed = s, make(chan struct{}, 1), make(chan struct{})
		return r, nil
	}
	if fd < 0 {
		return nil, os.ErrInvalid
	}
	r.read = func(uintptr) bool { return r.try() }
	return r, nil
}

// SetNonblock makes the descriptor non-blocking, unless a wait has done so. The caller keeps C's object open.
func (r *FD) SetNonblock() error {
	if r.signal != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.setNonblock()
}

// setNonblock is SetNonblock for a descriptor. The caller holds mu.
//
// +checklocks:r.mu
func (r *FD) setNonblock() error {
	if r.nonblock {
		return nil
	}
	err := setNonblock(r.fd)
	r.nonblock = err == nil
	return err
}

// duplicate returns the descriptor on the netpoller. The caller keeps C's object open.
func (r *FD) duplicate() (*duplicated, error) {
	if d := r.own.Load(); d != nil {
		return d, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil, os.ErrClosed
	}
	if err := r.setNonblock(); err != nil {
		return nil, err
	}
	own, err := duplicate(r.fd)
	if err != nil {
		return nil, err
	}
	d := &duplicated{file: os.NewFile(uintptr(own), r.name)}
	if err = d.file.SetReadDeadline(time.Time{}); err == nil { // fails if the netpoller does not support it
		d.raw, err = d.file.SyscallConn()
	}
	if err != nil {
		d.file.Close()
		return nil, err
	}
	r.own.Store(d)
	return d, nil
}

// Wait calls try each time the descriptor may have become readable, until it returns true. It calls stop first and
// after every Poke; if stop returns true, or ctx has ended, Wait returns false. If the descriptor becomes readable
// while try runs, try runs again. The caller holds Turn.
func (r *FD) Wait(ctx context.Context, try, stop func() bool) (bool, error) {
	if r.signal != nil {
		return r.waitForSignal(ctx, try, stop)
	}
	if r.keep.Load() {
		if done, got, err := r.waitWithThread(ctx, try, stop); done {
			return got, err
		}
	}
	own, err := r.duplicate() // before stop is called, so that a poke without a duplicate is not missed
	if err != nil {
		return false, err
	}
	r.try = try
	defer func() { r.try = nil }()
	for ctx.Err() == nil && !stop() {
		r.follow(ctx)
		err := own.raw.Read(r.read)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
		// Reset the deadline before calling stop: stop sees the reason of earlier pokes, and the next read sees later
		// ones.
		if err := own.file.SetReadDeadline(time.Time{}); err != nil {
			return false, err
		}
	}
	return false, nil
}

// waitForSignal is Wait for a signal.
func (r *FD) waitForSignal(ctx context.Context, try, stop func() bool) (bool, error) {
	for ctx.Err() == nil && !stop() {
		select {
		case <-r.closed:
			return false, os.ErrClosed
		default:
		}
		next := r.signal.Next() // before try is called, so that later events are not missed
		if try() {
			return true, nil
		}
		select {
		case <-next:
		case <-r.poked:
		case <-r.closed:
		case <-ctx.Done():
		}
	}
	return false, nil
}

// follow makes the end of ctx poke the FD. It remains in effect after the wait, because the next wait usually has the
// same context. It ends when ctx ends, when a wait has another context, or with Forget or Close. follow reports whether
// the FD is open.
func (r *FD) follow(ctx context.Context) bool {
	done := ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.tie != nil && r.tie.done == done {
		return !r.over
	}
	r.untie()
	if done == nil {
		return true
	}
	t := &tie{done: done}
	t.stop = context.AfterFunc(ctx, func() {
		r.mu.Lock()
		if r.tie == t {
			r.tie = nil
		}
		r.mu.Unlock()
		r.Poke()
	})
	r.tie = t
	return true
}

// untie releases the last wait's context. The caller holds mu.
//
// +checklocks:r.mu
func (r *FD) untie() {
	if r.tie != nil {
		r.tie.stop()
		r.tie = nil
	}
}

// Forget releases the last wait's context, unless a wait is in progress.
func (r *FD) Forget() {
	select {
	case r.Turn <- struct{}{}:
		r.mu.Lock()
		r.untie()
		r.mu.Unlock()
		<-r.Turn
	default:
	}
}

// Poke makes a waiting goroutine call stop again.
func (r *FD) Poke() {
	if r.signal == nil {
		if own := r.own.Load(); own != nil {
			own.file.SetReadDeadline(time.Unix(1, 0))
		}
		r.kept.Load().poke()
		return
	}
	select {
	case r.poked <- struct{}{}:
	default:
	}
}

// Close ends every Wait with an error. A second Close does nothing.
func (r *FD) Close() {
	r.mu.Lock()
	was := r.over
	r.over = true
	r.untie()
	r.mu.Unlock()
	if was {
		return
	}
	if r.signal != nil {
		close(r.closed)
		return
	}
	if own := r.own.Load(); own != nil {
		own.file.Close()
	}
	r.kept.Load().close()
}
