// SPDX-License-Identifier: BSD-2-Clause

// Package leave lets a process end that has descriptors which the kernel may take long to close. Linux 6.1 closes an
// end of a connection of the connection manager when what it sent has left the host: behind a firewall that drops it,
// never. A process waits for that even when it is killed; so another one has the descriptors, too, and closes them
// last.
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

// word is the first argument of the process that has the descriptors.
const word = "-close-for"

// managers is the device of the kernel's connection manager, at its usual names.
var managers = []string{"/dev/infiniband/rdma_cm", "/dev/rdma_cm"}

// Manager leaves all descriptors of the kernel's connection manager that this process has, and says if there are any:
// then it is to end without closing what is connected.
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

// Descriptors starts a process of this program that has the descriptors, too, and ends after this process has.
func Descriptors(all ...int) (err error) {
	if len(all) == 0 {
		return nil
	}
	// By now, another file may have this program's name.
	cmd := exec.Command("/proc/self/exe", word, strconv.Itoa(os.Getpid()))
	cmd.Dir = "/" // it keeps no file system busy
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
	return errors.Join(err, cmd.Start()) // nobody waits for it
}

// Holds says whether this process, of such arguments, is the other one. Then the first one has ended, and it is to end.
func Holds(args []string) bool {
	if len(args) != 2 || args[0] != word {
		return false
	}
	for of, _ := strconv.Atoi(args[1]); os.Getppid() == of; {
		time.Sleep(20 * time.Millisecond)
	}
	return true
}
