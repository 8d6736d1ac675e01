// SPDX-License-Identifier: BSD-2-Clause

package wq

import "github.com/goverbs/goverbs/rdma/internal/verberr"

// Errors that checks give, which users know as those of package rdma.
const (
	ebusy  = verberr.EBUSY
	einval = verberr.EINVAL
	eperm  = verberr.EPERM
	enomem = verberr.ENOMEM
	eio    = verberr.EIO
	enoent = verberr.ENOENT
)

var (
	ErrClosed = verberr.ErrClosed
	ErrInUse  = verberr.ErrInUse
)

// invalid is the error of a check, of something that has no name.
func invalid(format string, args ...any) error { return verberr.Invalid("", "", format, args...) }

// closed is the error of every use of something that is closed.
func closed(what string) error {
	return &verberr.VerbError{Object: what, Errno: einval, Err: ErrClosed}
}
