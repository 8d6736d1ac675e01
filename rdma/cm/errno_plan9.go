package cm

import "github.com/goverbs/goverbs/runtime"

// Those of Linux: Plan 9 has no numbers.
const (
	eacces          runtime.Errno = 13
	eaddrinuse      runtime.Errno = 98
	eaddrnotavail   runtime.Errno = 99
	eagain          runtime.Errno = 11
	ebusy           runtime.Errno = 16
	econnrefused    runtime.Errno = 111
	econnreset      runtime.Errno = 104
	ehostunreach    runtime.Errno = 113
	einval          runtime.Errno = 22
	eio             runtime.Errno = 5
	eisconn         runtime.Errno = 106
	enetunreach     runtime.Errno = 101
	enodev          runtime.Errno = 19
	enoent          runtime.Errno = 2
	eopnotsupp      runtime.Errno = 95
	eperm           runtime.Errno = 1
	epipe           runtime.Errno = 32
	eproto          runtime.Errno = 71
	eprotonosupport runtime.Errno = 93
	etimedout       runtime.Errno = 110
)
