// SPDX-License-Identifier: BSD-2-Clause

//go:build unix && !linux

package offheap

import (
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

func mapMemory(size int, o Options) ([]byte, error) {
	if o != (Options{}) {
		return nil, &runtime.NotSupportedError{Missing: "huge pages and NUMA nodes can be chosen on Linux only"}
	}
	return unix.Mmap(-1, 0, roundUp(size, pageSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }

func discard([]byte) error { return nil }
