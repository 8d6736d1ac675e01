package device

import "github.com/goverbs/goverbs/runtime"

const (
	eperm           runtime.Errno = 1
	enoent          runtime.Errno = 2
	eio             runtime.Errno = 5
	eagain          runtime.Errno = 11
	enomem          runtime.Errno = 12
	efault          runtime.Errno = 14
	ebusy           runtime.Errno = 16
	einval          runtime.Errno = 22
	enodata         runtime.Errno = 61
	eopnotsupp      runtime.Errno = 95
	eprotonosupport runtime.Errno = 93
	enosys          runtime.Errno = 38
	enodev          runtime.Errno = 19
	eisconn         runtime.Errno = 106
	etimedout       runtime.Errno = 110
	eaddrinuse      runtime.Errno = 98
	eaddrnotavail   runtime.Errno = 99
	econnrefused    runtime.Errno = 111
)
