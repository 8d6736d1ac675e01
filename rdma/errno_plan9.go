package rdma

import "github.com/goverbs/goverbs/runtime"

const (
	einval runtime.Errno = 22
	enomem runtime.Errno = 12
	eio    runtime.Errno = 5
	enoent runtime.Errno = 2
)
