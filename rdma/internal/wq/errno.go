// SPDX-License-Identifier: BSD-2-Clause

package wq

import "github.com/goverbs/goverbs/rdma/internal/verberr"

// Errors that checks give, which users know as those of package rdma.
const (
	einval = verberr.EINVAL
	enomem = verberr.ENOMEM
	eio    = verberr.EIO
	enoent = verberr.ENOENT
)

var (
	ErrClosed = verberr.ErrClosed
	ErrInUse  = verberr.ErrInUse
)
