// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"errors"
	"syscall"
)

// ErrNotSupported matches every error about a missing library, symbol or slot, or a feature that the build lacks. These
// errors also match syscall.EOPNOTSUPP and errors.ErrUnsupported.
var ErrNotSupported = errors.New("not supported")

// NotSupportedError reports a missing function or library. No C function was called.
type NotSupportedError struct {
	Function string // C name: "ibv_reg_mr_ex"
	Missing  string // the reason: "libibverbs.so.1 does not export it"
	Project  string // the project of the library: "rdma-core", or "" if unknown
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

// CallError reports a failed C function.
type CallError struct {
	Function string // C name: "ibv_create_qp"
	Errno    Errno  // 0 if C failed without an errno
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

// enotsupp is ENOTSUPP of Linux's include/linux/errno.h. The C library does not define it, but drivers return it.
const enotsupp Errno = 524

// Is reports whether target is ErrNotSupported or errors.ErrUnsupported and the errno is EOPNOTSUPP, ENOSYS or the
// kernel's ENOTSUPP, which libraries return if the device lacks a feature.
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

// CodeError reports a C function that failed with its library's own error number.
type CodeError struct {
	Function string // C name: "rpma_peer_new"
	Code     error  // of the library's error type; the CodeError matches it
	// Errno is the value of errno after the C call, or 0. It is the reason if the library reports the failure of
	// another function, and undefined otherwise.
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

// NilError reports a nil pointer that the function must dereference before it can call C. No C function was called.
type NilError struct {
	Function string // C name: "ibv_post_send"
	Argument string // "qp", or "qp.context" for a member of the object
}

func (e *NilError) Error() string { return e.Function + ": " + e.Argument + " is nil" }

// Is reports EINVAL.
func (e *NilError) Is(target error) bool { return target == error(syscall.EINVAL) }
