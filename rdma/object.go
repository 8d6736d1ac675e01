// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"reflect"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/counted"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// object is embedded in all objects. It implements the lifetime rules of [Device].
type object struct {
	life   life.Life
	name   string // "QP 0x12 (RC)", "PD 3 on mlx5_0"; set by begin
	device string // name of its device, or ""
}

// begin starts the object's lifetime as a child of its parents. The caller keeps the parents open with use. destroy
// destroys the object in C.
func (o *object) begin(name string, destroy func() error, parents ...*object) {
	o.name = name
	o.life.Begin(name, func() (gone bool, err error) {
		err = destroy()
		gone = err == nil
		if e, is := err.(lateError); is {
			gone, err = true, e.error
		}
		return gone, wrap("", name, err)
	}, lives(parents)...)
}

// lateError is an error of destroying an object that was destroyed nevertheless.
type lateError struct{ error }

// late returns err as a lateError, or nil.
func late(err error) error {
	if err == nil {
		return nil
	}
	return lateError{err}
}

func lives(all []*object) []*life.Life {
	own := make([]*life.Life, len(all))
	for i, o := range all {
		own[i] = &o.life
	}
	return own
}

// String names the object, for logs: "QP 0x11 (RC) on mlx5_0", or "QP 0x11 (RC) on mlx5_0, closed". It leaves out keys,
// because they give access to memory. It does not block, and any goroutine may call it at any time.
func (o *object) String() string {
	name := o.name
	if name == "" {
		return "an object that was never created"
	}
	if on := " on " + o.device; o.device != "" && !strings.HasSuffix(name, on) {
		name += on // the name may be unique only on its device
	}
	if o.life.IsGone() {
		name += ", closed"
	}
	return name
}

// LogValue is String, for package log/slog.
func (o *object) LogValue() slog.Value { return slog.StringValue(o.String()) }

// use keeps the object open until done is called. It fails if the object is closed.
func (o *object) use(verb string) error { return o.life.Use(verb) }

func (o *object) done() { o.life.Done() }

// useAll is use for several objects. If one is closed, it fails and keeps none of them open.
func useAll(verb string, all ...*object) error { return life.UseAll(verb, lives(all)...) }

func doneAll(all ...*object) { life.DoneAll(lives(all)...) }

// isClosed reports whether the object is closed or being closed.
func (o *object) isClosed() bool { return o.life.IsClosed() }

// end is Close.
func (o *object) end() error { return o.life.Close() }

// Object is a [Device] or an object created from one. It exists in C until it is closed. Batches and programs are not
// Objects: they are only memory.
type Object interface {
	Close() error
	itself() *object
}

func (o *object) itself() *object { return o }

func livesOf(all []Object) []*life.Life {
	own := make([]*life.Life, 0, len(all))
	for _, o := range all {
		own = append(own, &o.itself().life)
		if o, ok := o.(interface{ parts() []Object }); ok {
			own = append(own, livesOf(o.parts())...)
		}
	}
	return own
}

// CloseAll closes objects that may depend on one another, given in any order. It closes children before their parents,
// and independent objects in the given order. If other objects depend on one of them, CloseAll closes nothing; the
// error names the others and matches [ErrInUse]. After that check, CloseAll calls ready, unless it is nil; if ready
// returns an error, all objects stay open. If C fails to destroy an object, that object and the following ones stay
// open, and the error names the objects that were closed. CloseAll skips closed objects and waits for calls in
// progress. If an object is nil, CloseAll closes nothing.
func CloseAll(ready func() error, all ...Object) error {
	if err := anyNil("CloseAll", all); err != nil {
		return err
	}
	return life.Close(ready, livesOf(all)...)
}

// anyNil returns an error if an object is nil.
func anyNil(verb string, all []Object) error {
	for i, o := range all {
		if v := reflect.ValueOf(o); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return isNil(verb, "", fmt.Sprintf("object %d", i))
		}
	}
	return nil
}

// Needed returns the error that CloseAll would return if other objects depend on one of these, or nil. It closes
// nothing.
func Needed(all ...Object) error {
	if err := anyNil("Needed", all); err != nil {
		return err
	}
	return life.Needed(livesOf(all)...)
}

// WriteLeaks writes the open objects of this package and of rdma/cm, if the environment variable GOVERBS_LEAKS was set
// when the program started. It writes one line per source location that created objects; for an accepted connection,
// this is the call of Accept. Call WriteLeaks at the end of main. In tests, use package rdmatest.
func WriteLeaks(w io.Writer) error { return life.WriteNotes(w) }

// goneForGood explains why C fails with EIO to destroy an object of an unplugged device. The event that reports the
// removal may not have arrived yet.
const goneForGood = "the device was unplugged; libibverbs then frees its objects only if " +
	"RDMAV_ALLOW_DISASSOC_DESTROY=1 was set when the program started"

// createObject creates an object in C and registers it as a child of its device and of other parents. Every constructor
// calls it. owner is the object that the caller returns to the user; it must be complete, because events can look it up
// at once. createObject keeps the parents open until create returns.
func createObject[C any](d *Device, o *object, to **C, owner any, verb string, create func() (*C, error),
	destroy func(*C) error, name func(*C) string, parents ...*object) error {
	if d == nil { // d is nil, or the parent is a zero object
		return useAll(verb, append(parents, new(object))...)
	}
	parents = append([]*object{&d.object}, parents...)
	if err := useAll(verb, parents...); err != nil {
		return err
	}
	defer doneAll(parents...)
	c, err := create()
	if err != nil {
		err = verberr.Injected(d.info.Backend, err)
		return explain(verb, parents[len(parents)-1].name, needsLibrary(d.info.Backend, needsVerb, err), err)
	}
	*to = c
	at := address(c)
	o.device = d.name
	o.begin(name(c), func() error {
		d.objects.remove(at)
		err := destroy(c)
		if _, gone := err.(lateError); err != nil && !gone {
			d.objects.add(at, owner)
		} else {
			d.counts.Gone(owner)
		}
		if errors.Is(err, syscall.EIO) {
			err = explain("", "", goneForGood, err)
		}
		return err
	}, parents...)
	d.objects.add(at, owner)
	if queued, ok := owner.(interface {
		queues() map[string]counted.Positions
	}); ok && d.counts != nil {
		d.counts.Born(owner, queued.queues())
	}
	return nil
}

// whileOpen returns C's object, or nil after Close has freed it.
func whileOpen[C any](o *object, c *C) *C {
	if o.life.IsGone() {
		return nil
	}
	return c
}

// closedAddress stands for a closed object in attributes. No object has this address, so lookup reports the mistake.
const closedAddress = 1

// ptrWhileOpen is whileOpen for attributes.
func ptrWhileOpen[C any](o *object, c *C) ibv.Ptr[C] {
	if c = whileOpen(o, c); c == nil {
		return closedAddress
	}
	return ibv.PtrTo(c)
}

// made returns the object, or nil and the error.
func made[T any](o *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return o, nil
}

// each returns an iterator over the results of next. It yields the first error and ends.
func each[T any](next func() (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			v, err := next()
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}
