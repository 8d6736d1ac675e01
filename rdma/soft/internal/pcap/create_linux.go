// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// open opens a file for writing without following links. A FIFO must have a reader.
func open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	switch {
	case errors.Is(err, unix.ENXIO):
		err = &os.PathError{Op: "open", Path: name, Err: errors.New("no process reads the FIFO")}
	case errors.Is(err, unix.ELOOP):
		err = &os.PathError{Op: "open", Path: name, Err: errors.New("it is a symbolic link")}
	}
	return f, err
}

// own returns an error for a file or FIFO of another user, and for a file with several names, which another user may
// have linked. It locks the file against other processes until it is closed.
func own(f *os.File, info os.FileInfo) error {
	of := info.Sys().(*syscall.Stat_t)
	regular := info.Mode().IsRegular()
	switch {
	case !regular && info.Mode().Type() != os.ModeNamedPipe:
		return nil
	case int(of.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", of.Uid)
	case !regular:
		return nil
	case of.Nlink > 1:
		return errors.New("the file has more than one link")
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := raw.Control(func(fd uintptr) { locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return err
	}
	if errors.Is(locked, unix.EWOULDBLOCK) {
		locked = errShared
	}
	return locked
}
