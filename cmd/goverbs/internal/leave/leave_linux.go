// SPDX-License-Identifier: BSD-2-Clause

// Package leave lets a process exit although the kernel may take long to close some of its descriptors. Linux 6.1
// closes a connection of the connection manager only after its packets have left the host, which never happens if a
// firewall drops them, and even a killed process waits for that. So a second process holds the descriptors, too, and
// closes them last.
package leave

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// closeForArg is the first argument of the second process.
const closeForArg = "-close-for"

// managers lists the device names of the kernel's connection manager.
var managers = []string{"/dev/infiniband/rdma_cm", "/dev/rdma_cm"}

// Manager passes all open descriptors of the kernel's connection manager to a second process and reports whether there
// are any: then the caller must exit without closing its connections.
func Manager() (left bool, err error) {
	const own = "/proc/self/fd"
	names, err := os.ReadDir(own)
	if err != nil {
		return false, err
	}
	var all []int
	for _, name := range names {
		of, err := os.Readlink(filepath.Join(own, name.Name()))
		if fd, bad := strconv.Atoi(name.Name()); err == nil && bad == nil && slices.Contains(managers, of) {
			all = append(all, fd)
		}
	}
	return len(all) > 0, Descriptors(all...)
}

// Descriptors starts a second process with these descriptors, which exits after this process.
func Descriptors(all ...int) (err error) {
	if len(all) == 0 {
		return nil
	}
	// The program's file may have been replaced.
	cmd := exec.Command("/proc/self/exe", closeForArg, strconv.Itoa(os.Getpid()))
	cmd.Dir = "/" // keep no file system busy
	for _, fd := range all {
		copied, bad := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		file := os.NewFile(uintptr(copied), "left")
		defer file.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	return errors.Join(err, cmd.Start()) // not waited for
}

// Holds reports whether this process, by its arguments, is the second process. It returns after the first has exited.
func Holds(args []string) bool {
	if len(args) != 2 || args[0] != closeForArg {
		return false
	}
	for of, _ := strconv.Atoi(args[1]); os.Getppid() == of; {
		time.Sleep(20 * time.Millisecond)
	}
	return true
}
