// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// userfaultfd: names and numbers of linux/userfaultfd.h.
const (
	userModeOnly = 1 // UFFD_USER_MODE_ONLY: do not report kernel faults; none occur here

	apiVersion      = 0xaa
	featureWP       = 1 << 0
	featureRemap    = 1 << 2
	featureRemove   = 1 << 3
	featureUnmap    = 1 << 6
	modeWP          = 2 // report accesses to write-protected pages; none exist here
	ioctlAPI        = 0xc018aa3f
	ioctlRegister   = 0xc020aa00
	ioctlUnregister = 0x8010aa01
	ioctlProtect    = 0xc018aa06
	eventRemap      = 0x14
	eventRemove     = 0x15
	eventUnmap      = 0x16
)

// event is struct uffd_msg for the events above.
type event struct {
	kind byte
	_    [7]byte
	args [3]uint64 // remap: from, to, length; others: start, end
}

// open returns a non-blocking descriptor.
func open() (uintptr, error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags|userModeOnly, 0, 0)
	if errno == unix.EINVAL { // before Linux 5.11; allowed for everyone unless vm.unprivileged_userfaultfd is 0
		fd, _, errno = unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	}
	if errno != 0 {
		return 0, os.NewSyscallError("userfaultfd", errno)
	}
	api := [3]uint64{apiVersion, featureRemap | featureRemove | featureUnmap, 0}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&api)))
	var err error
	if errno != 0 {
		err = os.NewSyscallError("userfaultfd", errno)
	} else if api[1]&featureWP == 0 {
		err = fmt.Errorf("userfaultfd has no write protection on this machine: %w", unix.EOPNOTSUPP)
	}
	if err != nil {
		unix.Close(int(fd))
	}
	return fd, err
}

func register(fd, start, end uintptr) error {
	args := [4]uint64{uint64(start), uint64(end - start), modeWP, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&args))); errno != 0 {
		return os.NewSyscallError("userfaultfd", errno)
	}
	return nil
}

// steady reports whether no change of watched memory is pending. A change is pending from its start until its report is
// read. The kernel checks that before it checks the range, which is empty here: EINVAL.
func steady(fd uintptr) bool {
	var args [3]uint64
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, fd, ioctlProtect, uintptr(unsafe.Pointer(&args)))
	return errno == unix.EINVAL
}

// next reads one report.
func next(fd uintptr) (event, error) {
	var e event
	n, err := unix.Read(int(fd), unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)))
	if err == nil && n != int(unsafe.Sizeof(e)) {
		err = fmt.Errorf("userfaultfd: a report of %d bytes", n)
	}
	return e, err
}

// try tests whether this kernel reports changes, and whether steady detects pending ones.
func try(fd uintptr) error {
	for _, change := range []struct {
		kind byte
		make func([]byte) error
	}{
		{eventRemove, func(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }},
		{eventUnmap, unix.Munmap},
	} {
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		start := uintptr(unsafe.Pointer(&page[0]))
		if err := register(fd, start, start+uintptr(len(page))); err != nil {
			unix.Munmap(page)
			return err
		}
		if !steady(fd) {
			return errUnexpected
		}
		done := make(chan error, 1)
		go func() { done <- change.make(page) }()
		e, err := await(fd)
		if err != nil || e.kind != change.kind || uintptr(e.args[0]) != start {
			return errors.Join(errUnexpected, err)
		}
		if err := <-done; err != nil {
			return err
		}
		if !steady(fd) {
			return errUnexpected
		}
		if change.kind == eventRemove {
			args := [2]uint64{uint64(start), uint64(len(page))}
			unix.Syscall(unix.SYS_IOCTL, fd, ioctlUnregister, uintptr(unsafe.Pointer(&args)))
			unix.Munmap(page)
		}
	}
	return nil
}

var errUnexpected = fmt.Errorf("userfaultfd does not report changes as expected: %w", unix.EOPNOTSUPP)

// await waits for a report, and verifies that steady detects the change until the report is read.
func await(fd uintptr) (event, error) {
	const patience = 10_000 // timeout in ms
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return event{}, err
		case n == 0:
			return event{}, errors.New("userfaultfd reports no change")
		case steady(fd):
			return event{}, errors.New("userfaultfd does not show pending changes")
		default:
			return next(fd)
		}
	}
}

// private returns an error unless all of the memory is private and anonymous. Other processes can remove pages of files
// and shared memory without a report.
func private(start, end uintptr) error {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		from, to, rights, inode, err := mapping(lines.Text())
		if err != nil {
			return err
		}
		if to <= start {
			continue
		}
		if from > start {
			break
		}
		if !strings.HasSuffix(rights, "p") || inode != "0" {
			return fmt.Errorf("the memory is shared or a file: %q", lines.Text())
		}
		if start = to; start >= end {
			return nil
		}
	}
	return fmt.Errorf("no memory is mapped at %#x", start)
}

// mapping parses a line of /proc/self/maps: range, permissions, offset, device, inode, and an optional name.
func mapping(line string) (from, to uintptr, rights, inode string, err error) {
	cells := strings.Fields(line)
	if len(cells) < 5 {
		return 0, 0, "", "", fmt.Errorf("/proc/self/maps: %q", line)
	}
	first, last, _ := strings.Cut(cells[0], "-")
	low, err := strconv.ParseUint(first, 16, 64)
	high, err2 := strconv.ParseUint(last, 16, 64)
	if err = cmp.Or(err, err2); err != nil {
		err = fmt.Errorf("/proc/self/maps: %q: %w", line, err)
	}
	return uintptr(low), uintptr(high), cells[1], cells[4], err
}
