// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"os"

	"golang.org/x/sys/unix"
)

// readLink returns the target of a link of this user or of root, or "" for a name that is not a link. Owner and target
// are read from one file, even if another takes its name.
func readLink(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case info.Mode()&os.ModeSymlink == 0:
		return "", nil
	case foreign(info):
		return "", linkOfAnother(name)
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(text[:n]), nil
}
