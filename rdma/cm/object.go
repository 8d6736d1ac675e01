package cm

import (
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// object is what IDs and event channels have in common: a life that ends in C, under the rules of [rdma.Device].
type object struct {
	life life.Life
}

// born makes the object live: wake ends waits of calls under way when it is closed, then destroy ends it in C, and says whether it is gone.
// Where it is not, it lives on.
func (o *object) born(name string, wake func(), destroy func() (gone bool, err error)) {
	o.life.Wake = wake
	o.life.Begin(name, destroy)
}

// use says that a call is under way, which closing waits for; done ends it.
func (o *object) use(verb string, name func() string) error {
	if !o.life.TryUse() {
		return closedError(verb, name())
	}
	return nil
}

func (o *object) done() { o.life.Done() }

// closedError says that an object is closed.
func closedError(verb, object string) error {
	return &rdma.VerbError{Verb: verb, Object: object, Errno: verberr.EINVAL, Err: rdma.ErrClosed}
}
