// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package rpma

import (
	"os"

	"github.com/goverbs/goverbs/rdma"
)

func open(name string, flags int) (*os.File, error) { return os.OpenFile(name, flags, 0o600) }

func extend(file *os.File, size int64) error { return file.Truncate(size) }

func mapShared(*os.File, int) (b []byte, persistent bool, err error) {
	return nil, false, rdma.ErrNotSupported
}

func syncShared([]byte) error { return rdma.ErrNotSupported }

func unmapShared([]byte) error { return rdma.ErrNotSupported }
