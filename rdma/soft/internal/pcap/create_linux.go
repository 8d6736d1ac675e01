// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// open opens a file to write to it. A FIFO needs a reader.
func open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ENXIO) {
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.New("no process reads the FIFO")}
	}
	return f, err
}

// own keeps other processes that call it from writing to a file until it is closed.
func own(f *os.File) error {
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
