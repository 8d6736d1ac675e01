// SPDX-License-Identifier: BSD-2-Clause

// Package life manages the lifetimes of objects in C: calls in progress, dependent objects, and closing. It does not
// depend on the kinds of objects; each object of rdma and rdma/cm has a Life.
//
// A Life is unborn, alive, closing or closed. It has parents, which it needs, and children, which need it. Its methods:
//
//	Begin     makes an existing object usable; its parents can no longer be closed
//	Use Done  enclose every call that passes the object to C
//	Close     fails if there are children; ends waits, waits for calls in progress, destroys, leaves the parents
//
// All methods are safe for concurrent use.
package life

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Hooks are called when an object is closed, without a lock of the Life. Each may be nil.
type Hooks struct {
	Wake   func()       // ends waits of calls in progress, before Close waits for these calls
	Stop   func()       // makes the object reject new work
	Revive func()       // undoes Wake and Stop if the object stays open
	Settle func() error // ends the device's outstanding work, right before the object is destroyed
}

// Life is the lifetime of one object. The zero value is unborn. Begin sets the name, the parents and the destructor. An
// object that a program declares, instead of calling a constructor, stays unborn; calls then fail instead of passing
// address 0 to C.
type Life struct {
	Hooks

	name    string
	number  uint64                        // position among all objects in the order of Begin
	destroy func() (gone bool, err error) // destroys the object in C
	gone    atomic.Bool                   // state is closed
	mu      sync.Mutex                    // guards the fields below
	idle    sync.Cond                     // signaled when users becomes 0 or state changes
	// +checklocks:mu
	state state //
	// +checklocks:mu
	users int // calls in progress
	// +checklocks:mu
	parents []*Life // objects that this one needs
	// +checklocks:mu
	needed map[*Life]struct{} // children, which prevent closing
}

type state uint8

const (
	unborn state = iota
	alive
	closing
	closed
)

var begun atomic.Uint64

// Begin sets the object's name for errors, and its parents, which the caller holds with Use. destroy destroys the
// object in C and reports whether it is gone; if not, the object stays open. Close returns destroy's error in either
// case.
func (l *Life) Begin(name string, destroy func() (gone bool, err error), parents ...*Life) {
	l.name, l.destroy, l.number = name, destroy, begun.Add(1)
	l.mu.Lock()
	l.parents = slices.Grow(l.parents, len(parents))
	l.mu.Unlock()
	for _, p := range parents {
		l.Join(p)
	}
	l.note()
	l.become(alive)
}

// Join adds a parent. The caller holds both objects with Use, unless l is new.
func (l *Life) Join(parent *Life) {
	l.mu.Lock()
	if !slices.Contains(l.parents, parent) {
		l.parents = append(l.parents, parent)
	}
	l.mu.Unlock()
	parent.mu.Lock()
	defer parent.mu.Unlock()
	if parent.needed == nil {
		parent.needed = map[*Life]struct{}{}
	}
	parent.needed[l] = struct{}{}
}

// Leave removes a parent.
func (l *Life) Leave(parent *Life) {
	l.mu.Lock()
	l.parents = slices.DeleteFunc(l.parents, func(p *Life) bool { return p == parent })
	l.mu.Unlock()
	parent.loses(l)
}

func (l *Life) loses(child *Life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.needed, child)
}

// Needs reports whether p is a parent.
func (l *Life) Needs(other *Life) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.parents, other)
}

// Children returns the number of children.
func (l *Life) Children() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.needed)
}

// TryUse begins a call if the object is alive. Close waits for the call until Done.
func (l *Life) TryUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != alive {
		return false
	}
	l.users++
	return true
}

// Hold is TryUse for a few instructions that cannot block or panic. It is faster, because it locks the Life until
// Release instead of counting a call.
//
// +checklocksignore
func (l *Life) Hold() bool {
	l.mu.Lock()
	if l.state != alive {
		l.mu.Unlock()
		return false
	}
	return true
}

// Release ends Hold.
//
// +checklocksignore
func (l *Life) Release() { l.mu.Unlock() }

// Use is TryUse that returns an error.
func (l *Life) Use(verb string) error {
	if !l.TryUse() {
		if l.isUnborn() {
			return verberr.NotCreated(verb)
		}
		return verberr.New(verberr.Error{Verb: verb, Object: l.name, Errno: syscall.EINVAL, Err: verberr.ErrClosed})
	}
	return nil
}

func (l *Life) isUnborn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == unborn
}

// Done ends a call.
func (l *Life) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 && l.idle.L != nil {
		l.idle.Broadcast()
	}
}

// IsClosed reports whether the object is closed, being closed, or unborn.
func (l *Life) IsClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state != alive
}

// IsGone reports whether the object is closed: C has freed it.
func (l *Life) IsGone() bool { return l.gone.Load() }

// wait waits until the state has changed. The caller holds mu.
//
// +checklocks:l.mu
func (l *Life) wait() {
	l.idle.L = &l.mu
	l.idle.Wait()
}

// begin starts closing an open object. Afterwards no call is in progress or can begin, and only objects in all need it.
func (l *Life) begin(all set) (open bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == closing {
		l.wait()
	}
	switch l.state {
	case unborn:
		return false, verberr.NotCreated("Close")
	case closed:
		return false, nil
	}
	if err := l.neededBy(all); err != nil {
		return false, err
	}
	l.state = closing
	l.unlocked(l.Wake)
	for l.users > 0 {
		l.wait()
	}
	if err = l.neededBy(all); err != nil { // calls in progress may have created objects
		l.unlocked(l.reopen)
		return false, err
	}
	l.unlocked(l.Stop)
	return true, nil
}

// unlocked unlocks mu, calls f unless it is nil, and locks mu again. The caller holds mu.
//
// +checklocks:l.mu
func (l *Life) unlocked(f func()) {
	if f == nil {
		return
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// reopen undoes begin.
func (l *Life) reopen() {
	if l.Revive != nil {
		l.Revive()
	}
	l.become(alive)
}

func (l *Life) become(s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	if s == closed {
		l.gone.Store(true)
		l.forget()
	}
	if l.idle.L != nil {
		l.idle.Broadcast()
	}
}

// finish destroys the object and leaves its parents. It needs no lock, because no call is in progress that could change
// them.
//
// +checklocksignore
func (l *Life) finish() (gone bool, err error) {
	if l.Settle != nil {
		if err := l.Settle(); err != nil {
			return false, verberr.Wrap("", l.name, err)
		}
	}
	if gone, err = l.destroy(); gone {
		for _, p := range l.parents {
			p.loses(l)
		}
	}
	return gone, err
}

// most is the maximum number of children that an error names.
const most = 4

// neededBy returns an error if objects that are not in all need this one. The caller holds mu.
//
// +checklocks:l.mu
func (l *Life) neededBy(all set) error {
	var by []*Life
	for c := range l.needed {
		if _, ok := all[c]; !ok {
			by = append(by, c)
		}
	}
	if len(by) == 0 {
		return nil
	}
	slices.SortFunc(by, func(a, b *Life) int { return cmp.Compare(a.number, b.number) })
	var names []string
	for _, c := range by[:min(len(by), most)] {
		names = append(names, c.name)
	}
	if more := len(by) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return InUse(l.name, "needed by "+strings.Join(names, ", ")+", which must be closed first")
}

// InUse returns the error of closing an object that others need.
func InUse(object, reason string) error {
	return verberr.New(verberr.Error{Verb: "Close", Object: object, Errno: syscall.EBUSY, Reason: reason,
		Err: verberr.ErrInUse})
}
