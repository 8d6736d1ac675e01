package rdma

import "github.com/goverbs/goverbs/rdma/internal/verberr"

// VerbError says which verb failed on which object, and why as far as it is known. errors.Is finds Errno in it, and whatever is in Err:
// [ErrClosed], [ErrInUse], runtime.ErrNotSupported.
type VerbError = verberr.VerbError

// ErrClosed is what errors.Is finds in the error of every use of an object that is closed, or is being closed.
var ErrClosed = verberr.ErrClosed

// ErrInUse is what errors.Is finds in the error of closing an object that others still need, and EBUSY as well.
var ErrInUse = verberr.ErrInUse

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

// wrap names the object in an error of a call. The verb is that of the call where it is known.
func wrap(verb, object string, err error) error { return verberr.Wrap(verb, object, err) }

// explain is wrap with a reason.
func explain(verb, object, reason string, err error) error {
	return verberr.Explain(verb, object, reason, err)
}

// invalid is an error of a check that C was not asked for.
func invalid(verb, object, format string, args ...any) error {
	return verberr.Invalid(verb, object, format, args...)
}
