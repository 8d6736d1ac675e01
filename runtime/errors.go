// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"errors"
	"syscall"
)

// ErrNotSupported is what errors.Is finds in every error about a missing library, symbol or slot, or about a build that
// lacks something. errors.Is finds syscall.EOPNOTSUPP and errors.ErrUnsupported in them as well.
var ErrNotSupported = errors.New("not supported")

// NotSupportedError says what is missing. No C function was called.
type NotSupportedError struct {
	Function string // C name: "ibv_reg_mr_ex"
	Missing  string // the missing thing: "libibverbs.so.1 does not export it"
	Project  string // whose library has to have it: "rdma-core", or "" for a library of nobody's that is known
	Since    string // first pinned release of the project that has it, or ""
	Err      error  // the cause, or nil
}

func (e *NotSupportedError) Error() string {
	s := e.Missing
	if e.Function != "" {
		s = e.Function + ": " + s
	}
	if e.Since != "" {
		who := e.Project
		if who == "" {
			who = "the library"
		}
		s += " (" + who + " has it since " + e.Since + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports ErrNotSupported, errors.ErrUnsupported and EOPNOTSUPP.
func (e *NotSupportedError) Is(target error) bool {
	return target == ErrNotSupported || target == errors.ErrUnsupported || target == error(syscall.EOPNOTSUPP)
}

func (e *NotSupportedError) Unwrap() error { return e.Err }

// CallError says that a C function failed.
type CallError struct {
	Function string // C name: "ibv_create_qp"
	Errno    Errno  // 0 when C failed without a reason
}

func (e *CallError) Error() string {
	if e.Errno == 0 {
		return e.Function + ": failed without an error number"
	}
	text := e.Errno.Error()
	if e.Errno == enotsupp {
		text = "not supported by the kernel or its driver (ENOTSUPP, errno 524)"
	}
	if e.Function == "" {
		return text
	}
	return e.Function + ": " + text
}

// enotsupp is ENOTSUPP of Linux's include/linux/errno.h. The C library does not know it, but drivers let it through.
const enotsupp Errno = 524

// Is reports ErrNotSupported for EOPNOTSUPP, ENOSYS and the kernel's ENOTSUPP, which a library returns if the device
// lacks something, and errors.ErrUnsupported.
func (e *CallError) Is(target error) bool {
	return (target == ErrNotSupported || target == errors.ErrUnsupported) &&
		(e.Errno == syscall.EOPNOTSUPP || e.Errno == syscall.ENOSYS || e.Errno == enotsupp)
}

func (e *CallError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// CodeError says that a C function failed with an error number of its library's own.
type CodeError struct {
	Function string // C name: "rpma_peer_new"
	Code     error  // of the library's type of errors; errors.Is finds it
	// Errno is what the C call left in errno, or 0. It is the reason where the library reports the failure of another
	// one, and may be anything where it does not.
	Errno Errno
}

func (e *CodeError) Error() string {
	s := e.Function + ": " + e.Code.Error()
	if e.Errno != 0 {
		s += " (errno: " + e.Errno.Error() + ")"
	}
	return s
}

func (e *CodeError) Unwrap() error { return e.Code }

// NilError says that a pointer is nil that the function has to follow before it can call C. No C function was called.
type NilError struct {
	Function string // C name: "ibv_post_send"
	Argument string // "qp", or "qp.context" for a member of the object
}

func (e *NilError) Error() string { return e.Function + ": " + e.Argument + " is nil" }

// Is reports EINVAL.
func (e *NilError) Is(target error) bool { return target == error(syscall.EINVAL) }
