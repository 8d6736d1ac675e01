// SPDX-License-Identifier: BSD-2-Clause

// Package rights reports whether a program has more rights than its user, whose environment must then not be trusted.
package rights

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// More reports whether the process has more rights than its user: AT_SECURE of getauxval(3). Files named in the
// environment must then not be loaded or opened.
var More = sync.OnceValue(func() bool {
	const atSecure = 23 // of linux/auxvec.h
	all, err := unix.Auxv()
	for _, entry := range all {
		if entry[0] == atSecure {
			return entry[1] != 0
		}
	}
	return err != nil || unix.Getuid() != unix.Geteuid() || unix.Getgid() != unix.Getegid()
})

// Getenv is like os.Getenv, but returns "" if the process has more rights than its user.
func Getenv(name string) string {
	if More() {
		return ""
	}
	return os.Getenv(name)
}
