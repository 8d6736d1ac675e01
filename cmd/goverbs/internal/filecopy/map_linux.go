// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives a file its blocks.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err == unix.EOPNOTSUPP { // of the file system
		return f.Truncate(size)
	}
	if err != nil {
		return fmt.Errorf("%s: no room for %d bytes: %w", f.Name(), size, err)
	}
	return nil
}

// mapped is a file in memory that is read alone.
type mapped struct{ bytes []byte }

func mapFile(name string) (*mapped, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file, which alone can be mapped", name)
	}
	if info.Size() == 0 {
		return &mapped{}, nil
	}
	// Regions that are written from have local write access, as librpma's have; nobody writes.
	bytes, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &mapped{bytes}, nil
}

// Close unmaps the file.
func (m *mapped) Close() error {
	if m.bytes == nil {
		return nil
	}
	return unix.Munmap(m.bytes)
}
