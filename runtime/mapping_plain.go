//go:build unix && !linux

package runtime

import (
	"golang.org/x/sys/unix"
)

const mapNoReserve = 0

func mapMemory(size int, o MapOptions) ([]byte, error) {
	if o != (MapOptions{}) {
		return nil, &NotSupportedError{Missing: "huge pages and NUMA nodes can be chosen on Linux only"}
	}
	return unix.Mmap(-1, 0, roundUp(size, pageSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}
