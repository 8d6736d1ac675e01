// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// DM is memory on the device itself. Programs copy to and from it with [DM.WriteAt] and [DM.ReadAt]; work requests
// access it through a region of [PD.RegDMMR].
//
// Man: ibv_alloc_dm(3)
type DM struct {
	object
	c      *ibv.DM
	length uint64 // 0: unknown, because the memory is imported
}

// AllocDM allocates memory of the device. max_dm_size of [Device.QueryEx] is its total size.
//
// C: ibv_alloc_dm
//
// Man: ibv_alloc_dm(3)
func (d *Device) AllocDM(attr *ibv.AllocDMAttr) (*DM, error) {
	const verb = "ibv_alloc_dm"
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	return d.newDM(&DM{length: attr.Length}, verb, func() (*ibv.DM, error) {
		c, err := libibverbs.AllocDM(d.c, attr)
		return c, d.refused().DM(attr.Length, err)
	}, libibverbs.FreeDM)
}

// ImportDM imports device memory of another process. handle is its handle in that process. Close ends the import, but
// does not free the memory.
//
// C: ibv_import_dm, ibv_unimport_dm
//
// Man: ibv_import_dm(3)
func (d *Device) ImportDM(handle uint32) (*DM, error) {
	return d.newDM(&DM{}, "ibv_import_dm", func() (*ibv.DM, error) { return libibverbs.ImportDM(d.c, handle) },
		libibverbs.UnimportDM)
}

func (d *Device) newDM(m *DM, verb string, create func() (*ibv.DM, error), destroy func(*ibv.DM) error) (*DM, error) {
	err := createObject(d, &m.object, &m.c, m, verb, create, destroy,
		func(c *ibv.DM) string { return fmt.Sprintf("DM %d on %s", c.Handle, d.name) })
	return made(m, err)
}

// C returns C's object, for calls of generated/libibverbs. It belongs to the DM.
func (m *DM) C() *ibv.DM { return whileOpen(&m.object, m.c) }

// Len returns the size in bytes, or 0 for imported memory.
func (m *DM) Len() uint64 { return m.length }

// within returns how many of the n bytes at an offset are inside the memory, and io.EOF if not all are.
func (m *DM) within(verb string, off int64, n int) (int, error) {
	switch {
	case off < 0:
		return 0, invalid(verb, m.name, "the offset is %d", off)
	case m.length == 0 || uint64(off)+uint64(n) <= m.length:
		return n, nil
	case uint64(off) >= m.length:
		return 0, io.EOF
	}
	return int(m.length - uint64(off)), io.EOF
}

// WriteAt copies b to the memory, starting at an offset. The device may use the memory at the same time. Bytes that do
// not fit are not written, and the error is io.ErrShortWrite. Offsets and lengths are multiples of 4, as mlx5 and
// software devices require.
//
// C: ibv_memcpy_to_dm
//
// Man: ibv_alloc_dm(3)
func (m *DM) WriteAt(b []byte, off int64) (n int, err error) {
	const verb = "ibv_memcpy_to_dm"
	if n, err = m.within(verb, off, len(b)); err != nil && err != io.EOF {
		return 0, err
	}
	if err == io.EOF {
		err = &VerbError{Verb: verb, Object: m.name, Errno: syscall.EINVAL,
			Reason: fmt.Sprintf("%d bytes at offset %d are not inside the %d bytes of the memory", len(b), off, m.length),
			Err:    io.ErrShortWrite}
	}
	if e := m.use(verb); e != nil || n == 0 {
		if e == nil {
			m.done()
			e = err
		}
		return 0, e
	}
	defer m.done()
	if e := libibverbs.MemcpyToDM(m.c, uint64(off), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uint64(n)); e != nil {
		return 0, m.copyError(verb, off, n, e)
	}
	return n, err
}

// ReadAt copies from the memory, starting at an offset, to b. At the end of the memory it returns io.EOF. Offsets and
// lengths are multiples of 4, as for WriteAt.
//
// C: ibv_memcpy_from_dm
//
// Man: ibv_alloc_dm(3)
func (m *DM) ReadAt(b []byte, off int64) (n int, err error) {
	const verb = "ibv_memcpy_from_dm"
	if n, err = m.within(verb, off, len(b)); err != nil && err != io.EOF {
		return 0, err
	}
	if e := m.use(verb); e != nil || n == 0 {
		if e == nil {
			m.done()
			e = err
		}
		return 0, e
	}
	defer m.done()
	if e := libibverbs.MemcpyFromDM(uintptr(unsafe.Pointer(unsafe.SliceData(b))), m.c, uint64(off),
		uint64(n)); e != nil {
		return 0, m.copyError(verb, off, n, e)
	}
	return n, err
}

// copyError returns the error of a failed copy.
func (m *DM) copyError(verb string, off int64, n int, err error) error {
	if errors.Is(err, syscall.EINVAL) && (off%4 != 0 || n%4 != 0) {
		return explain(verb, m.name, fmt.Sprintf("the length %d and the offset %d must be multiples of 4", n, off), err)
	}
	return wrap(verb, m.name, err)
}

// ExportDMABuf exports the memory as a dma-buf and returns its descriptor, for [PD.RegDMABuf] of other devices. The
// caller must close the descriptor.
//
// C: ibv_dm_export_dmabuf_fd
//
// Man: ibv_dm_export_dmabuf_fd(3)
func (m *DM) ExportDMABuf() (fd int, err error) {
	const verb = "ibv_dm_export_dmabuf_fd"
	if err := m.use(verb); err != nil {
		return -1, err
	}
	defer m.done()
	fd, err = libibverbs.DMExportDMABufFD(m.c)
	return fd, wrap(verb, m.name, err)
}

// RegDMMR registers a part of device memory, starting at offset. access must contain ACCESS_ZERO_BASED: addresses of
// the region, for peers and work requests, count from 0. Close the region before the memory.
//
// C: ibv_reg_dm_mr
//
// Man: ibv_alloc_dm(3)
func (p *PD) RegDMMR(m *DM, offset, length uint64, access ibv.AccessFlags) (*MR, error) {
	const verb = "ibv_reg_dm_mr"
	if m == nil {
		return nil, isNil(verb, p.name, "memory")
	}
	r := &MR{}
	return made(r,
		r.register(verb, ibv.AccessRegDMMR, access, registration{pd: p, region: Region{Length: length}},
			func() (*ibv.MR, error) {
				c, err := libibverbs.RegDMMR(p.c, m.c, offset, length, access)
				if errors.Is(err, syscall.EINVAL) && m.length > 0 && (offset > m.length || length > m.length-offset) {
					err = explain("", "", fmt.Sprintf("%d bytes at offset %d are not inside %s, which has %d bytes", length,
						offset, m.name, m.length), err)
				}
				return c, err
			}, &m.object))
}

// Close frees the memory. Close its regions first.
//
// C: ibv_free_dm
//
// Man: ibv_alloc_dm(3)
func (m *DM) Close() error { return m.end() }
