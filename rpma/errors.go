// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/rdma"
)

// Error reports a failed operation. errors.Is matches Code and the errors in Err.
type Error struct {
	Op     string // the operation, such as "Conn.Flush"
	Code   Code   // librpma's code in the same situation
	Reason string // the problem and a hint, or ""
	Err    error  // the underlying error, or nil
}

// Error returns the operation, the reason and the underlying error.
func (e *Error) Error() string {
	parts := []string{"rpma: " + e.Op}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	if e.Err != nil {
		parts = append(parts, strings.TrimPrefix(e.Err.Error(), "rpma: "))
	} else {
		parts = append(parts, e.Code.Error())
	}
	return strings.Join(parts, ": ")
}

// Is reports whether target is the code, or EINVAL or rdma.ErrNotSupported if the code corresponds to it.
func (e *Error) Is(target error) bool {
	switch {
	case target == e.Code:
		return true
	case e.Err != nil:
		return false
	case e.Code == ErrInvalid:
		return target == error(syscall.EINVAL)
	case e.Code == ErrNotSupported:
		return target == rdma.ErrNotSupported || target == errors.ErrUnsupported
	}
	return false
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether a context's deadline has expired, as in net.Error.
func (e *Error) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// CodeOf returns librpma's code for an error: that of an [Error] or a [Code] in its tree, ErrProvider for other errors,
// and 0 for nil.
func CodeOf(err error) Code {
	var e *Error
	var c Code
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &c):
		return c
	}
	return ErrProvider
}

// invalid returns the error for an invalid argument.
func invalid(op, format string, args ...any) error {
	return &Error{Op: op, Code: ErrInvalid, Reason: fmt.Sprintf(format, args...)}
}

// unsupported returns the error for a missing feature of a device, a peer or a region.
func unsupported(op, format string, args ...any) error {
	return &Error{Op: op, Code: ErrNotSupported, Reason: fmt.Sprintf(format, args...)}
}

// failed wraps an error of package rdma or of the system with ErrProvider. An Error keeps its code.
func failed(op string, err error) error {
	var own *Error
	if errors.As(err, &own) {
		return failedAs(op, own.Code, err)
	}
	return failedAs(op, ErrProvider, err)
}

// failedAs is failed with another code.
func failedAs(op string, code Code, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Code: code, Err: err}
}

// notCreated returns the error of a method on nil or a zero value whose type needs a constructor.
func notCreated(op string) error {
	return invalid(op, "object is nil or a zero value; create it with its constructor")
}

// closed returns the error of a method on a closed object.
func closed(op string) error { return &Error{Op: op, Code: ErrInvalid, Err: rdma.ErrClosed} }
