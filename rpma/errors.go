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

// Error says which operation failed and why. errors.Is finds Code, and what is in Err.
type Error struct {
	Op     string // "Conn.Flush"
	Code   Code   // what librpma returns in the same situation
	Reason string // what was wrong and what would be right, or ""
	Err    error  // what is behind it, or nil
}

// Error returns the operation, the reason and what is behind it.
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

// Is reports the code, and EINVAL or rdma.ErrNotSupported if the code stands for it.
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

// Timeout reports whether a context's deadline has passed, as net.Error has it.
func (e *Error) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// CodeOf returns librpma's number of an error of any package: that of an [Error] or a [Code] in it, ErrProvider for
// anything else, and 0 for nil.
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

// invalid is the error of a check.
func invalid(op, format string, args ...any) error {
	return &Error{Op: op, Code: ErrInvalid, Reason: fmt.Sprintf(format, args...)}
}

// unsupported is the error of something that a device, a peer or a region lacks.
func unsupported(op, format string, args ...any) error {
	return &Error{Op: op, Code: ErrNotSupported, Reason: fmt.Sprintf(format, args...)}
}

// failed wraps an error of package rdma or of the system, which librpma would report as that of the provider. An Error
// keeps its code.
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

// neverMade is the error of a method of nil, or of the zero value of a type that needs a constructor. A type's made
// says whether it is neither.
func neverMade(op string) error {
	return invalid(op, "the object was never created: it is nil, or the zero value of its type")
}

// closed is the error of a method of a closed object.
func closed(op string) error { return &Error{Op: op, Code: ErrInvalid, Err: rdma.ErrClosed} }
