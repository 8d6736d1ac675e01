// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// unnamed can be false in a test, to simulate a file system without unnamed files.
var unnamed = true

// create opens a new file in a directory. If the file system supports it, the file has no name: it disappears if the
// process dies, and no other user can open it.
func create(dir string) (*destination, error) {
	if unnamed {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			d := &destination{file: os.NewFile(uintptr(fd), filepath.Join(dir, "(unnamed)"))}
			if _, err := os.Stat(d.path()); err == nil { // requires /proc
				return d, nil
			}
			d.file.Close()
		}
	}
	f, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return nil, err
	}
	return &destination{file: f, aside: f.Name()}, nil
}

// path returns a name that always refers to the file itself; aside may have been replaced.
func (d *destination) path() string { return fmt.Sprintf("/proc/self/fd/%d", d.file.Fd()) }

// link gives the file its final name, which must not exist.
func (d *destination) link(name string) error {
	err := unix.Linkat(unix.AT_FDCWD, d.path(), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err == nil {
		return nil
	}
	_, hidden := os.Stat(d.path()) // fails if /proc is not mounted
	if d.aside == "" || hidden == nil && !slices.Contains(noLinks, err) {
		return fmt.Errorf("link: %q: %w", name, err)
	}
	return d.rename(name)
}

// noLinks are errors of file systems without hard links.
var noLinks = []error{unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS}

// rename replaces link on such a file system. It checks the identity of the file before and after.
func (d *destination) rename(name string) error {
	temporary, err := d.file.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Lstat(d.aside); err != nil || !os.SameFile(temporary, now) {
		return fmt.Errorf("rename: %q: file was replaced by another program", d.aside)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, d.aside, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename: %q: %w", name, err)
	}
	d.aside = ""
	if now, err := os.Lstat(name); err != nil || !os.SameFile(temporary, now) {
		return fmt.Errorf("rename: %q: file was replaced by another program; do not use it", name)
	}
	return nil
}
