// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || !(amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x)

package native

import (
	"fmt"
	goruntime "runtime"

	"github.com/goverbs/goverbs/runtime"
)

// Backend has the functions of libibverbs on 64-bit Linux.
type Backend struct{}

// Open fails on this system with [runtime.ErrNotSupported].
func Open() (*Backend, error) {
	return nil, fmt.Errorf("native: %s/%s: %w: only 64-bit Linux has RDMA for programs", goruntime.GOOS,
		goruntime.GOARCH, runtime.ErrNotSupported)
}

// Function implements [runtime.Backend].
func (*Backend) Function(string, string) runtime.Func { return nil }
