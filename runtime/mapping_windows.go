package runtime

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapMemory(size int, o MapOptions) ([]byte, error) {
	if o != (MapOptions{}) {
		return nil, &NotSupportedError{Missing: "huge pages and NUMA nodes can be chosen on Linux only"}
	}
	size = roundUp(size, pageSize())
	p, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(pointer(p)), size), nil
}

func unmapMemory(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}

// mapGuarded maps size bytes behind guard bytes that nothing can access.
func mapGuarded(guard, size int) (*Mapping, error) {
	p, err := windows.VirtualAlloc(0, uintptr(guard+size), windows.MEM_RESERVE, windows.PAGE_NOACCESS)
	if err != nil {
		return nil, err
	}
	m := &Mapping{bytes: unsafe.Slice((*byte)(pointer(p)), guard+size)}
	if err := commit(p+uintptr(guard), uintptr(size)); err != nil {
		unmapMemory(m.bytes)
		return nil, err
	}
	return m, nil
}

// reserve reserves addresses that nothing can read or write.
func reserve(size uintptr) (uintptr, error) {
	return windows.VirtualAlloc(0, size, windows.MEM_RESERVE, windows.PAGE_NOACCESS)
}

// commit turns reserved addresses into memory.
func commit(address, size uintptr) error {
	_, err := windows.VirtualAlloc(address, size, windows.MEM_COMMIT, windows.PAGE_READWRITE)
	return err
}
