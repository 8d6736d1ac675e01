// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/life"
)

// object is the common part of IDs and event channels: a lifetime that ends in C, with the rules of [rdma.Device].
type object struct {
	life life.Life
}

// created makes the object live. On Close, wake ends waits of calls under way, and then destroy destroys the object in
// C and returns whether it is gone. If it is not, it lives on.
func (o *object) created(name string, wake func(), destroy func() (gone bool, err error)) {
	o.life.Wake = wake
	o.life.Begin(name, destroy)
}

// use begins a call, which Close waits for; done ends it.
func (o *object) use(verb string, name func() string) error {
	if !o.life.TryUse() {
		return closedError(verb, name())
	}
	return nil
}

func (o *object) done() { o.life.Done() }

// closedError says that an object is closed.
func closedError(verb, object string) error {
	return &rdma.VerbError{Verb: verb, Object: object, Errno: syscall.EINVAL, Err: rdma.ErrClosed}
}
