// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"syscall"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// VerbError is the error of a verb on an object, with the reason if it is known. errors.Is matches Errno, and the
// errors in Err: [ErrClosed], [ErrInUse], [ErrNotSupported].
type VerbError struct {
	Verb   string        // "ibv_create_qp"
	Object string        // "QP 0x12", "mlx5_0"
	Errno  runtime.Errno // of C or of a check; 0: none
	Reason string        // the mistake and the valid values, or ""
	Err    error         // the cause, or nil
}

// Error returns the verb, the object, the reason, and the errno or the cause.
func (e *VerbError) Error() string { return (*verberr.Error)(e).Error() }

// Is reports whether target is Errno, or [ErrNotSupported] if Errno means that.
func (e *VerbError) Is(target error) bool { return (*verberr.Error)(e).Is(target) }

// Timeout reports whether a context's deadline has passed, so that a net.OpError with this error is a timeout, too.
func (e *VerbError) Timeout() bool { return (*verberr.Error)(e).Timeout() }

// Unwrap returns Err.
func (e *VerbError) Unwrap() error { return e.Err }

// declared makes internal packages return a VerbError. Functions that initialize variables refer to it, so that it is
// initialized first.
var declared = verberr.Declare(
	func(e *verberr.Error) error { return (*VerbError)(e) },
	func(err error) *verberr.Error { e, _ := err.(*VerbError); return (*verberr.Error)(e) },
	func(err error) *verberr.Error {
		var e *VerbError
		errors.As(err, &e)
		return (*verberr.Error)(e)
	})

// ErrnoReason is the meaning of an errno of some verbs, as in error texts.
type ErrnoReason struct {
	Verbs  []string
	Errno  runtime.Errno
	Reason string // the cause, or one of several where it says so
	Source string // a page of rdma-core's manual, or a file of rdma-core or Linux
}

// ErrnoReasons returns the known meanings of errnos on Linux, and nil elsewhere.
func ErrnoReasons() (all []ErrnoReason) {
	for _, r := range verberr.Reasons() {
		all = append(all, ErrnoReason(r))
	}
	return all
}

// ErrClosed matches, with errors.Is, errors of methods of an object that is closed or being closed.
var ErrClosed = verberr.ErrClosed

// ErrInUse matches, with errors.Is, the error of closing an object that others need. EBUSY matches as well.
var ErrInUse = verberr.ErrInUse

// ErrNotSupported matches, with errors.Is, every error about a feature that a library, a provider, a device or a build
// lacks. errors.ErrUnsupported matches as well.
var ErrNotSupported = runtime.ErrNotSupported

// wrap names the object in the error of a call. The verb is that of the call, if known.
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

// otherPath is the error of combining queues with different Paths.
func otherPath(verb, object, queue string) error {
	return invalid(verb, object, "%s reaches the device by another data path: create both with the same Path", queue)
}

// closed returns the error of using a closed object.
func closed(what string) error {
	return &VerbError{Object: what, Errno: syscall.EINVAL, Err: ErrClosed}
}
