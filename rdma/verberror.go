// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// VerbError says which verb failed on which object and, if known, why. errors.Is finds Errno in it, and the errors in
// Err: [ErrClosed], [ErrInUse], [ErrNotSupported].
//
// Fields, which go doc rdma/internal/verberr.VerbError explains:
//
//	Verb string
//	Object string
//	Errno runtime.Errno
//	Reason string
//	Err error
//
// Methods, which go doc rdma/internal/verberr.VerbError explains:
//
//	Error() string
//	Is(target error) bool
//	Timeout() bool
//	Unwrap() error
type VerbError = verberr.VerbError

// ErrClosed is what errors.Is finds in an error of a method of an object that is closed or being closed.
var ErrClosed = verberr.ErrClosed

// ErrInUse is what errors.Is finds, as well as EBUSY, if an object cannot be closed because others need it.
var ErrInUse = verberr.ErrInUse

// ErrNotSupported is what errors.Is finds in every error about something that a library, a provider, a device or a
// build lacks. errors.Is finds errors.ErrUnsupported in them as well.
var ErrNotSupported = runtime.ErrNotSupported

const (
	einval     = verberr.EINVAL
	enomem     = verberr.ENOMEM
	eio        = verberr.EIO
	enoent     = verberr.ENOENT
	ebusy      = verberr.EBUSY
	eagain     = verberr.EAGAIN
	eopnotsupp = verberr.EOPNOTSUPP
	enosys     = verberr.ENOSYS
)

// wrap names the object in the error of a call. The verb is that of the call, if known.
func wrap(verb, object string, err error) error { return verberr.Wrap(verb, object, err) }

// explain is wrap with a reason.
func explain(verb, object, reason string, err error) error {
	return verberr.Explain(verb, object, reason, err)
}

// invalid returns the error of a check that was made before the call of C.
func invalid(verb, object, format string, args ...any) error {
	return verberr.Invalid(verb, object, format, args...)
}
