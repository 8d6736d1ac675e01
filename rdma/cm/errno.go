//go:build !plan9

package cm

import "syscall"

const (
	eacces          = syscall.EACCES
	eaddrinuse      = syscall.EADDRINUSE
	eaddrnotavail   = syscall.EADDRNOTAVAIL
	eagain          = syscall.EAGAIN
	ebusy           = syscall.EBUSY
	econnrefused    = syscall.ECONNREFUSED
	econnreset      = syscall.ECONNRESET
	ehostunreach    = syscall.EHOSTUNREACH
	einval          = syscall.EINVAL
	eio             = syscall.EIO
	eisconn         = syscall.EISCONN
	enetunreach     = syscall.ENETUNREACH
	enodev          = syscall.ENODEV
	enoent          = syscall.ENOENT
	eopnotsupp      = syscall.EOPNOTSUPP
	eperm           = syscall.EPERM
	epipe           = syscall.EPIPE
	eproto          = syscall.EPROTO
	eprotonosupport = syscall.EPROTONOSUPPORT
	etimedout       = syscall.ETIMEDOUT
)
