// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// deviceMemory is mapped memory of the device.
type deviceMemory struct {
	file    *driver.File
	mapping []byte
	start   int // of the memory in the mapping
}

// AllocDM implements [driver.DeviceMemory].
func (d *device) AllocDM(r *driver.Request, length uint64, send func() syscall.Errno) (driver.DM, syscall.Errno) {
	const general = 0 // MLX5_IB_UAPI_DM_TYPE_MEMIC
	kind := r.Attr(uint16(uapi.MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE), 8, general)
	kind.Flags &^= uapi.UVERBS_ATTR_F_MANDATORY // unknown to kernels that have no other type
	start := r.Output(uint16(uapi.MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET), 8)
	index := r.Output(uint16(uapi.MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX), 2)
	if errno := send(); errno != 0 {
		return nil, errno
	}
	size := uint64(os.Getpagesize())
	place := uint64(binary.NativeEndian.Uint16(index))
	place = place&0xff | place>>8<<16 | uint64(uapi.MLX5_IB_MMAP_DEVICE_MEM)<<8 // in pages
	m := &deviceMemory{file: d.file, start: int(binary.NativeEndian.Uint64(start) & (size - 1))}
	var errno syscall.Errno
	m.mapping, errno = d.file.Kernel.Mmap(d.file.FD, int64(place*size), int((length+size-1)/size*size))
	if errno != 0 {
		return nil, errno
	}
	if uint64(m.start)+length > uint64(len(m.mapping)) { // it would end outside of the mapping
		m.Free()
		return nil, syscall.EINVAL
	}
	return m, 0
}

// Bytes implements [driver.DM].
func (m *deviceMemory) Bytes() []byte { return m.mapping[m.start:] }

// Free implements [driver.DM].
func (m *deviceMemory) Free() { m.file.Kernel.Munmap(m.mapping) }
