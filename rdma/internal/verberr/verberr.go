// SPDX-License-Identifier: BSD-2-Clause

// Package verberr has the errors of verbs: the failed verb, its object, and the reason if known. It is for rdma and the
// packages below it, which cannot name rdma.VerbError.
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

// Error has the fields and the methods of rdma.VerbError.
type Error struct {
	Verb   string        // "ibv_create_qp"
	Object string        // "QP 0x12", "mlx5_0"
	Errno  runtime.Errno // of C, or of the check that failed; 0: none
	Reason string        // the problem and a hint, or ""
	Err    error         // the underlying error, or nil
}

// Conversions between Error and rdma.VerbError. Without package rdma, in tests, there is Error alone.
var (
	public = func(e *Error) error { return e }
	of     = func(err error) *Error { e, _ := err.(*Error); return e }
	within = func(err error) (e *Error) { errors.As(err, &e); return e }
)

// Declared stands for the conversions of rdma.VerbError.
type Declared struct{}

// Declare sets the conversions: of returns nil for other errors, and within searches the chain of wrapped errors.
// Package rdma calls it when it is initialized.
func Declare(toPublic func(*Error) error, fromPublic, searched func(error) *Error) Declared {
	public, of, within = toPublic, fromPublic, searched
	return Declared{}
}

// New returns an rdma.VerbError.
func New(e Error) error { return public(&e) }

// Of returns the content of an rdma.VerbError, which must not be changed, or nil if err is none.
func Of(err error) *Error { return of(err) }

// ErrClosed matches the error of every use of an object that is closed or being closed.
var ErrClosed = errors.New("closed")

// ErrInUse matches the error of closing an object that others need, which also matches EBUSY.
var ErrInUse = errors.New("in use")

// Error returns the verb, the object, the reason, and the errno or the underlying error.
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

// Text names an errno. Go's syscall package does not know the kernel's ENOTSUPP.
func Text(errno runtime.Errno) string { return (&runtime.CallError{Errno: errno}).Error() }

// Is reports whether target is Errno, or runtime.ErrNotSupported if Errno means that.
func (e *Error) Is(target error) bool {
	errno, ok := target.(runtime.Errno)
	return ok && errno != 0 && errno == e.Errno || (&runtime.CallError{Errno: e.Errno}).Is(target)
}

// Timeout reports whether a context's deadline has passed, so that a net.OpError with this error is a timeout, too.
func (e *Error) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Wrap adds the object to an error of a call. The verb is that of the call if known.
func Wrap(verb, object string, err error) error {
	return Explain(verb, object, "", err)
}

// Explain is Wrap with a reason.
func Explain(verb, object, reason string, err error) error {
	if err == nil {
		return nil
	}
	if inner := of(err); inner != nil { // what it says already is nearer to the cause
		e := *inner
		e.Object, e.Reason = cmp.Or(e.Object, object), cmp.Or(e.Reason, reason)
		if !errors.As(e.Err, new(*runtime.NotSupportedError)) { // which names the function
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
			e.Verb = "" // the message has it
		}
	default:
		if behind := within(err); behind != nil {
			e.Errno = behind.Errno
		}
	}
	return public(e)
}

// Reason is the meaning of an errno of some verbs.
type Reason struct {
	Verbs  []string
	Errno  runtime.Errno
	Reason string // whenever these verbs give it, or said to be one of several
	Source string // a page of rdma-core's manual, or a file of it or of Linux
}

// Injected adds to err that a test made an allocation of the software device fail, if it did.
func Injected(backend any, err error) error {
	b, ok := backend.(interface{ FailedAllocation() bool })
	if !ok || !errors.Is(err, syscall.ENOMEM) || !b.FailedAllocation() {
		return err
	}
	const reason = "this is the failure that Faults.FailAllocation of the software device asks for"
	if e := of(err); e != nil {
		own := *e
		own.Reason = reason
		return public(&own)
	}
	return Explain("", "", reason, err)
}

// Invalid returns the error of a check that failed before C was called.
func Invalid(verb, object, format string, args ...any) error {
	e := &Error{Verb: verb, Object: object, Errno: syscall.EINVAL, Reason: fmt.Sprintf(format, args...)}
	if f := observer.Load(); f != nil {
		(*f)(e)
	}
	return public(e)
}

var observer atomic.Pointer[func(*Error)]

// Observe makes f be called with errors of checks, which C never sees; nil ends that.
func Observe(f func(*Error)) {
	if f == nil {
		observer.Store(nil)
	} else {
		observer.Store(&f)
	}
}

// NotCreated returns the error for an object that is the zero value of its type.
func NotCreated(verb string) error {
	return Invalid(verb, "", "the object was never created: it is the zero value of its type")
}
