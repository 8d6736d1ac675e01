// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// bufRecord stands for a buffer, which programs know by its address only.
type bufRecord struct{ _ uint64 }

// buffer is memory of ibv_alloc_buf.
type buffer struct {
	domain *domain
	record *bufRecord
	memory *offheap.Mapping
	length uint64
}

// allocBuf is ibv_alloc_buf. A buffer may have no bytes.
func (b *Backend) allocBuf(a []uint64) (uint64, runtime.Errno) {
	p, length := find[domain](b, a[0]), a[1]
	if p == nil || a[2] == 0 {
		return 0, syscall.EINVAL
	}
	record, errno := allocate[bufRecord](b)
	if errno != 0 {
		return 0, errno
	}
	memory, err := offheap.Map(int(max(length, 1)), offheap.Options{})
	if err != nil {
		free(b, record)
		return 0, syscall.ENOMEM
	}
	p.context.uses.Add(1)
	b.enter(addressOf(record), &buffer{domain: p, record: record, memory: memory, length: length})
	*ibv.Ptr[uint64](a[2]).Deref() = addressOf(record)
	return uint64(memory.Address()), 0
}

// freeBuf is ibv_free_buf. The kernel keeps the pages of memory that is registered.
func (b *Backend) freeBuf(a []uint64) {
	f := find[buffer](b, a[0])
	if f == nil {
		return
	}
	b.forget(a[0])
	f.memory.Close()
	f.domain.context.uses.Add(-1)
	free(b, f.record)
}

// regBufMR is ibv_reg_buf_mr, which registers a part of a buffer of the same domain.
func (b *Backend) regBufMR(a []uint64) (uint64, runtime.Errno) {
	p, f := find[domain](b, a[0]), find[buffer](b, a[1])
	if p == nil || f == nil || f.domain != p {
		return 0, syscall.EINVAL
	}
	address, length := a[2], a[3]
	offset := address - uint64(f.memory.Address())
	if offset > f.length || length > f.length-offset {
		return 0, syscall.EINVAL
	}
	return b.regMR(a[0], address, length, address, ibv.AccessFlags(a[4]))
}

// exportBuf is ibv_export_buf_dmabuf_fd. No buffer is a dma-buf.
func (b *Backend) exportBuf(a []uint64) syscall.Errno {
	if find[buffer](b, a[0]) == nil {
		return syscall.EINVAL
	}
	return syscall.ENODATA
}
