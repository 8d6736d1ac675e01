// SPDX-License-Identifier: BSD-2-Clause

package fd

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// Commands is the file whose descriptor identifies an open device to other users of it.
type Commands struct{ file int }

// NewCommands creates such a file, which contains its owner.
func NewCommands() (*Commands, runtime.Errno) {
	file, err := unix.MemfdCreate("goverbs-commands", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, errnoOf(err)
	}
	if exceedsLimit(uint64(len(owner()))) {
		err = unix.EFBIG
	} else if _, err = unix.Write(file, []byte(owner())); err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(file)
		return nil, errnoOf(err)
	}
	return &Commands{file}, 0
}

// TakeCommands wraps a descriptor of the program, which Close closes.
func TakeCommands(file int32) *Commands { return &Commands{int(file)} }

const ownersOf = "goverbs: an open software device of process "

func owner() string { return fmt.Sprintf("%s%d\n", ownersOf, os.Getpid()) }

// WhyNoCommands returns the errno for a descriptor of no open device of this process: EOPNOTSUPP for a device of
// another process, ENODEV for one that was closed or belongs to another fabric, EINVAL for other files.
func WhyNoCommands(file int32) runtime.Errno {
	seals, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		return syscall.EINVAL
	}
	var b [len(ownersOf) + 32]byte
	n, err := unix.Pread(int(file), b[:], 0)
	switch {
	case err != nil || n < len(ownersOf) || string(b[:len(ownersOf)]) != ownersOf:
		return syscall.EINVAL
	case string(b[:n]) != owner():
		return syscall.EOPNOTSUPP
	}
	return syscall.ENODEV
}

func (c *Commands) Descriptor() int32 { return int32(c.file) }

func (c *Commands) Close() { unix.Close(c.file) }
