// SPDX-License-Identifier: BSD-2-Clause

// Package life manages the lifetimes of objects that live in C: calls in progress, dependent objects, and closing. It
// does not know what the objects are; each object of rdma and rdma/cm has a Life.
//
// A Life is unborn, alive, closing or closed. It has parents, which it needs, and children, which need it:
//
//	Begin     the object is there and can be used; its parents cannot be closed any more
//	Use Done  around every call that C sees the object in
//	Close     refuses while there are children, ends waits, waits for calls under way, destroys, leaves the parents
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

// Hooks are called when an object is closed. Each may be nil. They are called without a lock of the Life.
type Hooks struct {
	Wake   func()       // ends waits of calls in progress, before Close waits for those calls
	Stop   func()       // makes the object reject new work
	Revive func()       // undoes Wake and Stop if the object stays open
	Settle func() error // ends the device's outstanding work, right before the object is destroyed
}

// Life is the lifetime of one object. The zero value is unborn: Begin gives it a name, parents and an end. An object
// that a program declares instead of calling its constructor stays unborn; without that check, C would read memory at
// address 0.
type Life struct {
	Hooks

	name    string
	number  uint64                        // of all that began, in their order
	destroy func() (gone bool, err error) // in C
	gone    atomic.Bool                   // state is closed
	mu      sync.Mutex                    // guards the fields below
	idle    sync.Cond                     // users has become 0, or state has changed
	// +checklocks:mu
	state state //
	// +checklocks:mu
	users int // calls under way
	// +checklocks:mu
	parents []*Life // what the object needs
	// +checklocks:mu
	needed map[*Life]struct{} // its children: they keep it from being closed
}

type state uint8

const (
	unborn state = iota
	alive
	closing
	closed
)

var begun atomic.Uint64

// Begin sets the object's name, for errors, and its parents, which the caller holds with Use. destroy destroys the
// object in C, and reports whether it is gone; if it is not, the object stays open. Close returns the error even if the
// object is gone.
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

// Join adds a parent. The caller holds both with Use, unless the object is new.
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

// TryUse begins a call, for which Close waits, if the object is alive. Done ends the call.
func (l *Life) TryUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != alive {
		return false
	}
	l.users++
	return true
}

// Hold is TryUse for a few instructions that cannot block or panic. It is faster, because its end wakes no waiting
// goroutine. Release ends it.
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

// Use is TryUse with an error.
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

// begin begins to close an open object: afterwards no call is in progress or can begin, and only objects in all need
// it.
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
	if err = l.neededBy(all); err != nil { // by what a call created that was under way
		l.unlocked(l.goOn)
		return false, err
	}
	l.unlocked(l.Stop)
	return true, nil
}

// unlocked calls f, which may be nil, without the lock that the caller holds.
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

// goOn undoes begin: the object stays open.
func (l *Life) goOn() {
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

// finish destroys the object and leaves its parents. It needs no lock: no call is in progress that could change them.
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

// neededBy returns the error for closing an object that objects outside of all need, or nil. The caller holds mu.
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
	return InUse(l.name, "it is needed by "+strings.Join(names, ", ")+", which have to be closed first")
}

// InUse returns the error for closing an object that others need.
func InUse(object, reason string) error {
	return verberr.New(verberr.Error{Verb: "Close", Object: object, Errno: syscall.EBUSY, Reason: reason,
		Err: verberr.ErrInUse})
}
