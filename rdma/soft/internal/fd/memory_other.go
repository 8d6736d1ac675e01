// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"syscall"

	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Memory is memory outside Go's heap. On this system it has no file.
type Memory struct{ mapping *offheap.Mapping }

// NewMemory returns zeroed memory.
func NewMemory(size int) (*Memory, runtime.Errno) {
	mapping, err := offheap.Map(max(size, 1), offheap.Options{})
	if err != nil {
		return nil, syscall.ENOMEM
	}
	return &Memory{mapping}, 0
}

// MapMemory is not supported.
func MapMemory(file int32, offset, length uint64, write bool) (*Memory, runtime.Errno) {
	return nil, syscall.EOPNOTSUPP
}

// Address returns the memory's address, or 0 after Close.
func (m *Memory) Address() uint64 {
	if m.mapping == nil {
		return 0
	}
	return uint64(m.mapping.Address())
}

// Export is not supported.
func (m *Memory) Export() (int32, runtime.Errno) { return -1, errnos.ENODATA }

// Close unmaps the memory.
func (m *Memory) Close() {
	m.mapping.Close()
	m.mapping = nil
}
