// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/life"
)

// object is the common part of IDs and event channels: a lifetime with the rules of [rdma.Device].
type object struct {
	life life.Life
}

// created makes the object usable. Close calls wake, which ends waits of calls in progress, and then destroy, which
// destroys the object in C and reports whether it is gone. If it is not, the object stays usable.
func (o *object) created(name string, wake func(), destroy func() (gone bool, err error)) {
	o.life.Wake = wake
	o.life.Begin(name, destroy)
}

// use begins a call and done ends it. Close waits for calls in progress.
func (o *object) use(verb string, name func() string) error {
	if !o.life.TryUse() {
		return closedError(verb, name())
	}
	return nil
}

func (o *object) done() { o.life.Done() }

// closedError returns the error for a closed object.
func closedError(verb, object string) error {
	return &rdma.VerbError{Verb: verb, Object: object, Errno: syscall.EINVAL, Err: rdma.ErrClosed}
}
