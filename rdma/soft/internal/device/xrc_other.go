//go:build !linux

package device

import "github.com/goverbs/goverbs/runtime"

// fileName tells which file a descriptor is of; "" is for none. Here no file names a domain.
func fileName(fd int32) (string, runtime.Errno) {
	if fd != -1 {
		return "", eopnotsupp
	}
	return "", 0
}
