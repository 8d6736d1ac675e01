package rdma

import (
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/life"
)

// object is what all objects of a device have in common: a life that begins in C and ends there, under the rules of [Device].
type object struct {
	life life.Life
	verb string // what created it in C, for errors of its use
	kind string // "QP"
	name string // "QP 0x12", complete once the object is there
}

// born makes the object live, as a child of its parents, which the caller holds by use. destroy ends it in C.
func (o *object) born(kind, name string, destroy func() error, parents ...*object) {
	o.kind, o.name = kind, name
	o.life.Begin(name, func() (gone bool, err error) {
		err = destroy()
		return err == nil, wrap("", name, err)
	}, lives(parents)...)
}

func lives(all []*object) []*life.Life {
	own := make([]*life.Life, len(all))
	for i, o := range all {
		own[i] = &o.life
	}
	return own
}

// use says that a call is under way, which Close waits for; done ends it. It fails when the object is closed.
func (o *object) use(verb string) error { return o.life.Use(verb) }

func (o *object) done() { o.life.Done() }

// useAll is use of several objects, or of none when one of them is closed.
func useAll(verb string, all ...*object) error { return life.UseAll(verb, lives(all)...) }

func doneAll(all ...*object) { life.DoneAll(lives(all)...) }

// isClosed says whether the object is closed or being closed.
func (o *object) isClosed() bool { return o.life.IsClosed() }

// end closes the object.
func (o *object) end() error { return o.life.Close() }

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
	if o.life.IsGone() {
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
