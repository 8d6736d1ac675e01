package rdma

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
)

// ErrClosed is what errors.Is finds in the error of every use of an object that is closed, or is being closed.
var ErrClosed = errors.New("closed")

// ErrInUse is what errors.Is finds in the error of closing an object that others still need, and EBUSY as well.
var ErrInUse = errors.New("in use")

// object is what all objects of a device have in common: a life that begins in C and ends there, under the rules of [Device].
type object struct {
	verb    string // what created it in C, for errors of its use
	kind    string // "QP"
	name    string // "QP 0x12", complete once the object is there
	parents []*object
	destroy func() error // in C
	settle  func() error // ends what the device has under way, while its events still find the object; or nil
	ending  func()       // wakes who waits on the object before Close waits for them; or nil
	lives   func()       // undoes that where the object lives on after all; or nil

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

// born makes the object live, as a child of its parents, which the caller holds by use. destroy ends it in C.
func (o *object) born(kind, name string, destroy func() error, parents ...*object) {
	o.kind, o.name, o.destroy, o.parents = kind, name, destroy, parents
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
func (o *object) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.state == closing {
		o.idle.Wait()
	}
	if o.state == closed {
		return nil
	}
	if err := o.held(); err != nil {
		return err
	}
	o.state = closing
	o.unlocked(o.ending)
	for o.users > 0 {
		o.idle.Wait()
	}
	err := o.held() // by what a call created that was under way
	if err == nil {
		o.unlocked(func() { err = o.finish() })
	}
	if err != nil {
		o.unlocked(o.lives)
		o.state = alive
	} else {
		o.state = closed
		o.gone.Store(true)
	}
	o.idle.Broadcast()
	return err
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

// held is the error of closing an object that others need, or nil.
func (o *object) held() error {
	if len(o.children) == 0 {
		return nil
	}
	const most = 4
	var names []string
	for _, c := range o.children[:min(len(o.children), most)] {
		names = append(names, c.name)
	}
	if more := len(o.children) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	reason := "it is needed by " + strings.Join(names, ", ") + ", which have to be closed first"
	return &VerbError{Verb: "Close", Object: o.name, Errno: ebusy, Reason: reason, Err: ErrInUse}
}

// goneForGood is why C does not destroy an object of a device that was unplugged, which may not be known yet.
const goneForGood = "where the device was unplugged, C frees what is left of its objects only where RDMAV_ALLOW_DISASSOC_DESTROY=1 has been in the program's environment from the start"

// birth creates an object in C, under its device and other parents, and makes it known: what every constructor does. owner is the object
// as the user has it. The parents are kept from being closed meanwhile.
func birth[C any](d *Device, o *object, owner any, kind, verb string, create func() (*C, error), destroy func(*C) error, name func(*C) string, parents ...*object) (*C, error) {
	parents = append([]*object{&d.object}, parents...)
	if err := useAll(verb, parents...); err != nil {
		return nil, err
	}
	defer doneAll(parents...)
	c, err := create()
	if err != nil {
		return nil, wrap(verb, parents[len(parents)-1].name, err)
	}
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
	return c, nil
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
