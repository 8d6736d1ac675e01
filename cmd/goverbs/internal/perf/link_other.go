// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package perf

import "os"

// readLink returns the target of a link of this user or of root, or "" for a name that is not a link.
func readLink(name string) (string, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil || info.Mode()&os.ModeSymlink == 0:
		return "", err
	case foreign(info):
		return "", linkOfAnother(name)
	}
	return os.Readlink(name)
}
