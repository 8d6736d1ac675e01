// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kernel is the set of system calls that a Backend makes on device files. The zero value of [System] makes them; tests
// replace it.
type Kernel interface {
	// Devices returns the uverbs devices of this network namespace.
	Devices() ([]DeviceInfo, error)
	// CopyOnFork reports whether a fork copies the pages of registered memory, which Linux does since 5.12.
	CopyOnFork() bool
	// Open opens a device file for reading and writing, close-on-exec.
	Open(path string) (fd int32, errno syscall.Errno)
	// Ioctl passes the address of a command, which is not in Go's heap.
	Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno
	// Mmap maps length bytes of the file at offset, shared, for reading and writing.
	Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno)
	Munmap(b []byte) syscall.Errno
	Read(fd int32, b []byte) (n int, errno syscall.Errno)
	// Write passes a command of the connection manager. One that gets an event waits for it, unless the file is
	// nonblocking.
	Write(fd int32, b []byte) (n int, errno syscall.Errno)
	Close(fd int32) syscall.Errno
}

// DeviceInfo describes a device that the kernel lists.
type DeviceInfo struct {
	Name     string // "rxe0"
	Path     string // "/dev/infiniband/uverbs0"
	Driver   uint32 // uapi.RDMADriverID
	Index    int
	NodeType uint8
	NodeGUID uint64 // bytes in network order
}

// System is the Kernel of this system.
type System struct{}

func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	return syscall.EIO
}

// Open implements Kernel.
func (System) Open(path string) (int32, syscall.Errno) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return int32(fd), errnoOf(err)
}

// Ioctl implements Kernel.
func (System) Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(command))
		if errno != syscall.EINTR {
			return errno
		}
	}
}

// Mmap implements Kernel.
func (System) Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno) {
	b, err := unix.Mmap(int(fd), offset, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errnoOf(err)
	}
	// A child of fork must not share queues with the device.
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		unix.Munmap(b)
		return nil, errnoOf(err)
	}
	return b, 0
}

// Munmap implements Kernel.
func (System) Munmap(b []byte) syscall.Errno { return errnoOf(unix.Munmap(b)) }

// Read implements Kernel.
func (System) Read(fd int32, b []byte) (int, syscall.Errno) {
	n, err := unix.Read(int(fd), b)
	return max(n, 0), errnoOf(err)
}

// Write implements Kernel.
func (System) Write(fd int32, b []byte) (int, syscall.Errno) {
	for {
		n, err := unix.Write(int(fd), b)
		if err != unix.EINTR {
			return max(n, 0), errnoOf(err)
		}
	}
}

// Close implements Kernel.
func (System) Close(fd int32) syscall.Errno { return errnoOf(unix.Close(int(fd))) }

// pkey reads an entry of a port's P_Key table, which the kernel shows in sysfs only.
func pkey(device string, port uint8, index int32) (uint16, syscall.Errno) {
	text, err := os.ReadFile(pkeyPath(device, port, index))
	if err != nil {
		return 0, syscall.ENOENT
	}
	return parsePKey(text)
}
