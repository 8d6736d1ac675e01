package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
)

// object is what all objects of a device have in common: a life that begins in C and ends there, under the rules of [Device].
type object struct {
	verb    string // what created it in C, for errors of its use
	kind    string // "QP"
	name    string // "QP 0x12", complete once the object is there
	number  uint64 // of all that were born, in their order
	parents []*object
	destroy func() error // in C
	ending  func()       // wakes who waits on the object before Close waits for them; or nil
	lent    func() error // says that somebody has a queue of it to himself, which is not closed either; or nil
	stops   func() error // has it take no work any more, or is as lent; or nil
	lives   func()       // undoes ending and stops where the object lives on after all; or nil
	settle  func() error // ends what the device has under way, while its events still find the object; or nil

	mu       sync.Mutex
	idle     sync.Cond // users has become 0, or state has changed
	state    lifeState
	gone     atomic.Bool // state is closed
	users    int         // calls under way
	children []*object   // what keeps it from being closed, in the order of creation
}

type lifeState uint8

const (
	alive lifeState = iota
	closing
	closed
)

var births atomic.Uint64

// born makes the object live, as a child of its parents, which the caller holds by use. destroy ends it in C.
func (o *object) born(kind, name string, destroy func() error, parents ...*object) {
	o.kind, o.name, o.destroy, o.parents, o.number = kind, name, destroy, parents, births.Add(1)
	o.idle.L = &o.mu
	for _, p := range parents {
		p.mu.Lock()
		p.children = append(p.children, o)
		p.mu.Unlock()
	}
}

// use says that a call is under way, which Close waits for; done ends it. It fails when the object is closed.
func (o *object) use(verb string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != alive {
		return &VerbError{Verb: verb, Object: o.name, Errno: einval, Err: ErrClosed}
	}
	o.users++
	return nil
}

func (o *object) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.users--; o.users == 0 {
		o.idle.Broadcast()
	}
}

// useAll is use of several objects, or of none when one of them is closed.
func useAll(verb string, all ...*object) error {
	for i, o := range all {
		if err := o.use(verb); err != nil {
			doneAll(all[:i]...)
			return err
		}
	}
	return nil
}

func doneAll(all ...*object) {
	for _, o := range all {
		o.done()
	}
}

// isClosed says whether the object is closed or being closed.
func (o *object) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state != alive
}

// end closes the object: it refuses while children live, waits for calls under way, and destroys it in C. Where C refuses, the object
// lives on. Closing again waits for a Close under way, and gives nil.
func (o *object) end() error { return endAll(nil, o) }

// endAll is end of several objects, which may need one another: in their order, or of none while others need one. ready, which may be nil,
// is called once nobody does any more and nobody can; its error leaves all as they were.
func endAll(ready func() error, all ...*object) error {
	if err := neededAll(all); err != nil { // before anybody is woken
		return err
	}
	var begun []*object
	defer func() {
		for _, o := range begun {
			o.goOn()
		}
	}()
	for _, o := range youngestFirst(all) {
		open, err := o.begin(all)
		if err != nil {
			return err
		}
		if open {
			begun = append(begun, o)
		}
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	var gone []string
	for _, o := range all {
		i := slices.Index(begun, o)
		if i < 0 {
			continue
		}
		if err := o.finish(); err != nil {
			return halfway(err, gone)
		}
		o.become(closed)
		begun = slices.Delete(begun, i, i+1)
		gone = append(gone, o.name)
	}
	return nil
}

// halfway adds to the error of an object that C does not destroy which ones were closed before it.
func halfway(err error, gone []string) error {
	inner, ok := err.(*VerbError)
	if !ok || len(gone) == 0 {
		return err
	}
	e := *inner
	e.Reason = "closed before it: " + strings.Join(gone, ", ")
	if inner.Reason != "" {
		e.Reason = inner.Reason + "; " + e.Reason
	}
	return &e
}

// youngestFirst is the order in which everybody begins to close objects, each once: who waits for another one's Close holds up nobody that
// that one waits for.
func youngestFirst(all []*object) []*object {
	order := slices.Clone(all)
	slices.SortFunc(order, func(a, b *object) int { return cmp.Compare(b.number, a.number) })
	return slices.Compact(order)
}

// begin begins to close the object, if it is open: no call is under way any more, none will be, and nobody but others of all needs it.
func (o *object) begin(all []*object) (open bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.state == closing {
		o.idle.Wait()
	}
	if o.state == closed {
		return false, nil
	}
	if err := o.held(all); err != nil {
		return false, err
	}
	o.state = closing
	o.unlocked(o.ending)
	for o.users > 0 {
		o.idle.Wait()
	}
	if err = o.held(all); err == nil { // by what a call created that was under way
		o.unlocked(func() { err = o.inUseBy(o.stops) })
	}
	if err != nil {
		o.unlocked(o.goOn)
	}
	return err == nil, err
}

// goOn ends what begin began: the object lives on.
func (o *object) goOn() {
	if o.lives != nil {
		o.lives()
	}
	o.become(alive)
}

func (o *object) become(state lifeState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state = state
	if state == closed {
		o.gone.Store(true)
	}
	o.idle.Broadcast()
}

// finish destroys the object in C, and leaves its parents.
func (o *object) finish() error {
	if o.settle != nil {
		if err := o.settle(); err != nil {
			return wrap("", o.name, err)
		}
	}
	if err := o.destroy(); err != nil {
		return wrap("", o.name, err)
	}
	for _, p := range o.parents {
		p.leaves(o)
	}
	return nil
}

// joins makes a live object the child of another parent. The caller holds both by use.
func (o *object) joins(parent *object) {
	o.mu.Lock()
	o.parents = append(o.parents, parent)
	o.mu.Unlock()
	parent.mu.Lock()
	parent.children = append(parent.children, o)
	parent.mu.Unlock()
}

// unlocked calls f, which may be nil, without the lock that the caller holds.
func (o *object) unlocked(f func()) {
	if f == nil {
		return
	}
	o.mu.Unlock()
	defer o.mu.Lock()
	f()
}

// leaves takes a child away.
func (o *object) leaves(child *object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.children, child); i >= 0 {
		o.children = slices.Delete(o.children, i, i+1)
	}
}

// held is the error of closing an object that others need than those of all, or nil.
func (o *object) held(all []*object) error {
	const most = 4
	var names []string
	more := 0
	for _, c := range o.children {
		switch {
		case slices.Contains(all, c):
		case len(names) < most:
			names = append(names, c.name)
		default:
			more++
		}
	}
	if len(names) == 0 {
		return nil
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return o.inUse("it is needed by " + strings.Join(names, ", ") + ", which have to be closed first")
}

// inUse is the error of closing what others need.
func (o *object) inUse(reason string) error {
	return &VerbError{Verb: "Close", Object: o.name, Errno: ebusy, Reason: reason, Err: ErrInUse}
}

// inUseBy is the error of closing what somebody has to himself, as says, which may be nil.
func (o *object) inUseBy(says func() error) error {
	if says == nil {
		return nil
	}
	if err := says(); err != nil {
		return &VerbError{Verb: "Close", Object: o.name, Errno: ebusy, Err: err}
	}
	return nil
}

// neededAll is the error of closing objects together that others need, or nil.
func neededAll(all []*object) error {
	for _, o := range all {
		o.mu.Lock()
		err := o.held(all)
		o.mu.Unlock()
		if err == nil {
			err = o.inUseBy(o.lent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goneForGood is why C does not destroy an object of a device that was unplugged, which may not be known yet.
const goneForGood = "where the device was unplugged, C frees what is left of its objects only where RDMAV_ALLOW_DISASSOC_DESTROY=1 has been in the program's environment from the start"

// birth creates an object in C, under its device and other parents, and makes it known: what every constructor does. owner is the object
// as the user has it, which then is whole: events find it from here on. The parents are kept from being closed meanwhile.
func birth[C any](d *Device, o *object, to **C, owner any, kind, verb string, create func() (*C, error), destroy func(*C) error, name func(*C) string, parents ...*object) error {
	parents = append([]*object{&d.object}, parents...)
	if err := useAll(verb, parents...); err != nil {
		return err
	}
	defer doneAll(parents...)
	c, err := create()
	if err != nil {
		return wrap(verb, parents[len(parents)-1].name, err)
	}
	*to = c
	at := address(c)
	o.born(kind, name(c), func() error {
		d.objects.remove(at)
		err := destroy(c)
		if err != nil {
			d.objects.add(at, owner)
		}
		if errors.Is(err, eio) {
			err = explain("", "", goneForGood, err)
		}
		return err
	}, parents...)
	d.objects.add(at, owner)
	return nil
}

// whileOpen gives what C has of an object, or nil once it is closed: C has freed that.
func whileOpen[C any](o *object, c *C) *C {
	if o.gone.Load() {
		return nil
	}
	return c
}

// closedAddress is what attributes get that name a closed object: no object is there, so that every lookup says so.
const closedAddress = 1

// ptrWhileOpen is whileOpen for attributes.
func ptrWhileOpen[C any](o *object, c *C) ibv.Ptr[C] {
	if c = whileOpen(o, c); c == nil {
		return closedAddress
	}
	return ibv.PtrTo(c)
}

// made gives an object, or nil with an error.
func made[T any](o *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return o, nil
}
