// SPDX-License-Identifier: BSD-2-Clause

// Package verberr has the error type of verbs: the failed verb, its object, and the reason if known. It is for packages
// below rdma, which cannot import rdma.VerbError.
package verberr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Error has the fields and methods of rdma.VerbError.
type Error struct {
	Verb   string        // "ibv_create_qp"
	Object string        // "QP 0x12", "mlx5_0"
	Errno  runtime.Errno // of C or of a failed check; 0: none
	Reason string        // the problem and a hint, or ""
	Err    error         // the underlying error, or nil
}

// Conversions between Error and rdma.VerbError. In tests without package rdma, only Error is used.
var (
	public = func(e *Error) error { return e }
	of     = func(err error) *Error { e, _ := err.(*Error); return e }
	within = func(err error) (e *Error) { errors.As(err, &e); return e }
)

// Declared is the result of Declare, for package variables.
type Declared struct{}

// Declare sets the conversions. fromPublic returns nil for other errors, and searched searches the chain of wrapped
// errors. Package rdma calls Declare during initialization.
func Declare(toPublic func(*Error) error, fromPublic, searched func(error) *Error) Declared {
	public, of, within = toPublic, fromPublic, searched
	return Declared{}
}

// New returns e as an rdma.VerbError.
func New(e Error) error { return public(&e) }

// Of returns the contents of an rdma.VerbError, which must not be changed, or nil for other errors.
func Of(err error) *Error { return of(err) }

// ErrClosed matches errors of using an object that is closed or being closed.
var ErrClosed = errors.New("closed")

// ErrInUse matches errors of closing an object that others need. These also match EBUSY.
var ErrInUse = errors.New("in use")

// Error returns the verb, the object, the reason, and the errno or underlying error.
func (e *Error) Error() string {
	var parts []string
	for _, part := range []string{e.Verb, e.Object, e.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	var call *runtime.CallError
	switch {
	case errors.As(e.Err, &call) || e.Err == nil:
		if e.Errno != 0 {
			parts = append(parts, Text(e.Errno))
		} else if e.Reason == "" {
			parts = append(parts, "failed without an error number")
		}
	default:
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Text returns the text of an errno, including the kernel's ENOTSUPP, which package syscall does not know.
func Text(errno runtime.Errno) string { return (&runtime.CallError{Errno: errno}).Error() }

// Is reports whether target is e.Errno, or runtime.ErrNotSupported if Errno corresponds to it.
func (e *Error) Is(target error) bool {
	errno, ok := target.(runtime.Errno)
	return ok && errno != 0 && errno == e.Errno || (&runtime.CallError{Errno: e.Errno}).Is(target)
}

// Timeout reports whether a context's deadline has expired. A net.OpError with this error then is a timeout, too.
func (e *Error) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Wrap adds the verb and the object to an error. If err is from a call, its function name replaces verb.
func Wrap(verb, object string, err error) error {
	return Explain(verb, object, "", err)
}

// Explain is Wrap with a reason.
func Explain(verb, object, reason string, err error) error {
	if err == nil {
		return nil
	}
	if inner := of(err); inner != nil { // its reason is more specific
		e := *inner
		e.Object, e.Reason = cmp.Or(e.Object, object), cmp.Or(e.Reason, reason)
		if !errors.As(e.Err, new(*runtime.NotSupportedError)) { // that error names the function
			e.Verb = cmp.Or(e.Verb, verb)
		}
		return public(&e)
	}
	e := &Error{Verb: verb, Object: object, Reason: reason, Err: err}
	var call *runtime.CallError
	var missing *runtime.NotSupportedError
	switch {
	case errors.As(err, &call):
		e.Errno = call.Errno
		if verb == "" {
			e.Verb = call.Function
		}
		if reason == "" {
			e.Reason = errnoReason(e.Verb, e.Errno)
		}
	case errors.As(err, &missing):
		if e.Errno = syscall.EOPNOTSUPP; missing.Function != "" {
			e.Verb = "" // the message contains the verb
		}
	default:
		if behind := within(err); behind != nil {
			e.Errno = behind.Errno
		}
	}
	return public(e)
}

// Reason is the reason for an errno of some verbs.
type Reason struct {
	Verbs  []string
	Errno  runtime.Errno
	Reason string // true whenever these verbs return the errno, or a list of all causes
	Source string // a page of rdma-core's manual, or a file of it or of Linux
}

// Injected adds to err that a test made an allocation of the software device fail, if that is the cause.
func Injected(backend any, err error) error {
	b, ok := backend.(interface{ FailedAllocation() bool })
	if !ok || !errors.Is(err, syscall.ENOMEM) || !b.FailedAllocation() {
		return err
	}
	const reason = "injected by Faults.FailAllocation of the software device"
	if e := of(err); e != nil {
		own := *e
		own.Reason = reason
		return public(&own)
	}
	return Explain("", "", reason, err)
}

// Invalid returns the error of a check that failed before a call of C.
func Invalid(verb, object, format string, args ...any) error {
	e := &Error{Verb: verb, Object: object, Errno: syscall.EINVAL, Reason: fmt.Sprintf(format, args...)}
	if f := observer.Load(); f != nil {
		(*f)(e)
	}
	return public(e)
}

var observer atomic.Pointer[func(*Error)]

// Observe makes f receive the errors of such checks. A nil f ends this.
func Observe(f func(*Error)) {
	if f == nil {
		observer.Store(nil)
	} else {
		observer.Store(&f)
	}
}

// NotCreated returns the error for an object that no constructor has created.
func NotCreated(verb string) error {
	return Invalid(verb, "", "the object was never created: it is the zero value of its type")
}
