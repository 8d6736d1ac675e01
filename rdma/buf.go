// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Buf is memory that the provider allocates. In a confidential virtual machine, for example, a device can only access
// such memory. Elsewhere, use a [Buffer].
//
// Man: ibv_alloc_buf(3)
type Buf struct {
	object
	c     *ibv.Buf
	pd    *PD
	bytes []byte
}

// AllocBuf allocates size bytes for regions of this protection domain.
//
// C: ibv_alloc_buf
//
// Man: ibv_alloc_buf(3)
func (p *PD) AllocBuf(size int) (*Buf, error) {
	const verb = "ibv_alloc_buf"
	if size <= 0 {
		return nil, invalid(verb, p.name, "the size is %d; it must be at least 1", size)
	}
	b := &Buf{pd: p}
	create := func() (*ibv.Buf, error) {
		handle := new(ibv.Ptr[ibv.Buf])
		at, err := libibverbs.AllocBuf(p.c, uint64(size), handle)
		if err != nil {
			return nil, err
		}
		b.bytes = unsafe.Slice(ibv.Ptr[byte](at).Deref(), size)
		return handle.Deref(), nil
	}
	err := createObject(p.device, &b.object, &b.c, b, verb, create, libibverbs.FreeBuf,
		func(*ibv.Buf) string { return fmt.Sprintf("buffer of %d bytes of %s", size, p.name) }, &p.object)
	return made(b, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the Buf.
func (b *Buf) C() *ibv.Buf { return whileOpen(&b.object, b.c) }

// Ptr returns the memory for use in attributes.
func (b *Buf) Ptr() ibv.Ptr[ibv.Buf] { return ptrWhileOpen(&b.object, b.c) }

// Bytes returns the memory, or nil after Close. Do not use the memory after Close.
func (b *Buf) Bytes() []byte {
	if b.life.IsGone() {
		return nil
	}
	return b.bytes
}

// RegBufMR registers a part of the memory, starting at offset. The Buf cannot be closed before the region.
//
// C: ibv_reg_buf_mr
//
// Man: ibv_alloc_buf(3)
func (p *PD) RegBufMR(b *Buf, offset, length int, access ibv.AccessFlags) (*MR, error) {
	const verb = "ibv_reg_buf_mr"
	if b == nil {
		return nil, isNil(verb, p.name, "memory")
	}
	if offset < 0 || length <= 0 || offset > len(b.bytes) || length > len(b.bytes)-offset {
		return nil, invalid(verb, p.name, "%d bytes at offset %d are not inside %s", length, offset, b.name)
	}
	if b.pd != p {
		return nil, invalid(verb, p.name, "%s belongs to another protection domain", b.name)
	}
	part := b.bytes[offset : offset+length : offset+length]
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	r := &MR{}
	m := registration{pd: p, bytes: part, region: Region{Address: uint64(at), Length: uint64(length)}}
	return made(r, r.register(verb, ibv.AccessRegMR, access, m, func() (*ibv.MR, error) {
		return libibverbs.RegBufMR(p.c, b.c, at, uint64(length), access)
	}, &b.object))
}

// ExportDMABuf returns a descriptor of the memory if it is a dma-buf, for [PD.RegDMABuf] of other devices. The caller
// must close the descriptor.
//
// C: ibv_export_buf_dmabuf_fd
//
// Man: ibv_alloc_buf(3)
func (b *Buf) ExportDMABuf() (fd int, err error) {
	const verb = "ibv_export_buf_dmabuf_fd"
	if err := b.use(verb); err != nil {
		return -1, err
	}
	defer b.done()
	fd, err = libibverbs.ExportBufDMABufFD(b.c)
	return fd, wrap(verb, b.name, err)
}

// Close frees the memory. Close its regions first.
//
// C: ibv_free_buf
//
// Man: ibv_alloc_buf(3)
func (b *Buf) Close() error { return b.end() }
