// SPDX-License-Identifier: BSD-2-Clause

package fd

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// Memory is memory backed by a file: a new one, or that of the program's descriptor.
type Memory struct {
	bytes []byte // complete pages
	skip  int    // bytes before the requested range
	own   int    // descriptor of a new file, or −1
}

// NewMemory returns zeroed memory that others can map by its descriptor. The size of its file is sealed, so that no
// process can truncate memory in use.
func NewMemory(size int) (*Memory, runtime.Errno) {
	page := os.Getpagesize()
	whole := (max(size, 1) + page - 1) &^ (page - 1)
	if whole < size || exceedsLimit(uint64(whole)) {
		return nil, syscall.ENOMEM
	}
	file, err := unix.MemfdCreate("goverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, errnoOf(err)
	}
	m := &Memory{own: file}
	if err = unix.Ftruncate(file, int64(whole)); err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		m.bytes, err = unix.Mmap(file, 0, whole, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(file)
		return nil, syscall.ENOMEM
	}
	return m, 0
}

// exceedsLimit reports whether a file may not have this size. Exceeding the limit raises SIGXFSZ, which ends C
// programs.
func exceedsLimit(size uint64) bool {
	var limit unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur < size
}

// MapMemory maps and populates a part of a file. The descriptor may be closed afterwards. It returns EINVAL if the part
// exceeds the file, or if the file cannot be mapped.
func MapMemory(file int32, offset, length uint64, write bool) (*Memory, runtime.Errno) {
	var s unix.Stat_t
	if err := unix.Fstat(int(file), &s); err != nil {
		return nil, errnoOf(err)
	}
	if s.Size < 0 || offset > uint64(s.Size) || length == 0 || length > uint64(s.Size)-offset {
		return nil, syscall.EINVAL
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	skip := offset & uint64(os.Getpagesize()-1)
	bytes, err := unix.Mmap(int(file), int64(offset-skip), int(length+skip), protection,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, syscall.EINVAL
	case err != nil:
		return nil, errnoOf(err)
	}
	return &Memory{bytes: bytes, skip: int(skip), own: -1}, 0
}

// Address returns the memory's address, or 0 after Close.
func (m *Memory) Address() uint64 {
	if m.bytes == nil {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&m.bytes[m.skip])))
}

// Export returns a descriptor of the memory's file. The caller closes it.
func (m *Memory) Export() (int32, runtime.Errno) {
	file, err := unix.FcntlInt(uintptr(m.own), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, errnoOf(err)
	}
	return int32(file), 0
}

// Close unmaps the memory. The file exists as long as it has descriptors.
func (m *Memory) Close() {
	unix.Munmap(m.bytes)
	if m.bytes = nil; m.own >= 0 {
		unix.Close(m.own)
	}
}

func errnoOf(err error) runtime.Errno {
	if errno, ok := err.(runtime.Errno); ok {
		return errno
	}
	return syscall.ENOMEM
}
