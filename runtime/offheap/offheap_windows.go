// SPDX-License-Identifier: BSD-2-Clause

package offheap

import (
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/goverbs/goverbs/runtime"
)

func mapMemory(size int, o Options) ([]byte, error) {
	if o != (Options{}) {
		return nil, &runtime.NotSupportedError{Missing: "huge pages and NUMA nodes can be chosen on Linux only"}
	}
	size = roundUp(size, pageSize())
	p, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), size), nil
}

func unmapMemory(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}

func discard([]byte) error { return nil }
