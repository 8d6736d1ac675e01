// SPDX-License-Identifier: BSD-2-Clause

// Package rights reports whether a program has elevated privileges, so that it must not trust its environment.
package rights

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// More reports whether the process has elevated privileges: AT_SECURE of getauxval(3). It must then not load or open
// files named in the environment.
var More = sync.OnceValue(func() bool {
	const atSecure = 23 // from linux/auxvec.h
	all, err := unix.Auxv()
	for _, entry := range all {
		if entry[0] == atSecure {
			return entry[1] != 0
		}
	}
	return err != nil || unix.Getuid() != unix.Geteuid() || unix.Getgid() != unix.Getegid()
})

// Getenv is os.Getenv, but returns "" if the process has elevated privileges.
func Getenv(name string) string {
	if More() {
		return ""
	}
	return os.Getenv(name)
}
