// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// none stands for an answer that a command lacks.
type none struct{}

// write sends a command without a part of the driver.
func write[Out, In any](c *context, number uapi.IBUverbsWriteCmds, in *In) (out Out, errno syscall.Errno) {
	errno = c.Write(number, driver.Bytes(in), driver.Bytes(&out), nil, nil)
	return out, errno
}

// command returns a command to which the driver adds its part. sent is set when the kernel has executed it.
func command[In, Out any](c *context, number uapi.IBUverbsWriteCmds, in *In, out *Out, sent *bool) driver.Command {
	return func(driverIn, driverOut []byte) syscall.Errno {
		errno := c.Write(number, driver.Bytes(in), driver.Bytes(out), driverIn, driverOut)
		*sent = errno == 0
		return errno
	}
}
