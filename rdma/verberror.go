// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"syscall"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// VerbError is the error of a verb on an object. errors.Is matches Errno and the errors in Err: [ErrClosed],
// [ErrInUse], [ErrNotSupported].
type VerbError struct {
	Verb   string        // "ibv_create_qp"
	Object string        // "QP 0x12", "mlx5_0"
	Errno  runtime.Errno // returned by C or by a check; 0: none
	Reason string        // the mistake and the valid values, or "" if unknown
	Err    error         // the cause, or nil
}

// Error returns the verb, the object, the reason, and the errno or the cause.
func (e *VerbError) Error() string { return (*verberr.Error)(e).Error() }

// Is reports whether target is Errno, or is [ErrNotSupported] and Errno has that meaning.
func (e *VerbError) Is(target error) bool { return (*verberr.Error)(e).Is(target) }

// Timeout reports whether the cause is that a context's deadline has passed. A net.OpError that wraps this error is
// then a timeout, too.
func (e *VerbError) Timeout() bool { return (*verberr.Error)(e).Timeout() }

// Unwrap returns Err.
func (e *VerbError) Unwrap() error { return e.Err }

// declared makes internal packages return errors of type VerbError. Functions that run during initialization refer to
// it, so that it is initialized first.
var declared = verberr.Declare(
	func(e *verberr.Error) error { return (*VerbError)(e) },
	func(err error) *verberr.Error { e, _ := err.(*VerbError); return (*verberr.Error)(e) },
	func(err error) *verberr.Error {
		var e *VerbError
		errors.As(err, &e)
		return (*verberr.Error)(e)
	})

// ErrnoReason explains an errno of some verbs. Error texts contain these reasons.
type ErrnoReason struct {
	Verbs  []string
	Errno  runtime.Errno
	Reason string // the cause, or one of several possible causes
	Source string // a page of rdma-core's manual, or a file of rdma-core or Linux
}

// ErrnoReasons returns the known reasons for errnos on Linux, and nil on other systems.
func ErrnoReasons() (all []ErrnoReason) {
	for _, r := range verberr.Reasons() {
		all = append(all, ErrnoReason(r))
	}
	return all
}

// ErrClosed is matched by errors of methods of an object that is closed or being closed.
var ErrClosed = verberr.ErrClosed

// ErrInUse is matched by the error of closing an object that others depend on. The error also matches EBUSY.
var ErrInUse = verberr.ErrInUse

// ErrNotSupported is matched by errors about a feature that a library, a provider, a device or a build lacks. They also
// match errors.ErrUnsupported.
var ErrNotSupported = runtime.ErrNotSupported

// wrap adds the verb and the object to the error of a call. A verb in err takes precedence.
func wrap(verb, object string, err error) error { return verberr.Wrap(verb, object, err) }

// explain is wrap with a reason.
func explain(verb, object, reason string, err error) error {
	return verberr.Explain(verb, object, reason, err)
}

// invalid returns the error of a check made before the call into C.
func invalid(verb, object, format string, args ...any) error {
	_ = declared
	return verberr.Invalid(verb, object, format, args...)
}

// otherPath returns the error of combining queues with different Paths.
func otherPath(verb, object, queue string) error {
	return invalid(verb, object, "%s uses another data path: create both with the same Path", queue)
}

// closed returns the error of using a closed object.
func closed(what string) error {
	return &VerbError{Object: what, Errno: syscall.EINVAL, Err: ErrClosed}
}
